"""Files and functions that a reader can hold in mind."""

import ast

import pytest

from tests.architecture.source import Module, modules

_LONGEST_MODULE = 300
_LONGEST_FUNCTION = 50
_ONE_PORT = {"logstore/ports/catalog.py": 450}  # declarations and what they promise, not a line of logic
_SCRIPTS = "infra/catalog/migrations/"  # a migration is one list of statements and is never changed


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.where)
def test_module_is_short_and_documented(module: Module) -> None:
    """A file that outgrows this answers two questions."""
    assert len(module.text.splitlines()) <= _ONE_PORT.get(module.where, _LONGEST_MODULE)
    assert ast.get_docstring(module.tree) or not module.text


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.where)
def test_functions_are_short(module: Module) -> None:
    """30 lines as a habit, never beyond 50."""
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in module.functions}
    if not module.where.startswith(_SCRIPTS):
        assert not {name: lines for name, lines in lengths.items() if lines > _LONGEST_FUNCTION}
