"""Delayed messages beside the bare thing: `python -m tests.benchmarks.delayed_speed [merge|bytes|recovery|build]`.

Speeds of merges are of CPU seconds, so that what else the machine does matters little. `recovery=10000000` says how
many messages there are, for 1 KiB of disk each; the same of `build`. About five minutes on two cores.
"""

import heapq
import io
import json
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from logstore.cursors.cursor_state import pack_acknowledged, unpack_acknowledged
from logstore.delayed.delayed_rows import CompressedRows, DelayedRows, merge_sorted_sources
from logstore.delayed.entry_bitmaps import add_entries
from logstore.delayed.snapshot_file import IndexSnapshotWriter, parse_snapshot_footer, read_segment
from logstore.positions import LedgerId, Position, TopicId
from tests.benchmarks.delayed_on_stack import building, recovery
from tests.benchmarks.stage import stage
from workers.settings import load_settings

_MERGED: Final = 5_000_000  # messages of each of two buckets
_HEAPED: Final = 500_000
_STORED: Final = 2_000_000
_LEDGER: Final = 50_000  # entries of one
_WINDOW: Final = 100_000
_ROUNDS: Final = 5
_START_MS: Final = 1_700_000_000_000
_DAY_MS: Final = 86_400_000
_TOPIC: Final = TopicId(1)
_FIRST, _LAST = Position(LedgerId(0), 0), Position(LedgerId(2**62), 0)


def merging() -> dict[str, Any]:
    """Two buckets into one, in memory and from file to file, beside one sort of all rows and beside a heap."""
    one, two = _messages(_MERGED, first_ledger=1, seed=1), _messages(_MERGED, first_ledger=10_000, seed=2)
    rows = len(one) + len(two)
    packed = [pack_acknowledged(part.to_bitmaps()) for part in (one, two)]
    rounds = [(_cpu(lambda: _sorted(one, two)), _cpu(lambda: _merged((one, two), packed))) for _ in range(_ROUNDS)]
    bare, ours = (statistics.median(each) for each in zip(*rounds, strict=True))
    few = [part.slice(0, _HEAPED) for part in (one, two)]
    heap = _cpu(lambda: _heaped(few)) * rows / (2 * _HEAPED)
    files = [_written(part) for part in (one, two)]
    whole = _cpu(lambda: _file_to_file(files))
    peaks = {
        f"{count:,} messages": round(_peak_mb(count), 1) for count in (_MERGED // 10, _MERGED // 5, 2 * _MERGED // 5)
    }
    _tell("merge: " + ", ".join(f"{rows / each / 1e6:.1f}M rows/s {how}" for how, each in _named(ours, bare, heap)))
    return {
        "ours_rows_s": round(rows / ours),
        "bare_sort_rows_s": round(rows / bare),
        "heapq_rows_s": round(rows / heap),
        "ratio_to_sort": round(bare / ours, 2),
        "ratio_to_heapq": round(heap / ours, 1),
        "file_to_file_rows_s": round(rows / whole),
        "file_to_file_ratio_to_sort": round(bare / whole, 2),
        "peak_mb_file_to_file": peaks,
    }


def _named(ours: float, bare: float, heap: float) -> list[tuple[str, float]]:
    return [("with bitmaps", ours), ("sorted at once", bare), ("by a heap", heap)]


def _sorted(one: DelayedRows, two: DelayedRows) -> tuple[Any, ...]:
    columns = [np.concatenate(both) for both in zip(one.columns(), two.columns(), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return tuple(column[order] for column in columns)


def _merged(parts: Sequence[DelayedRows], packed: Sequence[bytes]) -> bytes:
    """Windows, and the bitmaps of all, packed: the sources' footers have theirs, and a merge unites them."""
    found: dict[LedgerId, Any] = {}
    for one in packed:
        add_entries(found, unpack_acknowledged(one))
    for _ in merge_sorted_sources([_windows(part) for part in parts]):
        pass
    return pack_acknowledged(found)


def _heaped(parts: Sequence[DelayedRows]) -> None:
    lists = [list(zip(*(column.tolist() for column in part.columns()), strict=True)) for part in parts]
    for _ in heapq.merge(*lists):
        pass


def _file_to_file(files: Sequence[bytes]) -> None:
    _merge_files(files, io.BytesIO())


def _merge_files(files: Sequence[bytes], sink: Any) -> None:
    known: dict[LedgerId, Any] = {}
    for file in files:
        add_entries(known, parse_snapshot_footer(pq.read_metadata(io.BytesIO(file)), "bench").bitmaps)
    writer = IndexSnapshotWriter(sink, _TOPIC, _FIRST, _LAST, entries=known)
    for part in merge_sorted_sources([_segments(file) for file in files]):
        writer.add_rows(part)
    writer.close()


def _peak_mb(count: int) -> float:
    """What a merge from file to file holds at most, without the file that it writes."""
    files = [_written(_messages(count // 2, first_ledger=ledger, seed=ledger)) for ledger in (1, 10_000)]
    tracemalloc.start()
    _merge_files(files, _Counted())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


class _Counted(io.RawIOBase):
    """A file that keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size


def sizes() -> dict[str, Any]:
    """Bytes a message, stored with bitmaps and all else, and loaded; by how delivery times and entries are spread."""
    kinds: dict[str, Callable[[], DelayedRows]] = {
        "one delay (typical)": lambda: _messages(_STORED, step_ms=7),
        "whole minutes of an hour (typical)": lambda: _messages(_STORED, round_ms=60_000, span_ms=3_600_000),
        "whole minutes of a day": lambda: _messages(_STORED, round_ms=60_000),
        "whole seconds of an hour": lambda: _messages(_STORED, round_ms=1_000, span_ms=3_600_000),
        "any millisecond of a day": lambda: _messages(_STORED),
        "any millisecond, 1 entry of 10": lambda: _messages(_STORED, every=10),
        "any millisecond, 1 entry of 100": lambda: _messages(_STORED // 10, every=100),
        "nothing in common (worst)": _worst,
    }
    found = {}
    for name, made in kinds.items():
        rows = made()
        file = _written(rows)
        loaded = [(CompressedRows.from_rows(part).memory_bytes, len(part)) for part in _segments(file)]
        found[name] = {
            "stored": round(len(file) / len(rows), 2),
            "loaded": round(sum(size for size, _ in loaded) / len(rows), 2),
            "loaded_most_of_a_segment": round(max(size / count for size, count in loaded), 2),
        }
        _tell(f"bytes: {name}: {found[name]['stored']} stored, {found[name]['loaded']} loaded")
    return {"bytes_a_message": found, "beside": {"loaded": 24, "stored": 16}}


def _messages(
    count: int,
    *,
    first_ledger: int = 1,
    seed: int = 0,
    every: int = 1,
    span_ms: int = _DAY_MS,
    round_ms: int = 1,
    step_ms: int = 0,
) -> DelayedRows:
    """Messages of whole ledgers, of which each `every`-th entry is delayed: by one delay, or to any time of a span."""
    random = np.random.default_rng(seed)
    numbers = np.arange(count, dtype=np.int64) * every
    if every > 1:
        numbers += random.integers(0, every, count)
    times = numbers // every * step_ms if step_ms else random.integers(0, span_ms, count) // round_ms * round_ms
    return DelayedRows.from_columns(times + _START_MS, numbers // _LEDGER + first_ledger, numbers % _LEDGER)


def _worst() -> DelayedRows:
    """Each message in a ledger of its own, at any entry, at any time of 49 days."""
    random = np.random.default_rng(3)
    ledgers = random.permutation(2**22)[: _STORED // 10] * 1_000
    return DelayedRows.from_columns(
        random.integers(0, 2**32, len(ledgers)) + _START_MS, ledgers, random.integers(0, 2**32 - 1, len(ledgers))
    )


def _windows(rows: DelayedRows) -> Iterator[DelayedRows]:
    for at in range(0, len(rows), _WINDOW):
        yield rows.slice(at, at + _WINDOW)


def _written(rows: DelayedRows) -> bytes:
    sink = io.BytesIO()
    writer = IndexSnapshotWriter(sink, _TOPIC, _FIRST, _LAST)
    writer.add_rows(rows)
    writer.close()
    return sink.getvalue()


def _segments(file: bytes) -> Iterator[DelayedRows]:
    source = io.BytesIO(file)
    metadata = pq.read_metadata(source)
    footer = parse_snapshot_footer(metadata, "bench")
    for number in range(len(footer.segments)):
        yield read_segment(source, number, footer=footer, metadata=metadata, name="bench")


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _tell(line: str) -> None:
    """Say how far it is; stdout has the one document."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


_MEASURES: Final[dict[str, Callable[[], dict[str, Any]]]] = {"merge": merging, "bytes": sizes}
_STAGED: Final = {"recovery": (recovery, 1_000_000), "build": (building, 1_000_000)}
"""On a stack of their own, and with how many messages."""


def main(names: Sequence[str]) -> dict[str, Any]:
    """Each by its name, or all."""
    found = {}
    for asked in names or (*_MEASURES, *_STAGED):
        name, _, count = asked.partition("=")
        if name in _MEASURES:
            found[name] = _MEASURES[name]()
            continue
        measure, usual = _STAGED[name]
        with stage(load_settings({}, os.environ, Path.cwd()).settings, workers=0) as on:
            found[name] = measure(on, int(count or usual), _tell)
    return found


if __name__ == "__main__":
    print(json.dumps({"delayed": main(sys.argv[1:])}, indent=1))  # noqa: T201
