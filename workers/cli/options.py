"""Options that several commands share, and refusals of what this build lacks."""

from typing import Annotated

import typer

from logstore.errors import InvalidInput, Unsupported

_MOST_REASON = 2_000

TopicArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="persistent://tenant/namespace/topic, as a person writes it.")
]
SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUB", help="The subscription's name.")]


def _storable(reason: str) -> str:
    """What every database holds and every payload carries."""
    if len(reason) > _MOST_REASON or not all(char.isprintable() for char in reason):
        raise InvalidInput("reason", expected=f"at most {_MOST_REASON} printable characters", found=reason)
    return reason


Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; stored in the audit log.", callback=_storable)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would go and change nothing.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the workflow's result.")]
Transaction = Annotated[
    str | None, typer.Option("--txn", metavar="TC:SEQ", help="Transactions come with a later release: refused.")
]
DurableDelete = Annotated[
    bool | None,
    typer.Option(
        "--durable-delete/--no-durable-delete",
        help="Whether deletes leave tombstones; they come with a later release: only the plain delete is taken.",
        show_default=False,
    ),
]


def refuse_durable(durable_delete: bool | None) -> None:
    """Refuse a durable delete; a plain one is all there is until the record log exists.

    Raises:
        Unsupported: It was asked for.
    """
    if durable_delete:
        raise Unsupported("--durable-delete: durable deletes come with a later release; leave the option out")


def refuse_transaction(transaction: str | None) -> None:
    """Refuse work inside a transaction.

    Raises:
        Unsupported: A transaction was named.
    """
    if transaction is not None:
        raise Unsupported("--txn: transactions come with a later release; leave the option out")
