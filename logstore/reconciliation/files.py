"""Findings and fates as files: Parquet, read and written page by page, so that memory does not grow with their number.

A folder of findings is what the job `verify-findings` publishes. A finding's number is its position in it: files by
name, rows in order; so it is the same for every reader.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.errors import CorruptData
from logstore.positions import LedgerId
from logstore.reconciliation.findings import Fate, Finding, FindingKind
from logstore.whole_files import replace_atomically

SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("ledger_id", pa.int64()),
        ("copy", pa.string()),
        ("bucket", pa.string()),
        ("key", pa.string()),
        ("uuid", pa.string()),
        ("row_id", pa.int64()),
        ("topic", pa.string()),
        ("objects", pa.int64()),
        ("size_bytes", pa.int64()),
        ("newest_us", pa.int64()),
        ("statement", pa.string()),
        ("detail", pa.string()),
    ]
)
"""A finding as a row; `statement` is one JSON object."""

FATES: Final = pa.schema(
    [
        ("number", pa.int64()),
        ("fate", pa.string()),
        ("reason", pa.string()),
        ("objects", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)

PAGE: Final = 1_000
"""Findings of a page, which is a row group of a file, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What apply did about one finding."""

    number: int
    fate: Fate
    reason: str = ""
    objects: int = 0  # confirmed as deleted
    size_bytes: int = 0


@contextmanager
def _read(path: Path) -> Iterator[None]:
    """What a block cannot make of a file is the file's fault: it is damaged, gone, or none of ours."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{path}: expected findings, or what became of them, found {error}") from error


class FindingFiles:
    """The findings of one plan; every method raises `CorruptData` where a file is damaged, gone, or none of ours."""

    def __init__(self, folder: Path) -> None:
        """Read the files of this folder, which is published and does not change."""
        self._folder = folder

    @cached_property
    def _groups(self) -> list[tuple[Path, int, int]]:
        """File, row group and number of its first finding, in order."""
        found, number = [], 0
        for path in sorted(self._folder.glob("*.parquet")):
            with _read(path):
                metadata = pq.read_metadata(path)
            for group in range(metadata.num_row_groups):
                found.append((path, group, number))
                number += metadata.row_group(group).num_rows
        return found

    @property
    def pages(self) -> int:
        """How many there are."""
        return len(self._groups)

    def page(self, number: int) -> dict[int, Finding]:
        """Finding by number, at most `PAGE`.

        Args:
            number: Of the page, 0 to `pages` exclusive.
        """
        path, group, first = self._groups[number]
        with _read(path):
            rows = pq.ParquetFile(path).read_row_group(group).to_pylist()
            return {first + at: _finding(row) for at, row in enumerate(rows)}

    def totals(self) -> dict[FindingKind, tuple[int, int]]:
        """Findings and bytes of each kind, zeros too; two columns are read, a page at a time."""
        found = dict.fromkeys(FindingKind, (0, 0))
        for path, group, _ in self._groups:
            with _read(path):
                table = pq.ParquetFile(path).read_row_group(group, columns=["kind", "size_bytes"])
                counts = table.group_by("kind").aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
                for row in counts.to_pylist():
                    rows, size = found[FindingKind(row["kind"])]
                    more = (row["size_bytes_count"], row["size_bytes_sum"] or 0)
                    found[FindingKind(row["kind"])] = (rows + more[0], size + more[1])
        return found

    def all(self, kind: FindingKind | None = None) -> Iterator[tuple[int, Finding]]:
        """Every finding with its number, of one kind if asked, page by page."""
        for number in range(self.pages):
            for at, finding in self.page(number).items():
                if kind in {None, finding.kind}:
                    yield at, finding


def _finding(row: Mapping[str, Any]) -> Finding:
    ledger_id = row["ledger_id"]
    return Finding(
        **{
            **row,
            "kind": FindingKind(row["kind"]),
            "ledger_id": None if ledger_id is None else LedgerId(ledger_id),
            "statement": json.loads(row["statement"] or "{}"),
        }
    )


def as_table(findings: Sequence[Finding]) -> pa.Table:
    """Findings as rows of `SCHEMA`."""
    rows = [
        {name: getattr(one, name) for name in SCHEMA.names}
        | {"kind": one.kind.value, "statement": json.dumps(dict(one.statement), sort_keys=True)}
        for one in findings
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


class FateFiles:
    """What became of a plan's findings, a file a page; a page that is written again replaces itself by the same."""

    def __init__(self, folder: Path) -> None:
        """Read and write files of this folder."""
        self._folder = folder

    def put(self, page: int, ended: Sequence[Ended]) -> None:
        """Keep what became of a page: the whole file or none of it, whenever the process dies."""
        self._folder.mkdir(parents=True, exist_ok=True)
        rows = [{name: getattr(one, name) for name in FATES.names} | {"fate": one.fate.value} for one in ended]
        with replace_atomically(self._path(page)) as new:
            pq.write_table(pa.Table.from_pylist(rows, schema=FATES), new)

    def page(self, page: int) -> dict[int, Ended] | None:
        """What became of a page's findings by number, or None where nothing was kept of it yet.

        Raises:
            CorruptData: The file is damaged, or none of ours.
        """
        path = self._path(page)
        if not path.exists():
            return None
        with _read(path):
            rows = pq.read_table(path, partitioning=None).to_pylist()
            return {row["number"]: Ended(**{**row, "fate": Fate(row["fate"])}) for row in rows}

    def _path(self, page: int) -> Path:
        return self._folder / f"page-{page:08d}.parquet"
