"""Files and functions that a reader can hold in mind."""

import ast

from tests.architecture.source import modules

_LONGEST_MODULE = 600
_LONGEST_FUNCTION = 50
_GENERATED = "infra/catalog/tables.py"  # by `make tables`: one list of columns
_SCRIPTS = "infra/catalog/migrations/"  # a migration is one list of statements and is never changed


def test_modules_are_short_and_documented() -> None:
    """A file that outgrows this answers two questions."""
    lengths = {module.where: len(module.text.splitlines()) for module in modules()}
    assert not {where: lines for where, lines in lengths.items() if lines > _LONGEST_MODULE and where != _GENERATED}
    assert not [module.where for module in modules() if module.text and not ast.get_docstring(module.tree)]


def test_functions_are_short() -> None:
    """30 lines as a habit, never beyond 50."""
    long = {
        f"{module.where}:{node.lineno}": lines
        for module in modules()
        for node in module.functions
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > _LONGEST_FUNCTION
    }
    assert not {where: lines for where, lines in long.items() if not where.startswith(_SCRIPTS)}
