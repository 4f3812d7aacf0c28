"""Which errors a workflow can meet, read from the code that its own methods reach.

Reached is what a method names, and what that names in turn, within `workflows`: functions, constants, and of a class
the methods whose names are used anywhere in what is reached. Another workflow is not followed: its failures are its
own. Of an activity that is reached the errors are those that its docstring says it raises.
"""

import ast
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

Reached = tuple[tuple[ModuleType, ast.AST], ...]
"""Pieces of code, each with its module."""


@cache
def reached(workflow: type) -> Reached:
    """All code of `workflows` that a run may come to, but that of other workflows."""
    return tuple(_Walk(sys.modules[workflow.__module__], workflow.__name__).pieces)


def modules_of(code: Reached) -> list[ModuleType]:
    """Where the pieces stand, each module once."""
    return list({module.__name__: module for module, _ in code}.values())


def raised(code: Reached) -> set[str]:
    """What the activities that the code names say they raise; a router looks the owner up again by itself."""
    found = set[str]()
    for module, piece in code:
        for node in ast.walk(piece):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = getattr(getattr(module, node.value.id, None), node.attr, None)
                if callable(called) and activity._Definition.from_callable(called):  # noqa: SLF001 - no public way
                    found |= _named(inspect.getdoc(called) or "")
    routed = dispatch in modules_of(code)
    return (found | dispatch.NOT_OF_THE_WORK) - {errors.NotOwner.__name__} if routed else found


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
    """What the guards that the code asks may refuse."""
    asked = {module.__name__ for module, piece in code if "GUARDS" in _targets(piece)}
    return {kind for module in modules_of(code) if module.__name__ in asked for kind in module.GUARDS}


def known(name: str) -> type[errors.SextonError]:
    """The error of that name."""
    kind: type[errors.SextonError] = getattr(errors, name)
    return kind


class _Walk:
    """From one class through all that it names."""

    def __init__(self, own: ModuleType, name: str) -> None:
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
            self._name(sys.modules[node.module or ""], _original(node, name))
        elif isinstance(node, ast.ClassDef):
            for part in (*node.bases, *node.body):
                if isinstance(part, _METHODS) and not (part.decorator_list or part.name.startswith("__")):
                    self._waiting.append((module, part))
                else:
                    self._piece(module, part)
        elif node is not None:
            self._piece(module, node)

    def _piece(self, module: ModuleType, piece: ast.AST) -> None:
        self.pieces.append((module, piece))
        for node in ast.walk(piece):
            if isinstance(node, ast.Name):
                self._name(module, node.id)
            elif isinstance(node, ast.Attribute):
                self._used.add(node.attr)
                other = getattr(module, node.value.id, None) if isinstance(node.value, ast.Name) else None
                if isinstance(other, ModuleType):
                    self._name(other, node.attr)


@cache
def _defined(module: ModuleType) -> dict[str, ast.AST]:
    """What stands at the top of a module, and what it imports from `workflows`, by name."""
    found: dict[str, ast.AST] = {}
    for node in _top(ast.parse(inspect.getsource(module))):
        if isinstance(node, (*_METHODS, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").startswith("workflows"):
                found |= dict.fromkeys((alias.asname or alias.name for alias in node.names), node)
        else:
            found |= dict.fromkeys(_targets(node), node)
    return found


def _top(tree: ast.Module) -> Iterator[ast.AST]:
    for node in tree.body:
        yield from node.body if isinstance(node, ast.With) else [node]


def _targets(node: ast.AST) -> set[str]:
    """Names to which a statement gives a value."""
    if isinstance(node, ast.Assign):
        return {one.id for one in node.targets if isinstance(one, ast.Name)}
    return {node.target.id} if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else set()


def _original(node: ast.ImportFrom, name: str) -> str:
    return next(alias.name for alias in node.names if (alias.asname or alias.name) == name)


def _named(text: str) -> set[str]:
    """Names of our errors in the part of a docstring that says what is raised."""
    told = _PARAGRAPH.split(text.partition("Raises:")[2])[0]
    return {name for name in _ERROR.findall(told) if isinstance(getattr(errors, name, None), type)}
