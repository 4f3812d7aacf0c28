"""`txn`: transactions from the command line, and what they still owe to whom."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.errors import InvalidInput, SextonError
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.jobs import Asked, Job, built, job, one_or_all
from workers.cli.options import AllTopics, Master, OneTopic, Reason, known_transaction
from workers.cli.output import Answer, note
from workers.cli.progress import watching
from workers.pages.texts import decode_topic_name, format_time_us, format_value, select_fields
from workers.settings import parse_duration

if TYPE_CHECKING:
    from logstore.ports.catalog import StoredParticipant, StoredTransaction, Transactions
    from logstore.transactions.transactions import TransactionId
    from workers.client import Sexton

txn = group("txn", "Transactions: begin, commit, abort, and see what they still owe.")

_STATES = ("OPEN", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED")
_MOST = 10_000
_EVERY_S = 10.0
_NOBODY = "no worker has tried; `sexton status` says whether one runs"


def _known_participant(text: str) -> str:
    from logstore.transactions.transactions import Participant  # noqa: PLC0415 - start-up time

    return str(Participant.parse(text))


def _known_state(state: str | None) -> str | None:
    if state is not None and state.upper() not in _STATES:
        raise InvalidInput("state", expected=f"one of {', '.join(_STATES)}", found=state)
    return None if state is None else state.upper()


Txn = Annotated[str, typer.Argument(metavar="TC:SEQ", callback=known_transaction, help="As `txn begin` printed it.")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="T", help="Aborted unless it is decided by then.")]
OfState = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", callback=_known_state, help=f"Only those: {', '.join(_STATES)}."),
]
ParticipantOption = Annotated[
    str,
    typer.Option(
        "--participant",
        metavar="P",
        callback=_known_participant,
        help="Topic id, or topic id/subscription, as `txn show` has it.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=_MOST, help="The most to show, by id.")]


def _parsed(text: str) -> "TransactionId":
    from logstore.transactions.transactions import TransactionId  # noqa: PLC0415 - start-up time

    return TransactionId.parse(text)


@command(txn, "begin", "", "--timeout 10m --json")
def begin(context: CommandContext, *, timeout: Timeout = "60s") -> Answer:
    """Open a transaction; use its id with `topic append --txn` and `topic ack --txn`."""
    from logstore.transactions.transactions import check_timeout  # noqa: PLC0415 - start-up time

    seconds = parse_duration(timeout, "timeout")
    check_timeout(seconds)
    context.require_store()

    async def work(client: "Sexton") -> Answer:
        transactions = client.transactions(context.log)
        opened = await transactions.begin(seconds)
        await transactions.flush()
        return Answer(document={"txn": str(opened)})

    return context.with_client(work)


@command(txn, "commit", "3:17")
def commit(context: CommandContext, transaction: Txn) -> Answer:
    """Make all of a transaction visible at once, and wait until every participant has it."""
    return _end(context, transaction, commit=True)


@command(txn, "abort", "3:17")
def abort(context: CommandContext, transaction: Txn) -> Answer:
    """Let nothing of a transaction be visible, and wait until every participant has it."""
    return _end(context, transaction, commit=False)


def _end(context: CommandContext, text: str, *, commit: bool) -> Answer:
    context.require_store()

    async def work(client: "Sexton") -> Answer:
        import asyncio  # noqa: PLC0415 - start-up time

        transactions, transaction = client.transactions(context.log), _parsed(text)
        asked = transactions.commit if commit else transactions.abort
        telling = asyncio.create_task(say_what_is_owed(context.catalog.transactions, transaction, note))
        try:
            with watching(f"telling the participants of {text}"):
                state = await asked(transaction)
        except asyncio.CancelledError:
            note(
                f"no longer waiting; what was decided of {text} stays, and `sexton txn show {text}` says how far it is"
            )
            raise
        finally:
            telling.cancel()
        await transactions.flush()
        return Answer(document={"state": state.value})

    return context.with_client(work)


async def say_what_is_owed(
    transactions: "Transactions", transaction: "TransactionId", say: Callable[[str], None], *, every_s: float = _EVERY_S
) -> None:
    """Tell a person who waits how many participants are not told yet, and why; once for each reason."""
    import asyncio  # noqa: PLC0415 - start-up time

    told = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            found = await asyncio.to_thread(transactions.get, transaction)
        except SextonError:  # the command itself meets it, and says so
            continue
        why = next(
            (f"{decode_topic_name(one.topic)}: {one.last_error}" for one in found.owed if one.last_error), _NOBODY
        )
        told, before = f"{len(found.owed):,} of {len(found.participants):,} participants are not told yet: {why}", told
        if found.owed and found.decided_us is not None and told != before:
            say(f"{transaction} is {found.state.value}, which readers see already; {told}")


@command(txn, "resolve", "3:17 --participant 7", "3:17 --participant 7/billing")
def resolve(
    context: CommandContext, transaction: Txn, *, participant: ParticipantOption, reason: Reason = ""
) -> Answer:
    """Count a participant of a decided transaction as told, by hand: its log will not tell how it ended."""
    from logstore.ports.catalog import Cause  # noqa: PLC0415 - start-up time
    from logstore.transactions.transactions import Participant  # noqa: PLC0415 - start-up time

    context.require_store()
    cause = Cause(actor=context.actor, reason=reason, workflow_id="")
    found = context.catalog.transactions.resolve(_parsed(transaction), Participant.parse(participant), cause)

    async def retry(
        client: "Sexton",
    ) -> None:  # also of one that is final now: its broadcast waits for the next attempt
        await client.broadcast_transaction(found.txn)

    context.with_client(retry)
    return _shown_whole(found)


@command(txn, "list", "", "--state COMMITTING --json")
def list_(context: CommandContext, *, state: OfState = None, limit: Limit = 100) -> Answer:
    """List transactions that are not over, or those of one state."""
    from logstore.transactions.transactions import TransactionState  # noqa: PLC0415 - start-up time

    states = [] if state is None else [TransactionState(state)]
    found = context.catalog.transactions.many(states=states, limit=limit + 1)
    if len(found) > limit:
        note(f"there are more: shown are the first {limit:,}; --limit shows as many as you say")
    rows = [_document(one) for one in found[:limit]]
    return Answer(
        document=rows, shown=[_shown(one) for one in found[:limit]], beneath=("owed",), empty="no transactions"
    )


@command(txn, "show", "3:17", "3:17 --json")
def show(context: CommandContext, transaction: Txn) -> Answer:
    """Show a transaction with its participants, and which of them are still owed."""
    return _shown_whole(context.catalog.transactions.get(_parsed(transaction)))


@job(txn, "snapshot", "TOPIC", '--all --reason "after a restore" --json')
def snapshot(
    context: CommandContext,
    name: OneTopic = None,
    *,
    all_topics: AllTopics = False,
    master: Master = None,
    reason: Reason = "",
) -> Asked:
    """Rebuild what is open and what is aborted from the log of a topic, or of all, and keep it as a snapshot.

    Workers write snapshots by themselves after changes; this reads whole logs, and mends a snapshot that is damaged.
    """
    topics = one_or_all(context, name, all_topics=all_topics)
    context.require_store()
    return Job(
        lambda client: client.build_transaction_snapshots(
            topics, master=master or "", reason=reason, actor=context.actor
        ),
        "building snapshots",
        built,
    )


def _document(found: "StoredTransaction") -> dict[str, Any]:
    return {
        "txn": str(found.txn),
        "state": found.state.value,
        "created": format_time_us(found.created_us),
        "deadline": format_time_us(found.deadline_us),
        "decided": None if found.decided_us is None else format_time_us(found.decided_us),
        "finished": None if found.finished_us is None else format_time_us(found.finished_us),
        **select_fields(found, "timed_out attempts last_error trace_id"),
        "owed": 0 if found.decided_us is None else len(found.owed),
        "participants": [_participant(one) for one in found.participants],
    }


def _shown_whole(found: "StoredTransaction") -> Answer:
    """The transaction, and for people its participants in a table in which names and errors have lines of their own."""
    document = _document(found)
    rows: list[dict[str, Any]] = document["participants"]
    columns = ("participant", "acknowledged", "settled", "how", "topic", "last_error")
    participants = Answer(
        document=rows,
        shown=[{name: row[name] for name in columns} for row in rows],
        title="participants",
        empty="no participants",
        beneath=("topic", "last_error"),
    )
    shown = {name: value for name, value in document.items() if name != "participants"}
    return Answer(document=document, shown=shown, more=[participants])


def _participant(one: "StoredParticipant") -> dict[str, Any]:
    return {
        "participant": str(one.participant),
        "topic": decode_topic_name(one.topic),
        "subscription": one.participant.subscription or None,
        "acknowledged": sum(map(len, one.positions.values())),
        "settled": None if one.settled_us is None else format_time_us(one.settled_us),
        "how": None if one.how is None else one.how.value,
        "last_error": one.last_error,
    }


def _shown(found: "StoredTransaction") -> dict[str, object]:
    owed = [
        f"{decode_topic_name(one.topic)} ({one.participant}): {one.last_error or 'not told yet'}" for one in found.owed
    ]
    return {
        "txn": str(found.txn),
        "state": found.state.value,
        "deadline": format_time_us(found.deadline_us),
        "participants": format_value(len(found.participants)),
        "owed": "; ".join(owed) if found.state.value != "OPEN" else "",
    }
