"""Errors that a workflow can meet, found in the code that its methods reach.

Code of other workflows is not included. Errors of an activity come from the activity's docstring. An activity's error
does not end the run if an update called the activity, or if `except ActivityError` turns it into a result.
"""

import ast
import copy
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Final

from temporalio import activity

from logstore import errors
from workers.hosting.temporal_workers import WORKFLOWS
from workflows import owner_routing

_ERROR_NAME: Final = re.compile(r"\b[A-Z]\w+")
_PARAGRAPH_END: Final = re.compile(r"\n\n|\Z")
_FUNCTION_NODES: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

_REFUSAL_HANDLERS: Final = frozenset(
    {"refused", "refusal_from_error", "refusal_from_error_or_raise", "refusal_batch_certificate"}
)
"""Functions that turn only a guard's refusal into a result."""
_FAILURE_HANDLERS: Final = frozenset({"_record_refused_ask"})
"""Functions that turn any failure into a text of the result."""

CodePieces = tuple[tuple[ModuleType, ast.AST], ...]


@cache
def collect_reachable_code(workflow: type) -> CodePieces:
    """Return all code in `workflows` that a run may reach, without the code of other workflows."""
    return tuple(_ReachableCodeWalk(sys.modules[workflow.__module__], workflow.__name__).pieces)


@cache
def collect_run_ending_code(workflow: type, *, includes_guarded: bool) -> CodePieces:
    """Return the reachable code whose errors may end the run.

    With `includes_guarded`, add code whose guard refusals become results. All other errors of this code end the run.
    """
    handlers = _FAILURE_HANDLERS if includes_guarded else _FAILURE_HANDLERS | _REFUSAL_HANDLERS
    return tuple(
        _ReachableCodeWalk(sys.modules[workflow.__module__], workflow.__name__, _HandledTryRemover(handlers)).pieces
    )


def list_modules(code: CodePieces) -> list[ModuleType]:
    return list({module.__name__: module for module, _ in code}.values())


def find_documented_activity_errors(code: CodePieces, *, only_called: bool = False) -> set[str]:
    """Return the documented errors of activities in `code`. `only_called` skips activities that `code` does not call.

    `NotOwner` is left out for routed activities, because the router repeats the call at the new bundle owner.
    """
    names = set[str]()
    for module, piece in code:
        for node in _first_arguments_of_execute_calls(piece) if only_called else ast.walk(piece):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = getattr(getattr(module, node.value.id, None), node.attr, None)
                if callable(called) and activity._Definition.from_callable(called):  # noqa: SLF001 - the SDK has no public way
                    names |= _parse_raises(inspect.getdoc(called) or "")
    is_routed = owner_routing in list_modules(code)
    return (names | owner_routing.OWNERSHIP_FAILURES) - {errors.NotOwner.__name__} if is_routed else names


def _first_arguments_of_execute_calls(piece: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(piece):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).rpartition(".")[2].startswith("execute"):
            yield node.args[0]


def find_raised_failure_types(code: CodePieces) -> set[str]:
    calls = [node for _, piece in code for node in ast.walk(piece) if isinstance(node, ast.Call)]
    types = [
        keyword.value
        for call in calls
        if ast.unparse(call.func) == "ApplicationError"
        for keyword in call.keywords
        if keyword.arg == "type"
    ]
    return {str(node.value) for node in types if isinstance(node, ast.Constant)}


def find_guard_refusals(code: CodePieces) -> set[str]:
    """Return the error types in `GUARDS` of each module whose assignment to `GUARDS` is in `code`."""
    guarded_modules = {module.__name__ for module, piece in code if "GUARDS" in _assigned_names(piece)}
    return {kind for module in list_modules(code) if module.__name__ in guarded_modules for kind in module.GUARDS}


def get_error_class(name: str) -> type[errors.SextonError]:
    found: type[errors.SextonError] = getattr(errors, name)
    return found


class _HandledTryRemover(ast.NodeTransformer):
    def __init__(self, handlers: frozenset[str]) -> None:
        self._handlers = handlers

    def visit_Try(self, node: ast.Try) -> ast.AST:
        if any(self._is_failure_handler(handler) for handler in node.handlers):
            node.body = []
        return self.generic_visit(node)

    def _is_failure_handler(self, handler: ast.ExceptHandler) -> bool:
        if handler.type is None or "ActivityError" not in ast.unparse(handler.type):
            return False
        nodes = [node for statement in handler.body for node in ast.walk(statement)]
        is_conditional = any(isinstance(node, ast.IfExp) for node in nodes)
        called = {ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}
        return not is_conditional and not self._handlers.isdisjoint(called)


class _ReachableCodeWalk:
    """Collector of the code that a workflow class uses, directly or through other code. `pieces` is the result."""

    def __init__(self, module: ModuleType, name: str, remover: _HandledTryRemover | None = None) -> None:
        self._remover = remover
        self.pieces: list[tuple[ModuleType, ast.AST]] = []
        self._foreign_modules = {workflow.__module__ for workflow in WORKFLOWS} - {module.__name__}
        self._visited_names: set[tuple[str, str]] = set()
        self._used_attributes: set[str] = set()
        self._unused_methods: list[tuple[ModuleType, ast.FunctionDef | ast.AsyncFunctionDef]] = []
        self._add_definition(module, name)
        while used := [entry for entry in self._unused_methods if entry[1].name in self._used_attributes]:
            self._unused_methods = [entry for entry in self._unused_methods if entry not in used]
            for method_module, method in used:
                self._add_code_piece(method_module, method)

    def _add_definition(self, module: ModuleType, name: str) -> None:
        if not module.__name__.startswith("workflows") or module.__name__ in self._foreign_modules:
            return
        if (module.__name__, name) in self._visited_names:
            return
        self._visited_names.add((module.__name__, name))
        node = _list_module_definitions(module).get(name)
        if isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            self._add_definition(sys.modules[node.module or ""], original)
        elif isinstance(node, ast.ClassDef):
            for part in (*node.bases, *node.body):
                if self._remover is not None and _is_update_handler(part):
                    continue
                if isinstance(part, _FUNCTION_NODES) and not (part.decorator_list or part.name.startswith("__")):
                    self._unused_methods.append((module, part))
                else:
                    self._add_code_piece(module, part)
        elif node is not None:
            self._add_code_piece(module, node)

    def _add_code_piece(self, module: ModuleType, piece: ast.AST) -> None:
        if self._remover is not None:
            piece = self._remover.visit(copy.deepcopy(piece))
        self.pieces.append((module, piece))
        for node in ast.walk(piece):
            if isinstance(node, ast.Name):
                self._add_definition(module, node.id)
            elif isinstance(node, ast.Attribute):
                self._used_attributes.add(node.attr)
                other = getattr(module, node.value.id, None) if isinstance(node.value, ast.Name) else None
                if isinstance(other, ModuleType):
                    self._add_definition(other, node.attr)


def _is_update_handler(part: ast.AST) -> bool:
    if not isinstance(part, _FUNCTION_NODES):
        return False
    return any("update" in ast.unparse(decorator) for decorator in part.decorator_list)


@cache
def _list_module_definitions(module: ModuleType) -> dict[str, ast.AST]:
    node_by_name: dict[str, ast.AST] = {}
    statements = ast.parse(inspect.getsource(module)).body
    for node in (node for top in statements for node in (top.body if isinstance(top, ast.With) else [top])):
        if isinstance(node, (*_FUNCTION_NODES, ast.ClassDef)):
            node_by_name[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").startswith("workflows"):
                node_by_name |= dict.fromkeys((alias.asname or alias.name for alias in node.names), node)
        else:
            node_by_name |= dict.fromkeys(_assigned_names(node), node)
    return node_by_name


def _assigned_names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {node.target.id} if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else set()


def _parse_raises(docstring: str) -> set[str]:
    section = _PARAGRAPH_END.split(docstring.partition("Raises:")[2])[0]
    return {name for name in _ERROR_NAME.findall(section) if isinstance(getattr(errors, name, None), type)}
