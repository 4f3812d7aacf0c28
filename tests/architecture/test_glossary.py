"""The glossary names what exists."""

import ast
import re

from tests.architecture.source import ROOT, modules

_CODE = re.compile(r"`([\w./]+)`")


def test_every_word_names_code_that_exists() -> None:
    """A renamed class or a moved module would leave its word behind."""
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines() if "**" in line]
    named = {name for row in rows for name in _CODE.findall(row.split("|")[3])}
    classes = [node for module in modules() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    known = {node.name for node in classes} | {"BundleId"}
    fields = {f"{node.name}.{ast.unparse(one)}" for node in classes for part in node.body for one in _targets(part)}
    assert len(named) > 20
    assert {name for name in named if "/" in name and not (ROOT / name).exists()} == set()
    assert {name for name in named if "/" not in name} <= known | fields


def _targets(part: ast.stmt) -> list[ast.expr]:
    return [part.target] if isinstance(part, ast.AnnAssign) else part.targets if isinstance(part, ast.Assign) else []
