"""Options that several commands share; what is said where filters leave nothing, and of what this build lacks."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from logstore.errors import InvalidInput, UnknownObject
from logstore.names import TopicName, check_name, check_reason
from logstore.positions import LedgerId
from workers.cli.context import CommandContext
from workers.cli.output import note
from workers.cli.usage import field_of, whole_number

_MOST_INT = 2**63 - 1
_LONGEST_FUNCTION = 64

TopicArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="persistent://tenant/namespace/topic, as a person writes it.")
]
SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUB", help="The subscription's name.")]


def _storable(ctx: typer.Context, param: typer.CallbackParam, reason: str) -> str:
    """A reason that can be stored; none at all is fine, an empty one is a slip."""
    source = ctx.get_parameter_source(str(param.name))
    if source is not None and source.name == "COMMANDLINE" and not reason.strip():
        raise InvalidInput("reason", expected="a reason, where the option is given", found=reason)
    return check_reason(reason)


def known_number(param: typer.CallbackParam, value: int | list[int] | None) -> int | list[int] | None:
    """A number that every database holds; ids and sizes are taken up to there."""
    for one in value if isinstance(value, list) else (value,):
        if one is not None and not 0 <= one <= _MOST_INT:
            raise InvalidInput(field_of(param), expected=whole_number(0, _MOST_INT), found=one)
    return value


def known_names(param: typer.CallbackParam, names: list[str] | None) -> list[str] | None:
    """Names that the catalog may keep; whether it has them is for the workers to say."""
    for one in names or ():
        check_name(field_of(param), one)
    return names


def known_worker(param: typer.CallbackParam, worker_id: str | None) -> str | None:
    """A worker's id, if it can be one."""
    from logstore.ownership import check_worker_id  # noqa: PLC0415 - start-up time

    try:
        return None if worker_id is None else check_worker_id(worker_id)
    except InvalidInput as error:
        raise InvalidInput(field_of(param), expected=error.expected, found=worker_id) from None


def known_transaction(txn: str | None) -> str | None:
    """A transaction's id, if it can be one."""
    from logstore.transactions.transactions import TransactionId  # noqa: PLC0415 - start-up time

    return None if txn is None else str(TransactionId.parse(txn))


def known_function(name: str) -> str:
    """The name of a function, if it can be one; whether there is such a function is for the workers to say."""
    if not (name.isascii() and name.isidentifier() and len(name) <= _LONGEST_FUNCTION):
        raise InvalidInput("function", expected="the name of a Python function, 64 characters at most", found=name)
    return name


def known_share(option: str) -> Callable[[str], float]:
    """Return a parser of shares from 0 to 1 for the option; it refuses one in percent, and what is no number."""

    def parse_share(text: str) -> float:
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise InvalidInput(option, expected="a number from 0 to 1", found=text)
        return share

    return parse_share


def of_kind(kind: str) -> Callable[[typer.CallbackParam, Any], Any]:
    """The callback of an option that takes what a setting of that kind takes, or several; see `settings.kinds`."""

    def checked(param: typer.CallbackParam, given: Any) -> Any:  # noqa: ANN401 - a text, a list of texts, or None
        from workers.settings import kinds  # noqa: PLC0415 - start-up time

        for one in given if isinstance(given, list) else [] if given is None else [given]:
            try:
                getattr(kinds, kind)(one)
            except ValueError as error:
                raise InvalidInput(field_of(param), expected=str(error), found=one) from None
        return given

    return checked


Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; stored in the audit log.", callback=_storable)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be done, and change nothing.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the workflow's result.")]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        callback=of_kind("validate_spark_master"),
        help="A Spark cluster; by default that of the workers' settings.",
    ),
]
OneTopic = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="persistent://tenant/namespace/topic, or --all.", show_default=False),
]
AllTopics = Annotated[bool, typer.Option("--all", help="Of every topic.")]
Transaction = Annotated[
    str | None,
    typer.Option("--txn", metavar="TC:SEQ", help="As part of this open transaction.", callback=known_transaction),
]
DurableDelete = Annotated[
    bool | None,
    typer.Option(
        "--durable-delete/--no-durable-delete",
        help="Whether what is deleted leaves tombstones, and so never returns when the catalog is rebuilt.",
        show_default=False,
    ),
]
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


def say_why_nothing(context: CommandContext, what: str, *, topic: str | None, ledger: int | None) -> None:
    """Say in one sentence on stderr that a list is empty because of its filters, and if what they name is unknown."""
    named = [f"{kind} {value}" for kind, value in (("topic", topic), ("ledger", ledger)) if value is not None]
    if not named:
        return
    unknown = []
    if topic is not None and not _is_known(lambda: context.topic(topic)):
        unknown.append("topic of this name")
    if ledger is not None and not _is_known(lambda: context.catalog.inspection.ledger(LedgerId(ledger), decisions=0)):
        unknown.append("ledger of this id")
    because = f": there is no {' and no '.join(unknown)}" if unknown else ""
    note(f"no {what} of {' and '.join(named)}{because}")


def _is_known(look: Callable[[], object]) -> bool:
    try:
        look()
    except UnknownObject:
        return False
    return True
