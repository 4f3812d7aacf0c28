"""`topic append`: entries from JSON lines. All lines are checked before the first entry is written."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, Annotated

import typer

from logstore.errors import SextonError
from logstore.validated_names import check_producer_or_actor_name
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.exit_codes import ExitCode, Interrupted, classify_error
from workers.cli.progress_bar import ProgressBar, show_progress_bar
from workers.cli.shared_options import TopicArgument, Transaction
from workers.cli.topic.topics import topic

if TYPE_CHECKING:
    from logstore.log.entries import NewEntry
    from logstore.ports.catalog.log import Topic
    from logstore.positions import Position

_MAX_BATCH_BYTES = 16 * 1024 * 1024  # bounds the number of entries in a batch of large messages

File = Annotated[str, typer.Option("--file", metavar="F", help="JSON lines; - is stdin.")]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, max=100_000, help="Entries in one append.")]
Producer = Annotated[str | None, typer.Option("--producer", metavar="P", help="Deduplicate by its sequence ids.")]


@dataclass(slots=True)
class _AppendProgress:
    count: int = 0
    duplicates: int = 0
    first: "Position | None" = None
    last: "Position | None" = None
    written_lines: int = 0

    def to_document(self) -> dict[str, object]:
        ends = {"first": self.first, "last": self.last}
        positions = {name: None if position is None else str(position) for name, position in ends.items()}
        return {"count": self.count, **positions, "duplicates": self.duplicates}


@command(
    topic,
    "append",
    "TOPIC --file orders.jsonl",
    """echo '{"key": "k", "payload": "v"}' | sexton topic append TOPIC --file -""",
    """echo '{"payload": "later", "deliver_at": "2030-01-01T00:00:00Z"}' | sexton topic append TOPIC --file -""",
)
def append_json_lines(
    context: CommandContext,
    name: TopicArgument,
    *,
    file: File,
    batch: Batch = 1000,
    txn: Transaction = None,
    producer: Producer = None,
) -> Answer:
    """Append JSON lines: key, payload or payload_b64, deliver_at, sequence_id, properties.

    deliver_at is the time of delivery: an RFC 3339 time, or milliseconds since 1970. A time in the past means at once.
    All lines are checked before the first entry is written. An entry with --txn is visible only after the commit.
    """
    from logstore.transactions.transaction_ids_and_states import TransactionId  # noqa: PLC0415 - start-up time
    from workers.cli.topic.json_lines import LatestDeliveryTime, open_rereadable, parse_entry_lines  # noqa: PLC0415

    if producer is not None:
        check_producer_or_actor_name("producer", producer)
    progress = _AppendProgress()
    try:
        with open_rereadable(file) as source, show_progress_bar("checking lines") as bar:
            limit = LatestDeliveryTime.from_now(context.settings.delayed_limit)
            entries = sum(1 for _ in parse_entry_lines(source, with_producer=producer is not None, limit=limit))
            topic = context.get_topic(name)
            if txn is not None:
                context.catalog.transactions.get_transaction(TransactionId.parse(txn))  # refuse an unknown transaction
            source.seek(0)
            return _append_batches(context, topic, _CheckedLines(source, producer, entries, batch, txn), progress, bar)
    except KeyboardInterrupt:
        return _answer_partial_append(progress, Interrupted(), ExitCode.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class _CheckedLines:
    source: IO[bytes]
    producer: str | None
    total: int  # number of checked entries; lines that were added later are not read
    batch: int
    txn: str | None

    def iterate_batches(self) -> "Iterator[tuple[int, list[NewEntry]]]":
        from workers.cli.topic.json_lines import parse_entry_lines  # noqa: PLC0415 - start-up time

        batch: list[NewEntry] = []
        last_line_number = batch_bytes = 0
        for last_line_number, entry in islice(
            parse_entry_lines(self.source, with_producer=self.producer is not None), self.total
        ):
            batch.append(entry)
            batch_bytes += entry.size_bytes
            if len(batch) >= self.batch or batch_bytes >= _MAX_BATCH_BYTES:
                yield last_line_number, batch
                batch, batch_bytes = [], 0
        if batch:
            yield last_line_number, batch


def _append_batches(
    context: CommandContext, topic: "Topic", lines: _CheckedLines, progress: _AppendProgress, bar: ProgressBar
) -> Answer:
    from logstore.log.entries import ProducedEntries  # noqa: PLC0415 - start-up time
    from logstore.transactions.transaction_ids_and_states import TransactionId  # noqa: PLC0415 - start-up time

    txn = TransactionId.parse(lines.txn) if lines.txn else None
    bar.update("appending")
    try:
        for last_line_number, entries in lines.iterate_batches():
            produced = ProducedEntries(entries=entries, producer=lines.producer, txn=txn)
            result = context.log.topic_logs.append(topic, produced)
            progress.count += result.count
            progress.duplicates += result.duplicates
            progress.first, progress.last = progress.first or result.first, result.last or progress.last
            progress.written_lines = last_line_number
            bar.update("appending", progress.count, lines.total)
    except SextonError as error:
        if not progress.written_lines:
            raise
        return _answer_partial_append(progress, error, ExitCode.PARTIAL)
    return Answer(document=progress.to_document())


def _answer_partial_append(progress: _AppendProgress, error: SextonError, code: ExitCode) -> Answer:
    lines = progress.written_lines
    print_note(f"stopped after line {lines}: {error}", heading="error: ")
    document = {**progress.to_document(), "written_to_line": lines, **classify_error(error).to_document()}
    return Answer(document=document, code=code)
