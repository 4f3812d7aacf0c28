"""Which errors a workflow can meet, read from the code that its own methods reach.

Reached is what a method names, and what that names in turn, within `workflows`: functions, constants, and of a class
the methods whose names are used anywhere in what is reached. Another workflow is not followed: its failures are its
own, and its parent's only where that says so. Of an activity that is reached the errors are those that its docstring
says it raises. They do not end the run where an update asked for the activity, whose sender is told, or where an
`except ActivityError` makes a result of them.
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
from workers.hosting.worker_sets import WORKFLOWS
from workflows import dispatch

_ERROR: Final = re.compile(r"\b[A-Z]\w+")
_PARAGRAPH: Final = re.compile(r"\n\n|\Z")
_METHODS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)

_REFUSING: Final = frozenset({"refused", "refusal_of"})  # make a result of what a guard refused, and of nothing else
_TELLING: Final = frozenset({"_refuse"})  # make a sentence in the result of whatever failed

Reached = tuple[tuple[ModuleType, ast.AST], ...]
"""Pieces of code, each with its module."""


@cache
def reached(workflow: type) -> Reached:
    """All code of `workflows` that a run may come to, but that of other workflows."""
    return tuple(_Walk(sys.modules[workflow.__module__], workflow.__name__).pieces)


@cache
def ending(workflow: type, *, guarded: bool) -> Reached:
    """Of what is reached, the code whose errors may end the run.

    Args:
        workflow: Its class.
        guarded: Whether code counts of which a guard's refusals are a result: other errors of it end the run.
    """
    kept = _Kept(_TELLING if guarded else _TELLING | _REFUSING)
    return tuple(_Walk(sys.modules[workflow.__module__], workflow.__name__, kept).pieces)


def modules_of(code: Reached) -> list[ModuleType]:
    """Where the pieces stand, each module once."""
    return list({module.__name__: module for module, _ in code}.values())


def raised(code: Reached, *, only_called: bool = False) -> set[str]:
    """Errors that the activities which the code names say they raise; a router looks the owner up again by itself.

    Args:
        code: Some pieces.
        only_called: Whether only those count that the code itself calls, and not those that it hands to other code.
    """
    found = set[str]()
    for module, piece in code:
        for node in _first_arguments(piece) if only_called else ast.walk(piece):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = getattr(getattr(module, node.value.id, None), node.attr, None)
                if callable(called) and activity._Definition.from_callable(called):  # noqa: SLF001 - no public way
                    found |= _named(inspect.getdoc(called) or "")
    routed = dispatch in modules_of(code)
    return (found | dispatch.NOT_OF_THE_WORK) - {errors.NotOwner.__name__} if routed else found


def _first_arguments(piece: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(piece):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).rpartition(".")[2].startswith("execute"):
            yield node.args[0]


def said(code: Reached) -> set[str]:
    """Types of failures that the code raises itself."""
    calls = [node for _, piece in code for node in ast.walk(piece) if isinstance(node, ast.Call)]
    kinds = [
        word.value
        for call in calls
        if ast.unparse(call.func) == "ApplicationError"
        for word in call.keywords
        if word.arg == "type"
    ]
    return {str(kind.value) for kind in kinds if isinstance(kind, ast.Constant)}


def guards(code: Reached) -> set[str]:
    """Refusals of the guards that the code asks."""
    asked = {module.__name__ for module, piece in code if "GUARDS" in _targets(piece)}
    return {kind for module in modules_of(code) if module.__name__ in asked for kind in module.GUARDS}


def known(name: str) -> type[errors.SextonError]:
    """The error of that name."""
    kind: type[errors.SextonError] = getattr(errors, name)
    return kind


class _Kept(ast.NodeTransformer):
    """Leaves out what is tried where a handler of failed activities calls one of these, whatever has failed."""

    def __init__(self, handling: frozenset[str]) -> None:
        self._handling = handling

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """Keep the handlers, and what comes behind them."""
        if any(self._handles(one) for one in node.handlers):
            node.body = []
        return self.generic_visit(node)

    def _handles(self, handler: ast.ExceptHandler) -> bool:
        if handler.type is None or "ActivityError" not in ast.unparse(handler.type):
            return False
        inside = [node for statement in handler.body for node in ast.walk(statement)]
        sometimes = any(isinstance(node, ast.IfExp) for node in inside)
        called = {ast.unparse(node.func).rpartition(".")[2] for node in inside if isinstance(node, ast.Call)}
        return not sometimes and not self._handling.isdisjoint(called)


class _Walk:
    """From one class through all that it names."""

    def __init__(self, own: ModuleType, name: str, kept: _Kept | None = None) -> None:
        self._kept = kept
        self.pieces: list[tuple[ModuleType, ast.AST]] = []
        self._closed = {one.__module__ for one in WORKFLOWS} - {own.__name__}
        self._met: set[tuple[str, str]] = set()
        self._used: set[str] = set()
        self._waiting: list[tuple[ModuleType, ast.FunctionDef | ast.AsyncFunctionDef]] = []
        self._name(own, name)
        while now := [one for one in self._waiting if one[1].name in self._used]:
            self._waiting = [one for one in self._waiting if one not in now]
            for module, method in now:
                self._piece(module, method)

    def _name(self, module: ModuleType, name: str) -> None:
        if not module.__name__.startswith("workflows") or module.__name__ in self._closed:
            return
        if (module.__name__, name) in self._met:
            return
        self._met.add((module.__name__, name))
        node = _defined(module).get(name)
        if isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            self._name(sys.modules[node.module or ""], original)
        elif isinstance(node, ast.ClassDef):
            for part in (*node.bases, *node.body):
                if self._kept is not None and _answers_an_update(part):
                    continue
                if isinstance(part, _METHODS) and not (part.decorator_list or part.name.startswith("__")):
                    self._waiting.append((module, part))
                else:
                    self._piece(module, part)
        elif node is not None:
            self._piece(module, node)

    def _piece(self, module: ModuleType, piece: ast.AST) -> None:
        if self._kept is not None:
            piece = self._kept.visit(copy.deepcopy(piece))
        self.pieces.append((module, piece))
        for node in ast.walk(piece):
            if isinstance(node, ast.Name):
                self._name(module, node.id)
            elif isinstance(node, ast.Attribute):
                self._used.add(node.attr)
                other = getattr(module, node.value.id, None) if isinstance(node.value, ast.Name) else None
                if isinstance(other, ModuleType):
                    self._name(other, node.attr)


def _answers_an_update(part: ast.AST) -> bool:
    return isinstance(part, _METHODS) and any("update" in ast.unparse(one) for one in part.decorator_list)


@cache
def _defined(module: ModuleType) -> dict[str, ast.AST]:
    """Definitions at the top of a module, and its imports from `workflows`, by name."""
    found: dict[str, ast.AST] = {}
    tops = ast.parse(inspect.getsource(module)).body
    for node in (one for top in tops for one in (top.body if isinstance(top, ast.With) else [top])):
        if isinstance(node, (*_METHODS, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").startswith("workflows"):
                found |= dict.fromkeys((alias.asname or alias.name for alias in node.names), node)
        else:
            found |= dict.fromkeys(_targets(node), node)
    return found


def _targets(node: ast.AST) -> set[str]:
    """Names to which a statement gives a value."""
    if isinstance(node, ast.Assign):
        return {one.id for one in node.targets if isinstance(one, ast.Name)}
    return {node.target.id} if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else set()


def _named(text: str) -> set[str]:
    """Names of our errors in the part of a docstring that says what is raised."""
    told = _PARAGRAPH.split(text.partition("Raises:")[2])[0]
    return {name for name in _ERROR.findall(told) if isinstance(getattr(errors, name, None), type)}
