"""What each job says of itself before it runs: one sentence of Markdown, for whoever opens it in the Web UI."""

from functools import singledispatch

from workflows.deletion.values import (
    DeleteLedgerInput,
    DeleteLedgersInput,
    DeleteTopicInput,
    SweepDeletionsInput,
    TrimTopicInput,
    TrimTopicsInput,
)
from workflows.offload.values import OffloadLedgerInput, OffloadTopicInput


@singledispatch
def details_of(request: object) -> str:
    """What the job of this input will do, and the command that shows how far it is; its *static details*.

    Raises:
        TypeError: No job of ours takes such an input.
    """
    raise TypeError(f"no job takes a {type(request).__name__}")


@details_of.register
def _(request: TrimTopicInput) -> str:
    return (
        f"Deletes the ledgers that retention lets go of `{request.topic}`, and `sexton topic show {request.topic}` "
        "shows those that are left."
    )


@details_of.register
def _(_: TrimTopicsInput) -> str:
    return (
        "Deletes the ledgers that retention lets go, of all topics, and `sexton deletion inflight` "
        "shows how many are left to delete."
    )


@details_of.register
def _(request: DeleteTopicInput) -> str:
    return f"Deletes `{request.topic}` with every ledger of every component, and `sexton deletion list` shows them."


@details_of.register
def _(request: DeleteLedgersInput) -> str:
    whose = f"`{request.topic}`" if request.topic else "several topics"
    return f"Deletes ledgers of {whose} from storage, and `sexton deletion list` shows each with its outcome."


@details_of.register
def _(request: DeleteLedgerInput) -> str:
    key = request.key
    return (
        f"Deletes the `{key.copy}` copy of ledger {key.ledger_id} from storage, trying again where that fails, and "
        f"`sexton ledger explain {key.ledger_id}` shows all that is known of it."
    )


@details_of.register
def _(_: SweepDeletionsInput) -> str:
    return (
        "Takes up deletions that no workflow works on and forgets old ones, and `sexton deletion inflight` "
        "shows how many are left."
    )


@details_of.register
def _(request: OffloadTopicInput) -> str:
    return (
        f"Copies closed ledgers of `{request.topic}` to the tiered bucket, and `sexton ledger list {request.topic}` "
        "shows which copies each has."
    )


@details_of.register
def _(request: OffloadLedgerInput) -> str:
    return (
        f"Copies ledger {request.ledger_id} to the tiered bucket, and `sexton ledger explain {request.ledger_id}` "
        "shows its copies."
    )
