"""Nobody works on half of a cursor: rows are for those who know what a snapshot is."""

import ast

from tests.architecture.source import Module, modules

_OWNERS = {"logstore/cursors/services/subscriptions.py", "workers/assembly/log_store.py"}
_BELOW = "logstore/catalog/"  # what implements the port


def _asks_for_rows(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "cursors"


def _is_acknowledgement(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "AcknowledgeWrite"


def _found(module: Module) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.expr) and (_asks_for_rows(node) or _is_acknowledgement(node))
    ]


def test_cursor_rows_are_read_and_changed_by_subscriptions_alone() -> None:
    """A row without its snapshot would be taken for all that was acknowledged (apache/pulsar#20638)."""
    users = {module.where: _found(module) for module in modules() if not module.where.startswith(_BELOW)}
    assert {where for where, lines in users.items() if lines} == _OWNERS, users
