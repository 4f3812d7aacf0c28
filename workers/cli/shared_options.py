"""Options of several commands, and checks of their values."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from logstore.errors import InvalidInput, UnknownObject
from logstore.positions import LedgerId
from logstore.validated_names import TopicName, check_audit_reason, check_producer_or_actor_name
from workers.cli.command_context import CommandContext
from workers.cli.command_errors import describe_whole_numbers, get_field_name
from workers.cli.output import print_note

if TYPE_CHECKING:
    from logstore.ports.catalog.log import Topic

_MAX_INT = 2**63 - 1
_MAX_FUNCTION_LENGTH = 64
MAX_RATE = 1_000_000  # deletions a second
_Row = TypeVar("_Row")

TopicArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="persistent://tenant/namespace/topic, as a person writes it.")
]
SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUB", help="The subscription's name.")]


def _check_reason(ctx: typer.Context, param: typer.CallbackParam, reason: str) -> str:
    source = ctx.get_parameter_source(str(param.name))
    if source is not None and source.name == "COMMANDLINE" and not reason.strip():
        raise InvalidInput("reason", expected="a reason, where the option is given", found=reason)
    return check_audit_reason(reason)


def _check_nonnegative_numbers(param: typer.CallbackParam, value: int | list[int] | None) -> int | list[int] | None:
    for number in value if isinstance(value, list) else (value,):
        if number is not None and not 0 <= number <= _MAX_INT:
            raise InvalidInput(get_field_name(param), expected=describe_whole_numbers(0, _MAX_INT), found=number)
    return value


def number_option(name: str, help_text: str, *, metavar: str = "N") -> Any:  # noqa: ANN401 - Typer's option
    """Return an option for a whole number, 0 or more, or for a list of such numbers."""
    return typer.Option(name, metavar=metavar, callback=_check_nonnegative_numbers, help=help_text)


def number_argument(metavar: str, help_text: str) -> Any:  # noqa: ANN401 - Typer's argument
    """Return an argument for a whole number, 0 or more, or for a list of such numbers."""
    return typer.Argument(metavar=metavar, callback=_check_nonnegative_numbers, help=help_text)


def check_names(param: typer.CallbackParam, names: list[str] | None) -> list[str] | None:
    """Return `names` if all are valid names of subscriptions. The subscriptions need not exist."""
    for name in names or ():
        check_producer_or_actor_name(get_field_name(param), name)
    return names


def check_worker_id_option(param: typer.CallbackParam, worker_id: str | None) -> str | None:
    from logstore.ownership import check_worker_id  # noqa: PLC0415 - start-up time

    try:
        return None if worker_id is None else check_worker_id(worker_id)
    except InvalidInput as error:
        raise InvalidInput(get_field_name(param), expected=error.expected, found=worker_id) from None


def check_transaction(txn: str | None) -> str | None:
    from logstore.transactions.transaction_ids_and_states import TransactionId  # noqa: PLC0415 - start-up time

    return None if txn is None else str(TransactionId.parse(txn))


def check_function(name: str) -> str:
    """Return the name if it is a valid function name. The workers check that the function exists."""
    if not (name.isascii() and name.isidentifier() and len(name) <= _MAX_FUNCTION_LENGTH):
        raise InvalidInput("function", expected="the name of a Python function, 64 characters at most", found=name)
    return name


def make_fraction_parser(option: str) -> Callable[[str], float]:
    """Return a parser for an option with a share from 0 to 1. The parser refuses percentages."""

    def parse_fraction(text: str) -> float:
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise InvalidInput(option, expected="a number from 0 to 1", found=text)
        return share

    return parse_fraction


def make_setting_type_check(validator: str) -> Callable[[typer.CallbackParam, Any], Any]:
    """Return a check of an option's values. `validator` names a function of `workers.settings.setting_types`."""

    def check_values(param: typer.CallbackParam, values: Any) -> Any:  # noqa: ANN401 - a text, a list of texts, or None
        from workers.settings import setting_types  # noqa: PLC0415 - start-up time

        for value in values if isinstance(values, list) else [] if values is None else [values]:
            try:
                getattr(setting_types, validator)(value)
            except ValueError as error:
                raise InvalidInput(get_field_name(param), expected=str(error), found=value) from None
        return values

    return check_values


Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; stored in the audit log.", callback=_check_reason)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Tell what would be done, and change nothing.")]
_MASTER_HELP = "A Spark cluster; by default that of the workers' settings."
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", callback=make_setting_type_check("validate_spark_master"), help=_MASTER_HELP
    ),
]
OneTopic = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="persistent://tenant/namespace/topic, or --all.", show_default=False),
]
AllTopics = Annotated[bool, typer.Option("--all", help="Of every topic.")]
Transaction = Annotated[
    str | None,
    typer.Option("--txn", metavar="TC:SEQ", help="As part of this open transaction.", callback=check_transaction),
]
_DURABLE_HELP = "Whether what is deleted leaves tombstones, and so never returns when the catalog is rebuilt."
DurableDelete = Annotated[
    bool | None, typer.Option("--durable-delete/--no-durable-delete", help=_DURABLE_HELP, show_default=False)
]
TopicFilter = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only what concerns this topic.")]
LedgerFilter = Annotated[int | None, number_option("--ledger", "Only what concerns this ledger.", metavar="ID")]


def select_topics(context: CommandContext, name: str | None, *, all_topics: bool) -> "list[Topic] | None":
    """Return the topic `name`, or `None` for `all_topics`. Raise `InvalidInput` unless exactly one of them is given."""
    if (name is None) is not all_topics:
        found = "neither" if name is None else f"{name} and --all"
        raise InvalidInput("topic", expected="the name of one topic, or --all", found=found)
    return None if name is None else [context.get_topic(name)]


def encode_topic(topic: str | None) -> str | None:
    """Return the encoded name of a topic. The topic need not exist. Raise `InvalidInput` for an invalid name."""
    return None if topic is None else TopicName.parse_existing(topic).encoded


def cut_rows_with_note(rows: Sequence[_Row], limit: int, order: str) -> Sequence[_Row]:
    """Return at most `limit` rows. If rows are cut, a note names the kept rows by `order`, for example "newest"."""
    if len(rows) > limit:
        print_note(f"there are more: shown are the {order} {limit:,}; --limit shows as many as you say")
    return rows[:limit]


def print_empty_list_note(context: CommandContext, subject: str, *, topic: str | None, ledger: int | None) -> None:
    """Write a note that no row matches the filters. The note says which of `topic` and `ledger` does not exist."""
    filters = [f"{kind} {value}" for kind, value in (("topic", topic), ("ledger", ledger)) if value is not None]
    if not filters:
        return
    unknown = []
    if topic is not None and not _is_known(lambda: context.get_topic(topic)):
        unknown.append("topic of this name")
    if ledger is not None and not _is_known(
        lambda: context.catalog.inspection.get_ledger_history(LedgerId(ledger), max_decisions=0)
    ):
        unknown.append("ledger of this id")
    because = f": there is no {' and no '.join(unknown)}" if unknown else ""
    print_note(f"no {subject} of {' and '.join(filters)}{because}")


def _is_known(look_up: Callable[[], object]) -> bool:
    try:
        look_up()
    except UnknownObject:
        return False
    return True
