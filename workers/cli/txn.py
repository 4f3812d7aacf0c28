"""Group `txn`: transactions, and the participants that still have to be told."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput, SextonError
from logstore.ports.catalog.deletion import AuditCause
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState, check_timeout
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.job_commands import CommandLineJob, JobOrAnswer, answer_topic_builds
from workers.cli.output import Answer, print_note, show_progress_bar
from workers.cli.shared_options import (
    AllTopics,
    Master,
    OneTopic,
    Reason,
    check_transaction,
    cut_rows_with_note,
    select_topics,
)
from workers.human_readable_values import (
    decode_topic_name,
    format_table_cell,
    select_fields,
)
from workers.settings import parse_duration

if TYPE_CHECKING:
    from logstore.catalog.transactions.sql_transactions import Transactions
    from logstore.ports.catalog.transactions import StoredTransaction
    from workers.client import Sexton

txn = create_command_group("txn")

_STATES = ("OPEN", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED")
_REPORT_INTERVAL_S = 10.0


def _check_participant(text: str) -> str:
    return str(Participant.parse(text))


def _check_state(state: str | None) -> str | None:
    if state is not None and state.upper() not in _STATES:
        raise InvalidInput("state", expected=f"one of {', '.join(_STATES)}", found=state)
    return None if state is None else state.upper()


Txn = Annotated[str, typer.Argument(metavar="TC:SEQ", callback=check_transaction, help="As `txn begin` printed it.")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="T", help="Aborted unless it is decided by then.")]
OfState = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", callback=_check_state, help=f"Only those: {', '.join(_STATES)}."),
]
_PARTICIPANT_HELP = "Topic id, or topic id/subscription, as `txn show` has it."
ParticipantOption = Annotated[
    str, typer.Option("--participant", metavar="P", callback=_check_participant, help=_PARTICIPANT_HELP)
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="The most to show, by id.")]


@command(txn, "begin", "", "--timeout 10m --json")
def begin_transaction(context: CommandContext, *, timeout: Timeout = "60s") -> Answer:
    """Open a transaction. Use its id with `topic append --txn` and `topic ack --txn`."""
    timeout_s = parse_duration(timeout, "timeout")
    check_timeout(timeout_s)
    context.require_store()

    async def open_transaction(client: "Sexton") -> Answer:
        transactions = client.transactions(context.log)
        txn_id = await transactions.begin(timeout_s)
        await transactions.wait_for_sent_wake_ups()
        return Answer(document={"txn": str(txn_id)})

    return context.run_with_client(open_transaction)


@command(txn, "commit", "3:17")
def commit_transaction(context: CommandContext, transaction: Txn) -> Answer:
    """Make all changes of a transaction visible at once, and wait until every participant is told."""
    return _commit_or_abort(context, transaction, commit=True)


@command(txn, "abort", "3:17")
def abort_transaction(context: CommandContext, transaction: Txn) -> Answer:
    """Discard all changes of a transaction, and wait until every participant is told."""
    return _commit_or_abort(context, transaction, commit=False)


def _commit_or_abort(context: CommandContext, txn_id_text: str, *, commit: bool) -> Answer:
    context.require_store()

    async def decide(client: "Sexton") -> Answer:
        import asyncio  # noqa: PLC0415 - start-up time

        transactions, txn_id = client.transactions(context.log), TransactionId.parse(txn_id_text)
        report = asyncio.create_task(
            report_owed_participants_until_cancelled(context.catalog.transactions, txn_id, print_note)
        )
        try:
            with show_progress_bar(f"telling the participants of {txn_id_text}"):
                state = await (transactions.commit if commit else transactions.abort)(txn_id)
        except asyncio.CancelledError:
            status = f"`sexton txn show {txn_id_text}` says how far it is"
            print_note(f"no longer waiting; what was decided of {txn_id_text} stays, and {status}")
            raise
        finally:
            report.cancel()
        await transactions.wait_for_sent_wake_ups()
        return Answer(document={"state": state.value})

    return context.run_with_client(decide)


async def report_owed_participants_until_cancelled(
    transactions: "Transactions",
    txn_id: "TransactionId",
    say: Callable[[str], None],
    *,
    interval_s: float = _REPORT_INTERVAL_S,
) -> None:
    import asyncio  # noqa: PLC0415 - start-up time

    status = ""
    while True:
        await asyncio.sleep(interval_s)
        try:
            transaction = await asyncio.to_thread(transactions.get_transaction, txn_id)
        except SextonError:  # the command itself reports the error
            continue
        cause = next(
            (f"{decode_topic_name(owed.topic)}: {owed.last_error}" for owed in transaction.owed if owed.last_error),
            "no worker has tried; `sexton status` says whether one runs",
        )
        counts = f"{len(transaction.owed):,} of {len(transaction.participants):,}"
        previous, status = status, f"{counts} participants are not told yet: {cause}"
        if transaction.owed and transaction.decided_us is not None and status != previous:
            say(f"{txn_id} is {transaction.state.value}, which readers see already; {status}")


@command(txn, "resolve", "3:17 --participant 7", "3:17 --participant 7/billing")
def resolve_participant(
    context: CommandContext, transaction: Txn, *, participant: ParticipantOption, reason: Reason = ""
) -> Answer:
    """Settle a participant of a decided transaction by hand. The participant's log gets no transaction marker."""
    context.require_store()
    cause = AuditCause(actor=context.actor, reason=reason, workflow_id="")
    resolved = context.catalog.transactions.settle_untold_participant(
        TransactionId.parse(transaction), Participant.parse(participant), cause
    )
    # Also wake the broadcast of a final transaction, which otherwise waits for its next attempt.
    context.run_with_client(lambda client: client.broadcast_transaction(resolved.txn))
    return _answer_transaction(resolved)


@command(txn, "list", "", "--state COMMITTING --json")
def list_transactions(context: CommandContext, *, state: OfState = None, limit: Limit = 100) -> Answer:
    """List unfinished transactions, or the transactions of one state."""
    states = [] if state is None else [TransactionState(state)]
    transactions = cut_rows_with_note(
        context.catalog.transactions.list_transactions(states=states, limit=limit + 1), limit, "first"
    )
    display = [_make_transaction_display_row(transaction) for transaction in transactions]
    rows = [make_transaction_document(transaction) for transaction in transactions]
    return Answer(document=rows, display=display, columns_below=("owed",), empty="no transactions")


@command(txn, "show", "3:17", "3:17 --json")
def show_transaction(context: CommandContext, transaction: Txn) -> Answer:
    """Show a transaction with its participants, and which of them are still owed."""
    return _answer_transaction(context.catalog.transactions.get_transaction(TransactionId.parse(transaction)))


@command(txn, "snapshot", "TOPIC", '--all --reason "after a restore" --json')
def build_transaction_snapshots(
    context: CommandContext,
    name: OneTopic = None,
    *,
    all_topics: AllTopics = False,
    master: Master = None,
    reason: Reason = "",
) -> JobOrAnswer:
    """Rebuild the transaction buffers of one topic or of all topics from the log, and store them as snapshots.

    Workers write snapshots by themselves after changes. This command reads whole logs, and repairs damaged snapshots.
    """
    topics = select_topics(context, name, all_topics=all_topics)
    context.require_store()
    return CommandLineJob(
        lambda client: client.build_transaction_snapshots(
            topics, master=master or "", reason=reason, actor=context.actor
        ),
        "building snapshots",
        answer_topic_builds,
    )


def make_transaction_document(transaction: "StoredTransaction") -> dict[str, Any]:
    times = "created=created_us deadline=deadline_us decided=decided_us finished=finished_us"
    return {
        "txn": str(transaction.txn),
        **select_fields(transaction, f"state {times} timed_out attempts last_error trace_id"),
        "owed": 0 if transaction.decided_us is None else len(transaction.owed),
        "participants": [
            {
                "participant": str(stored.participant),
                "topic": decode_topic_name(stored.topic),
                "subscription": stored.participant.subscription or None,
                "acknowledged": sum(map(len, stored.positions.values())),
                **select_fields(stored, "settled=settled_us how=settlement last_error"),
            }
            for stored in transaction.participants
        ],
    }


def _answer_transaction(transaction: "StoredTransaction") -> Answer:
    document = make_transaction_document(transaction)
    rows = document["participants"]
    participants = Answer(
        document=rows,
        columns="participant acknowledged settled how topic last_error",
        title="participants",
        empty="no participants",
        columns_below=("topic", "last_error"),
    )
    display = {name: value for name, value in document.items() if name != "participants"}
    return Answer(document=document, display=display, sections=[participants])


def _make_transaction_display_row(transaction: "StoredTransaction") -> dict[str, object]:
    owed = [
        f"{decode_topic_name(stored.topic)} ({stored.participant}): {stored.last_error or 'not told yet'}"
        for stored in transaction.owed
    ]
    return {
        "txn": str(transaction.txn),
        **select_fields(transaction, "state deadline=deadline_us"),
        "participants": format_table_cell(len(transaction.participants)),
        "owed": "; ".join(owed) if transaction.state is not TransactionState.OPEN else "",
    }
