"""The documents name what exists, lead where they say, and tell an operator of every job what to do with it."""

import ast
import re
from codeop import CommandCompiler
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.workflow import _Definition

from tests.architecture.source import FOLDERS, ROOT
from workers.hosting.temporal_workers import WORKFLOWS
from workers.reference.settings_page import render_settings_page
from workers.reference.workflows_page import render_workflows_page
from workers.settings.model import Settings

_PATH = re.compile(rf"`((?:{'|'.join((*FOLDERS, 'tests', 'docs'))})/[\w./-]*\w)`")
_FOLDER_ITEM = re.compile(r"^- \*\*(\w+)\*\*: (.*?)(?=^\S|^$)", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_PIECE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ANSWERS = ("see", "stop", "resume", "undo")
_PIECES = _PIECE.findall((ROOT / "docs" / "guides" / "programs.md").read_text(encoding="utf-8"))
_OPERATIONS = ROOT / "docs" / "operations.md"
_RUNBOOKS = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
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


def test_list_of_folders_has_the_contents_of_every_folder() -> None:
    """Packages and modules of each folder, and no others: a reader looks for them there."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Folders and imports")[2].partition("\n## ")[0]
    listed = {folder: set(re.findall(r"`(\w+)`", item)) for folder, item in _FOLDER_ITEM.findall(section)}
    assert listed == {folder: _inside(ROOT / folder) for folder in FOLDERS}


@pytest.mark.parametrize(
    ("page", "render"), [("workflows.md", render_workflows_page), ("settings.md", render_settings_page)]
)
def test_page_of_the_reference_is_what_the_code_says(page: str, render: Callable[[], str]) -> None:
    """`make reference` was run after the last edit."""
    assert (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8") == render()


def test_page_of_settings_has_a_row_with_a_meaning_for_every_setting() -> None:
    """Fields of `Settings` and rows of the page are compared by name."""
    rows = [line.strip("| ").split(" | ") for line in render_settings_page().splitlines() if line.startswith("| `")]
    assert [row[0].strip("`") for row in rows] == list(Settings.model_fields)
    assert all(len(row) == 4 and row[3] for row in rows)


@pytest.mark.parametrize("piece", _PIECES, ids=range(len(_PIECES)))
def test_piece_of_the_session_with_programs_can_be_pasted_into_a_prompt(piece: str) -> None:
    """`python -m asyncio` takes a statement at a time, and ends an indented block at an empty line alone."""
    compiled, waiting = CommandCompiler(), list[str]()
    compiled.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for line in piece.splitlines():
        waiting.append(line)
        if compiled("\n".join(waiting), symbol="single") is not None:
            waiting.clear()
    assert waiting == [], "the last statement waits for an empty line, which is copied by nobody"


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    """To a file that exists and, where it names a heading, to one that stands there."""
    broken = []
    for link in _LINK.findall(_prose(document)):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        outside = "://" in link
        if not outside and not (target.exists() and (not anchor or anchor in _anchors(target))):
            broken.append(link)
    assert broken == []


def test_map_of_the_documents_leads_to_each_of_them() -> None:
    """One that no map names is found by nobody."""
    map_ = ROOT / "docs" / "README.md"
    named = {(map_.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(_prose(map_))}
    mapped_elsewhere = {"accepted", "runbooks"}
    documents = {path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in mapped_elsewhere} - {map_}
    assert documents - named == set()


def test_decisions_are_numbered_once_and_listed_in_order() -> None:
    """Two branches may take the same number: then one of them is renumbered."""
    folder = ROOT / "docs/adr"
    listed = re.findall(r"^\| \[(\d+)\]\(accepted/(\d{4})-", (folder / "README.md").read_text(), re.MULTILINE)
    stored = sorted(path.name[:4] for path in (folder / "accepted").glob("*.md"))
    assert [number for _, number in listed] == stored == [f"{number:04}" for number in range(1, len(stored) + 1)]
    assert all(int(shown) == int(number) for shown, number in listed)


@pytest.mark.parametrize("name", [str(_Definition.must_from_class(one).name) for one in WORKFLOWS])
def test_every_workflow_has_a_runbook(name: str) -> None:
    """How to see it, stop it, resume it, undo it; the map leads to its page, which names it."""
    (row,) = [line for line in _OPERATIONS.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    (link,) = _LINK.findall(row)
    page = (_OPERATIONS.parent / link).read_text(encoding="utf-8")
    assert name in page
    headings = set(_HEADING.findall(_FENCE.sub("", page)))
    answers = " ".join([*re.findall(r"\*\*([^*]+)\*\*", page), *headings]).lower()
    assert [word for word in _ANSWERS if word not in answers.split()] == []


@pytest.mark.parametrize("page", _RUNBOOKS, ids=lambda path: path.stem)
def test_runbook_has_four_parts_with_commands_to_check(page: Path) -> None:
    """Symptom, Check, Fix, Undo, in this order, each with text."""
    parts = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert parts[1::2] == ["Symptom", "Check", "Fix", "Undo"]
    assert all(text.strip() for text in parts[::2])
    assert "```console\n$ " in parts[4]


def test_map_of_operations_leads_to_each_runbook() -> None:
    """A runbook that the map does not name is found by nobody."""
    named = {(_OPERATIONS.parent / link).resolve() for link in _LINK.findall(_prose(_OPERATIONS))}
    assert set(_RUNBOOKS) - named == set()


def _prose(document: Path) -> str:
    """A document without its blocks of code."""
    return _FENCE.sub("", document.read_text(encoding="utf-8"))


def _anchors(document: Path) -> set[str]:
    """The names by which links reach its headings, as GitHub makes them."""
    headings = _HEADING.findall(_prose(document)) if document.suffix == ".md" else []
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
