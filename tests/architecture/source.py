"""The project's source as syntax trees."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("logstore", "activities", "workflows", "infra", "spark", "workers")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def where(self) -> str:
        """Its path in the repository."""
        return str(self.path.relative_to(ROOT))

    @property
    def functions(self) -> Iterator[Function]:
        """Every function and method, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    @property
    def imported(self) -> Iterator[str]:
        """Every module that it imports, anywhere in it."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module


def modules(*folders: str) -> tuple[Module, ...]:
    """Every module of the folders, or of all of them."""
    return tuple(module for folder in folders or FOLDERS for module in _of(folder))


@cache
def _of(folder: str) -> tuple[Module, ...]:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).rglob("*.py"))}
    return tuple(Module(path=path, text=text, tree=ast.parse(text)) for path, text in texts.items())


def decorator(node: ast.AST, name: str) -> ast.Call | None:
    """The call `@name(…)` above a function or a class, as `activity.defn`."""
    for found in getattr(node, "decorator_list", ()):
        if isinstance(found, ast.Call) and ast.unparse(found.func) == name:
            return found
    return None


def named(call: ast.Call) -> str | None:
    """The literal given as `name=`."""
    for keyword in call.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return None
