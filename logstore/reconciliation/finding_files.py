"""Parquet files of findings and of fates, read and written page by page in bounded memory.

The job `verify-findings` publishes a folder of findings. A finding's number is its position in this folder. Files are
ordered by name, and rows by position in the file. Every reader therefore computes the same numbers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.atomic_files import replace_atomically
from logstore.errors import CorruptData
from logstore.positions import LedgerId
from logstore.reconciliation.findings import STORE_KINDS, FateOfFinding, Finding, FindingFate, FindingKind

FINDING_SCHEMA: Final = pa.schema(
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
"""Columns of a finding. `statement` is one JSON object."""

FATE_SCHEMA: Final = pa.schema(
    [
        ("number", pa.int64()),
        ("fate", pa.string()),
        ("reason", pa.string()),
        ("objects", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)

FINDINGS_PER_PAGE: Final = 1_000
"""Maximum number of findings of a page. A page is one row group of a file."""


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{path}: expected findings, or what became of them, found {error}") from error


class FindingFiles:
    """Findings of one plan or scrub, in a folder that does not change.

    Every method raises `CorruptData` if a file is damaged or absent, or if another program wrote it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _page_locations(self) -> list[tuple[Path, int, int]]:
        """For each page, in order: file, row group, and number of the first finding."""
        groups, number = [], 0
        for path in sorted(self._folder.glob("*.parquet")):
            with _translate_errors(path):
                metadata = pq.read_metadata(path)
            for group in range(metadata.num_row_groups):
                groups.append((path, group, number))
                number += metadata.row_group(group).num_rows
        return groups

    @property
    def pages(self) -> int:
        return len(self._page_locations)

    def read_page(self, number: int, kind: FindingKind | None = None) -> dict[int, Finding]:
        """Return findings of page `number` by the number of the finding, of all kinds or of one. Numbers begin at 0."""
        path, group, first = self._page_locations[number]
        with _translate_errors(path):
            rows = pq.ParquetFile(path).read_row_group(group).to_pylist()
            return {first + index: _to_finding(row) for index, row in enumerate(rows) if kind in {None, row["kind"]}}

    def count_findings_and_bytes_by_kind(
        self, kinds: Iterable[FindingKind] = STORE_KINDS
    ) -> dict[FindingKind, tuple[int, int]]:
        """Return number and bytes of the findings by kind. `kinds` without findings have zeros. Read two columns."""
        totals = dict.fromkeys(kinds, (0, 0))
        for path, group, _ in self._page_locations:
            with _translate_errors(path):
                table = pq.ParquetFile(path).read_row_group(group, columns=["kind", "size_bytes"])
                counts = table.group_by("kind").aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
                for row in counts.to_pylist():
                    kind = FindingKind(row["kind"])
                    findings, size_bytes = totals[kind]
                    totals[kind] = (findings + row["size_bytes_count"], size_bytes + (row["size_bytes_sum"] or 0))
        return totals

    def iterate_findings(self, kind: FindingKind | None = None) -> Iterator[tuple[int, Finding]]:
        for page in range(self.pages):
            yield from self.read_page(page, kind).items()


def _to_finding(row: Mapping[str, Any]) -> Finding:
    ledger_id = row["ledger_id"]
    return Finding(
        **{
            **row,
            "kind": FindingKind(row["kind"]),
            "ledger_id": None if ledger_id is None else LedgerId(ledger_id),
            "statement": json.loads(row["statement"] or "{}"),
        }
    )


def findings_to_table(findings: Sequence[Finding]) -> pa.Table:
    rows = [
        {name: getattr(finding, name) for name in FINDING_SCHEMA.names}
        | {"kind": finding.kind.value, "statement": json.dumps(dict(finding.statement), sort_keys=True)}
        for finding in findings
    ]
    return pa.Table.from_pylist(rows, schema=FINDING_SCHEMA)


def write_finding_file(path: Path, pages: Iterable[Sequence[Finding]]) -> None:
    """Replace a file atomically. `pages` may be longer than `FINDINGS_PER_PAGE`: they are cut."""
    with replace_atomically(path) as new, pq.ParquetWriter(new, FINDING_SCHEMA) as writer:
        for page in filter(None, pages):
            writer.write_table(findings_to_table(page), row_group_size=FINDINGS_PER_PAGE)


class FateFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_page(self, page: int, results: Sequence[FateOfFinding]) -> None:
        """Replace the file of a page atomically."""
        self._folder.mkdir(parents=True, exist_ok=True)
        rows = [
            {name: getattr(result, name) for name in FATE_SCHEMA.names} | {"fate": result.fate.value}
            for result in results
        ]
        with replace_atomically(self._path(page)) as new:
            pq.write_table(pa.Table.from_pylist(rows, schema=FATE_SCHEMA), new)

    def read_page(self, page: int) -> dict[int, FateOfFinding] | None:
        path = self._path(page)
        if not path.exists():
            return None
        with _translate_errors(path):
            rows = pq.read_table(path, partitioning=None).to_pylist()
            return {row["number"]: FateOfFinding(**{**row, "fate": FindingFate(row["fate"])}) for row in rows}

    def _path(self, page: int) -> Path:
        return self._folder / f"page-{page:08d}.parquet"
