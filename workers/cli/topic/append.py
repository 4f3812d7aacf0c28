"""`topic append`: entries from JSON lines, all of them checked before the first is written."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, Annotated

import typer

from logstore.errors import SextonError
from logstore.names import check_name
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode, Interrupted, failure_of
from workers.cli.options import TopicArgument, Transaction
from workers.cli.output import Answer, note
from workers.cli.progress import ProgressBar, watching
from workers.cli.topic.topics import topic

if TYPE_CHECKING:
    from logstore.log.entries import NewEntry
    from logstore.ports.catalog import Topic
    from logstore.positions import Position

_BATCH_BYTES = 16 * 1024 * 1024  # a batch of large payloads ends before its number of entries is reached

File = Annotated[str, typer.Option("--file", metavar="F", help="JSON lines; - is stdin.")]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, max=100_000, help="Entries in one append.")]
Producer = Annotated[str | None, typer.Option("--producer", metavar="P", help="Deduplicate by its sequence ids.")]


@dataclass(slots=True)
class _Progress:
    count: int = 0
    duplicates: int = 0
    first: "Position | None" = None
    last: "Position | None" = None
    lines: int = 0  # up to and including this line all is written

    def document(self) -> dict[str, object]:
        ends = {"first": self.first, "last": self.last}
        told = {name: None if position is None else str(position) for name, position in ends.items()}
        return {"count": self.count, **told, "duplicates": self.duplicates}


@command(
    topic,
    "append",
    "TOPIC --file orders.jsonl",
    """echo '{"key": "k", "payload": "v"}' | sexton topic append TOPIC --file -""",
    """echo '{"payload": "later", "deliver_at": "2030-01-01T00:00:00Z"}' | sexton topic append TOPIC --file -""",
)
def append(
    context: CommandContext,
    name: TopicArgument,
    *,
    file: File,
    batch: Batch = 1000,
    txn: Transaction = None,
    producer: Producer = None,
) -> Answer:
    """Append JSON lines: key, payload or payload_b64, deliver_at, sequence_id, properties.

    With deliver_at, an RFC 3339 time or milliseconds since 1970, an entry is delivered at that time, or at once if it
    has passed. Every line is checked first: a bad one stops the command before anything is written. With --txn nobody
    sees the entries until the transaction commits.
    """
    from logstore.transactions.transactions import TransactionId  # noqa: PLC0415 - start-up time
    from workers.cli.topic.json_lines import DeliveryLimit, parse_lines, rereadable  # noqa: PLC0415 - start-up time

    if producer is not None:
        check_name("producer", producer)
    done = _Progress()
    try:
        with rereadable(file) as source, watching("checking lines") as bar:
            limit = DeliveryLimit.from_now(context.settings.delayed_limit)
            lines = sum(1 for _ in parse_lines(source, with_producer=producer is not None, limit=limit))
            target = context.topic(name)
            if txn is not None:
                context.catalog.transactions.get(TransactionId.parse(txn))  # one that never was is bad input
            source.seek(0)
            return _append_all(context, target, _Lines(source, producer, lines, batch, txn), done, bar)
    except KeyboardInterrupt:
        return _stopped(done, Interrupted(), ExitCode.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class _Lines:
    source: IO[bytes]
    producer: str | None
    total: int  # entries that were checked: what the file gained since is not read
    batch: int
    txn: str | None

    def batches(self) -> "Iterator[tuple[int, list[NewEntry]]]":
        """The last line's number and the entries of each append."""
        from workers.cli.topic.json_lines import parse_lines  # noqa: PLC0415 - start-up time

        held: list[NewEntry] = []
        number = size = 0
        parsed = parse_lines(self.source, with_producer=self.producer is not None)
        for number, entry in islice(parsed, self.total):
            held.append(entry)
            size += entry.size_bytes
            if len(held) >= self.batch or size >= _BATCH_BYTES:
                yield number, held
                held, size = [], 0
        if held:
            yield number, held


def _append_all(context: CommandContext, target: "Topic", lines: _Lines, done: _Progress, bar: ProgressBar) -> Answer:
    from logstore.log.entries import ProducedEntries  # noqa: PLC0415 - start-up time
    from logstore.transactions.transactions import TransactionId  # noqa: PLC0415 - start-up time

    txn = TransactionId.parse(lines.txn) if lines.txn else None
    bar.say("appending")
    try:
        for number, entries in lines.batches():
            produced = ProducedEntries(entries=entries, producer=lines.producer, txn=txn)
            result = context.log.managed.append(target, produced)
            done.count += result.count
            done.duplicates += result.duplicates
            done.first, done.last = done.first or result.first, result.last or done.last
            done.lines = number
            bar.say("appending", done.count, lines.total)
    except SextonError as error:
        if not done.lines:
            raise
        return _stopped(done, error, ExitCode.PARTIAL)
    return Answer(document=done.document())


def _stopped(done: _Progress, error: SextonError, code: ExitCode) -> Answer:
    """Say which lines are written, and what stopped the next batch: interrupted, that one may be written too."""
    note(f"stopped after line {done.lines}: {error}", heading="error: ")
    told = {**done.document(), "written_to_line": done.lines, **failure_of(error).document()}
    return Answer(document=told, code=code)
