"""`topic append`: entries from JSON lines, one object per line. All lines are checked before an entry is written.

A file is read twice, once to check all lines and once to append. Stdin is first copied into a temporary file.
"""

import base64
import binascii
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from io import BufferedReader
from itertools import count, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, NoReturn, TypeVar, cast

import typer

from logstore.atomic_files import open_regular_file
from logstore.errors import InvalidInput, SextonError
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.transactions.transaction_ids_and_states import TransactionId
from logstore.validated_names import check_producer_or_actor_name
from workers.cli.command_context import CommandContext
from workers.cli.command_errors import ExitCode, Interrupted, classify_error
from workers.cli.command_registration import command
from workers.cli.output import Answer, print_note, show_progress_bar
from workers.cli.shared_options import TopicArgument, Transaction
from workers.cli.topics import topic
from workers.human_readable_values import format_time_to_second, select_fields

if TYPE_CHECKING:
    from logstore.log.services.batched_appends import AppendResult
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

    def add(self, result: "AppendResult", last_line_number: int) -> None:
        self.count += result.count
        self.duplicates += result.duplicates
        self.first, self.last = self.first or result.first, result.last or self.last
        self.written_lines = last_line_number


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
    if producer is not None:
        check_producer_or_actor_name("producer", producer)
    transaction = None if txn is None else TransactionId.parse(txn)
    progress = _AppendProgress()
    try:
        with open_rereadable(file) as source, show_progress_bar("checking lines") as bar:
            limit = LatestDeliveryTime.from_now(context.settings.delayed_limit)
            total = sum(1 for _ in parse_entry_lines(source, with_producer=producer is not None, limit=limit))
            topic = context.get_topic(name)
            if transaction is not None:
                context.catalog.transactions.get_transaction(transaction)  # refuse an unknown transaction
            source.seek(0)
            bar.update("appending")
            lines = islice(parse_entry_lines(source, with_producer=producer is not None), total)  # no line added since
            for last_line_number, entries in _iterate_batches(lines, max_entries=batch):
                produced = ProducedEntries(entries=entries, producer=producer, txn=transaction)
                progress.add(context.log.topic_logs.append(topic, produced), last_line_number)
                bar.update("appending", progress.count, total)
    except KeyboardInterrupt:
        return _answer_partial_append(progress, Interrupted(), ExitCode.INTERRUPTED)
    except SextonError as error:
        if not progress.written_lines:
            raise
        return _answer_partial_append(progress, error, ExitCode.PARTIAL)
    return Answer(document=select_fields(progress, "count first last duplicates"))


def _iterate_batches(
    lines: Iterator[tuple[int, NewEntry]], *, max_entries: int
) -> Iterator[tuple[int, list[NewEntry]]]:
    """Yield batches of entries with the number of the last line of each batch."""
    batch: list[NewEntry] = []
    last_line_number = batch_bytes = 0
    for last_line_number, entry in lines:
        batch.append(entry)
        batch_bytes += entry.size_bytes
        if len(batch) >= max_entries or batch_bytes >= _MAX_BATCH_BYTES:
            yield last_line_number, batch
            batch, batch_bytes = [], 0
    if batch:
        yield last_line_number, batch


def _answer_partial_append(progress: _AppendProgress, error: SextonError, code: ExitCode) -> Answer:
    print_note(f"stopped after line {progress.written_lines}: {error}", heading="error: ")
    document = select_fields(progress, "count first last duplicates written_to_line=written_lines")
    document |= classify_error(error).to_document()
    return Answer(document=document, code=code)


MAX_LINE_BYTES = 16 * 1024 * 1024  # inclusive; a line is in memory as a whole

_Value = TypeVar("_Value")

_FIELDS = ("key", "payload", "payload_b64", "deliver_at", "sequence_id", "properties")
_MAX_INT = 2**63 - 1
_IN_MEMORY_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_RFC3339 = re.compile(
    r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})"
)
_LATEST_MS = 253_402_300_799_999  # the end of the year 9999
_DELIVERY_RULE = "an RFC 3339 time with its zone, or a number of milliseconds since 1970, up to the year 9999"


@contextmanager
def open_rereadable(path: str) -> Iterator[IO[bytes]]:
    """Open a regular file that can be read twice. For `-`, open a copy of stdin."""
    if path == "-":
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as copy:
            _copy_stdin(copy)
            yield copy
        return
    with ExitStack() as opened:
        with _refuse_unreadable_file(path):
            source = opened.enter_context(open_regular_file(Path(path)))
        yield source


def _copy_stdin(copy: IO[bytes]) -> None:
    """Copy stdin up to the first line that is too long. The parser then refuses this line."""
    stdin = cast("BufferedReader", sys.stdin.buffer)
    line_bytes, piece = 0, b"-"
    while piece and line_bytes <= MAX_LINE_BYTES + 2:
        with _refuse_unreadable_file("-"):
            piece = stdin.read1(_PIECE_BYTES)  # unlike `read1`, `read` would notice Ctrl-C only at the end of the input
        copy.write(piece)
        line_bytes = len(piece) - piece.rfind(b"\n") - 1 + (0 if b"\n" in piece else line_bytes)
    copy.seek(0)


@contextmanager
def _refuse_unreadable_file(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        expected = "a file that can be read, or - for stdin"
        raise InvalidInput("file", expected=expected, found=f"{path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class LatestDeliveryTime:
    """Latest accepted delivery time. A later time is probably a number in a wrong unit."""

    limit_s: int
    latest_ms: int  # milliseconds since 1970, inclusive

    @staticmethod
    def from_now(limit_s: int) -> "LatestDeliveryTime":
        return LatestDeliveryTime(limit_s, time.time_ns() // 1_000_000 + limit_s * 1_000)

    def check(self, deliver_at_ms: int) -> int:
        if deliver_at_ms > self.latest_ms:
            from workers.settings import format_duration  # noqa: PLC0415 - start-up time

            limit, latest = format_duration(self.limit_s), format_time_to_second(self.latest_ms * 1_000)
            raise ValueError(f"a time at most {limit} ahead, the setting delayed_limit: up to {latest}")
        return deliver_at_ms


def parse_entry_lines(
    source: IO[bytes], *, with_producer: bool, limit: LatestDeliveryTime | None = None
) -> Iterator[tuple[int, NewEntry]]:
    """Yield entries with their line numbers, which start at 1. Blank lines are skipped.

    With `with_producer`, lines may have sequence ids, which must ascend. `limit` bounds the delivery times.

    Raises:
        InvalidInput: A line is not an entry (`field` begins with `line N`), or cannot be read (`field` is `file`).
    """
    previous_id = -1
    for line_number in count(1):
        with _refuse_unreadable_file(f"line {line_number}"):
            raw = source.readline(MAX_LINE_BYTES + 2)
        if not raw:
            return
        if not raw.strip() and len(raw) <= MAX_LINE_BYTES:
            continue
        entry = _parse_entry(raw, line_number, limit)
        if entry.sequence_id is not None:
            if not with_producer:
                _refuse(line_number, "sequence_id", "--producer beside sequence ids", entry.sequence_id)
            if entry.sequence_id <= previous_id:
                _refuse(line_number, "sequence_id", f"more than {previous_id}, the one before", entry.sequence_id)
            previous_id = entry.sequence_id
        yield line_number, entry


def _parse_entry(raw: bytes, line_number: int, limit: LatestDeliveryTime | None) -> NewEntry:
    fields = {name: value for name, value in _parse_object(raw, line_number).items() if value is not None}
    for name in fields:
        if name not in _FIELDS:
            nearest = get_close_matches(name, _FIELDS, n=1, cutoff=0.0)[0]
            _refuse(line_number, name, f"a known field (nearest: {nearest})", name)
    return NewEntry(
        payload=_parse_payload(fields, line_number),
        key=_parse_field(fields, "key", line_number, _parse_text),
        deliver_at_ms=_parse_field(fields, "deliver_at", line_number, lambda value: _parse_limited_time(value, limit)),
        sequence_id=_parse_field(fields, "sequence_id", line_number, _parse_sequence_id),
        properties=_parse_field(fields, "properties", line_number, _parse_properties) or {},
    )


def _parse_object(raw: bytes, line_number: int) -> Mapping[str, object]:
    if len(raw.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        raise InvalidInput(
            f"line {line_number}", expected=f"at most {MAX_LINE_BYTES} bytes", found=f"{len(raw)} or more"
        )
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_refuse_duplicate_keys, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"line {line_number}", expected="UTF-8 text", found=raw[error.start : error.end]) from None
    except json.JSONDecodeError as error:
        expected = f"JSON ({error.msg} at column {error.colno})"
        raise InvalidInput(f"line {line_number}", expected=expected, found=text.strip()) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"line {line_number}", expected=f"JSON ({error})", found=text.strip()) from None
    if not isinstance(value, dict):
        raise InvalidInput(f"line {line_number}", expected="a JSON object", found=value)
    return value


def _refuse_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"key {name!r} only once")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"no {name}")


def _parse_field(
    fields: Mapping[str, object], name: str, line_number: int, parse: Callable[[object], _Value]
) -> _Value | None:
    if name not in fields:
        return None
    try:
        return parse(fields[name])
    except ValueError as error:
        _refuse(line_number, name, str(error), fields[name])


def _parse_payload(fields: Mapping[str, object], line_number: int) -> bytes:
    if ("payload" in fields) == ("payload_b64" in fields):
        _refuse(line_number, "payload", "either payload or payload_b64", sorted(fields))
    text = _parse_field(fields, "payload", line_number, _parse_text)
    if text is not None:
        return text.encode()
    payload = _parse_field(fields, "payload_b64", line_number, _parse_base64)
    assert payload is not None
    return payload


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("text")  # noqa: TRY004 - callers catch only `ValueError`
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("text that UTF-8 can hold") from None
    return value


def _parse_base64(value: object) -> bytes:
    try:
        return base64.b64decode(_parse_text(value), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("base64 with its padding") from None


def _parse_sequence_id(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INT:
        raise ValueError("a whole number from 0 to 2**63 - 1")
    return value


def _parse_properties(value: object) -> dict[str, str]:
    rule = "an object whose values are text"
    if not isinstance(value, dict):
        raise ValueError(rule)  # noqa: TRY004 - callers catch only `ValueError`
    try:
        return {_parse_text(name): _parse_text(item) for name, item in value.items()}
    except ValueError:
        raise ValueError(rule) from None


def _refuse(line_number: int, field: str, expected: str, found: object) -> NoReturn:
    raise InvalidInput(f"line {line_number}: {field}", expected=expected, found=found)


def _parse_limited_time(value: object, limit: LatestDeliveryTime | None) -> int:
    time_ms = parse_delivery_time(value)
    return time_ms if limit is None else limit.check(time_ms)


def parse_delivery_time(value: object) -> int:
    """Return a delivery time in milliseconds since 1970. A fraction is rounded up, so that no message is early."""
    time_ms = _parse_rfc3339(value) if isinstance(value, str) else value
    if not isinstance(time_ms, int) or isinstance(time_ms, bool) or not 0 <= time_ms <= _LATEST_MS:
        raise ValueError(_DELIVERY_RULE)
    return time_ms


def _parse_rfc3339(text: str) -> int:
    match = _RFC3339.fullmatch(text.upper())
    if not match:
        raise ValueError(_DELIVERY_RULE)
    try:
        second = datetime.fromisoformat(match["time"] + match["zone"].replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(_DELIVERY_RULE) from None
    nanoseconds = int((match["fraction"] or "").ljust(9, "0"))
    return int(second.timestamp()) * 1_000 + math.ceil(nanoseconds / 1_000_000)
