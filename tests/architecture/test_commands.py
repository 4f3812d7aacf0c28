"""Every command that a document shows is one that the parser reads."""

from typing import Any

import pytest
import typer
from typer.main import get_command

from logstore.errors import InvalidInput
from tests.architecture.documented import Shown, commands_of
from tests.architecture.source import ROOT
from workers.cli import app
from workers.cli.command_errors import NOTHING, to_usage_error

_DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
_SHOWN = [shown for document in _DOCUMENTS for shown in commands_of(document, ROOT)]


def test_documents_show_commands() -> None:
    """An empty list would pass everything below."""
    assert sum(shown.whole for shown in _SHOWN) >= 40
    assert sum(not shown.whole for shown in _SHOWN) >= 100


@pytest.mark.parametrize("document", sorted({shown.document for shown in _SHOWN}))
def test_command_of_a_document_is_read_by_the_parser(document: str) -> None:
    """No document names a command, an option or a choice that does not exist."""
    refused = {shown.line: why for shown in _SHOWN if shown.document == document and (why := _refusal(shown))}
    assert refused == {}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("topic lst", "command"),
        ("topic trim persistent://a/b/c --reson x", "option"),
        ("deletion list --state GONE", "state"),
        ("topic append persistent://a/b/c", "file"),
    ],
)
def test_command_that_does_not_exist_is_refused(line: str, expected: str) -> None:
    """What the test above would say of it."""
    why = _refusal(Shown("a document", line, tuple(line.split()), whole=True))
    assert why is not None
    assert why.startswith(f"{expected}: expected ")


def _refusal(shown: Shown) -> str | None:
    """Why the parser refuses the line, or None; nothing is executed."""
    command: Any = get_command(app)
    context, name, rest = None, "sexton", list(shown.words)
    try:
        while True:
            if hasattr(command, "resolve_command") and not rest:
                return None  # a group, which shows its help
            context = command.make_context(name, rest, parent=context)
            if not hasattr(command, "resolve_command"):
                return None
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    except typer.Exit:
        return None  # it has shown its help
    except (InvalidInput, typer.TyperException) as error:
        why = str(to_usage_error(error) if isinstance(error, typer.TyperException) else error)
        return None if why.endswith(f"found {NOTHING}") and not shown.whole else why
