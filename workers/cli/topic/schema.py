"""`topic schema set`, `list` and `show`."""

import base64
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput
from logstore.whole_files import open_regular_file
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.options import TopicArgument, known_number
from workers.cli.output import Answer, note
from workers.cli.topic.topics import topic
from workers.pages.texts import format_time_us, select_fields

if TYPE_CHECKING:
    from logstore.ports.catalog import SchemaVersion

schema = group("schema", "Schemas of a topic: set, list, show.", path="topic schema")
topic.add_typer(schema)


File = Annotated[str, typer.Option("--file", metavar="F", help="The schema, at most 1 MiB; - is stdin.")]
Version = Annotated[
    int | None, typer.Option("--version", metavar="N", callback=known_number, help="Which; the newest by default.")
]


@command(schema, "set", "TOPIC --file orders.avsc")
def set_(context: CommandContext, name: TopicArgument, *, file: File) -> Answer:
    """Make a file's content the newest version of the topic's schema.

    Where it is that already, the version is told and nothing happens.
    """
    content = _content(file)
    made = context.log.schemas.set(context.topic(name), content)
    return Answer(document={"version": made.version, "ledger_id": made.ledger_id})


@command(schema, "list", "TOPIC --json")
def list_(context: CommandContext, name: TopicArgument) -> Answer:
    """List the versions of a topic's schema, oldest first."""
    found = context.log.schemas.all(context.topic(name).topic_id)
    return Answer(document=[_row(one) for one in found], empty="no schema")


@command(schema, "show", "TOPIC > orders.avsc", "TOPIC --version 0")
def show(context: CommandContext, name: TopicArgument, *, version: Version = None) -> Answer:
    """Print the content of a version, compared with its digest; with --json as base64."""
    found, content = context.log.schemas.read(context.topic(name), version)
    document = {**_row(found), "content_b64": base64.b64encode(content).decode()}
    return Answer(document=document, text=_text(content))


def _content(file: str) -> bytes:
    """The file's bytes, and one more than is allowed where there are more.

    Raises:
        InvalidInput: It cannot be read, is empty or too large.
    """
    from logstore.log.services.schemas import MOST_BYTES  # noqa: PLC0415 - start-up time

    try:
        if file == "-":
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with open_regular_file(Path(file)) as source:
                content = source.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput("file", expected=f"a file that can be read ({error.strerror})", found=file) from error
    if not 0 < len(content) <= MOST_BYTES:
        found = f"{file}: {len(content):,} bytes{' or more' if content else ''}"
        raise InvalidInput("file", expected=f"1 to {MOST_BYTES:,} bytes", found=found)
    return content


def _row(found: "SchemaVersion") -> dict[str, object]:
    return {**select_fields(found, "version ledger_id size_bytes digest"), "created": format_time_us(found.created_us)}


def _text(content: bytes) -> str:
    """The content as it is, where it is text."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        note("the content is not text: shown as base64")
        return base64.b64encode(content).decode() + "\n"
