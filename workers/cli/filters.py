"""Options that several lists share to show less, and what is said where they leave nothing."""

from typing import Annotated

import typer

from logstore.errors import UnknownObject
from logstore.names import TopicName
from logstore.positions import LedgerId
from workers.cli.context import CommandContext
from workers.cli.options import known_number
from workers.cli.output import note

OfTopic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only what concerns this topic.")]
OfLedger = Annotated[
    int | None, typer.Option("--ledger", metavar="ID", callback=known_number, help="Only what concerns this ledger.")
]


def encoded_topic(topic: str | None) -> str | None:
    """The encoded name of a topic that there may be.

    Raises:
        InvalidInput: It cannot be a topic's name.
    """
    return None if topic is None else TopicName.known(topic).encoded


def wanted_ledger(ledger: int | None) -> LedgerId | None:
    """The ledger's id."""
    return None if ledger is None else LedgerId(ledger)


def say_why_nothing(context: CommandContext, what: str, *, topic: str | None, ledger: int | None) -> None:
    """Say in one sentence on stderr that a list is empty because of its filters, and if what they name is unknown."""
    named = [f"{kind} {value}" for kind, value in (("topic", topic), ("ledger", ledger)) if value is not None]
    if not named:
        return
    unknown = [*_unknown_topic(context, topic), *_unknown_ledger(context, ledger)]
    because = f": there is no {' and no '.join(unknown)}" if unknown else ""
    note(f"no {what} of {' and '.join(named)}{because}")


def _unknown_topic(context: CommandContext, topic: str | None) -> list[str]:
    try:
        if topic is not None:
            context.topic(topic)
    except UnknownObject:
        return ["topic of this name"]
    return []


def _unknown_ledger(context: CommandContext, ledger: int | None) -> list[str]:
    try:
        if ledger is not None:
            context.catalog.inspection.ledger(LedgerId(ledger), decisions=0)
    except UnknownObject:
        return ["ledger of this id"]
    return []
