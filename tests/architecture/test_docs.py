"""The documents name what exists."""

import re
from pathlib import Path

import pytest

from tests.architecture.source import FOLDERS, ROOT

_PATH = re.compile(rf"`((?:{'|'.join((*FOLDERS, 'tests', 'docs'))})/[\w./-]*\w)`")
_BOX = re.compile(r'^ +(\w+)\["<b>\1</b>(.*)"\]$', re.MULTILINE)
_DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))


def _inside(folder: Path) -> set[str]:
    """Rooms and modules that stand in it."""
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    return rooms | {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_in_a_document_exists(document: Path) -> None:
    """A module that moved would leave its old place behind."""
    named = _PATH.findall(document.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_picture_of_the_house_has_the_rooms_of_every_wing() -> None:
    """And no others: who reads it looks for them there."""
    boxes = dict(_BOX.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    shown = {wing: {name for name in re.split(r"<br/>|·| ", box) if name} for wing, box in boxes.items()}
    assert shown == {wing: _inside(ROOT / wing) for wing in FOLDERS}
