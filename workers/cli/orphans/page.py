"""A finished plan, read from its files: findings with what became of them, as rows and as one HTML file.

The file has charts as inline SVG and the first findings, and needs no other file and no script. Findings pass by once
for the charts and once for the table, a page of them in memory at a time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logstore.reconciliation.findings import FindingKind
from workers.cli.result_files import write_result_file
from workers.pages.texts import decode_topic_name, format_time_s, select_fields, stream_template

if TYPE_CHECKING:
    from logstore.ports.catalog import ReconciliationRun
    from logstore.reconciliation.files import Ended, FindingFiles
    from logstore.reconciliation.findings import Finding, PlanResult

_FIRST: Final = (
    FindingKind.CORRUPT_DATA,
    FindingKind.MISSING_DATA,
    FindingKind.MISMATCH,
)  # a person must look at these
_TOPICS: Final = 20
_MOST_TOPICS: Final = 10_000  # counted at a time: beyond, the smallest half is forgotten
_DAY_US: Final = 86_400_000_000
_AGES: Final = (
    ("under a week", 7),
    ("a week to a month", 30),
    ("1 to 3 months", 91),
    ("3 to 12 months", 365),
)
_OLDER: Final = "over a year"
_UNKNOWN: Final = "unknown"
_COLUMNS: Final = ("id", "kind", "topic", "ledger_id", "where", "objects", "size_bytes", "newest", "detail")
_FATE: Final = ("what became of it",)
_TOGETHER: Final = {"where": ("bucket", "key"), "what became of it": ("fate", "reason")}  # in one cell, to fit a screen
_LONGEST_NAME: Final = 34  # characters of a bar; the whole one is in the tooltip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A finished plan, with what became of its findings."""

    plan: "ReconciliationRun"
    result: "PlanResult"
    files: "FindingFiles"
    applied: "ReconciliationRun | None"  # None: it was not applied

    def rows(self, kind: FindingKind | None) -> Iterator[dict[str, object]]:
        """Findings with their fates, losses first, then by number; a page in memory at a time."""
        rest = frozenset(FindingKind).difference(_FIRST)
        passes = [*(frozenset({one}) for one in _FIRST), rest] if kind is None else [frozenset({kind})]
        for kinds in passes:
            if any(self.result.findings.get(one.value) for one in kinds):
                yield from self._of(kinds)

    def _of(self, kinds: frozenset[FindingKind]) -> Iterator[dict[str, object]]:
        for page in range(self.files.pages):
            ended = self._ended(page)
            for number, finding in self.files.page(page).items():
                if finding.kind in kinds:
                    yield _row(number, finding, ended.get(number))

    def summary(self) -> dict[str, str]:
        """The plan in a few lines for people: what was looked at, what was found, and the run that applied it."""
        counts = [(kind.value, self.result.findings.get(kind.value, 0)) for kind in (*_FIRST, *FindingKind)]
        found = ", ".join(f"{rows:,} {name}" for name, rows in dict(counts).items() if rows)
        young = f", {self.result.young:,} of them too young to be judged" if self.result.young else ""
        return {
            "plan": self.plan.run_id,
            "made": _act(self.plan),
            "ledgers": f"{self.result.ledgers:,}{young}",
            "objects": f"written before {format_time_s(self.result.before_us)}",
            "findings": found or "none",
            "applied": "not yet" if self.applied is None else _act(self.applied),
        }

    def _ended(self, page: int) -> "dict[int, Ended]":
        from logstore.reconciliation.files import FateFiles  # noqa: PLC0415 - start-up time

        folder = None if self.applied is None else Path(self.applied.summary["folder"]) / "fates"
        return (FateFiles(folder).page(page) or {}) if folder else {}


def _act(run: "ReconciliationRun") -> str:
    reason = f" ({run.summary['reason']})" if run.summary["reason"] else ""
    at = "not finished" if run.finished_us is None else format_time_s(run.finished_us)
    return f"{at}, by {run.summary['actor']}{reason}"


def _row(number: int, finding: "Finding", ended: "Ended | None") -> dict[str, object]:
    return {
        "id": number,
        "kind": finding.kind.value,
        "topic": decode_topic_name(finding.topic) if finding.topic else "",
        "ledger_id": None if finding.ledger_id is None else int(finding.ledger_id),
        **select_fields(finding, "copy bucket key uuid row_id objects size_bytes"),
        "newest": None if finding.newest_us is None else format_time_s(finding.newest_us),
        "statement": dict(finding.statement),
        "detail": finding.detail,
        "fate": ended.fate.value if ended else None,
        "reason": ended.reason if ended else None,
    }


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar of a chart, as long as its value."""

    name: str
    value: int  # 0 or more
    told: str  # the value in words
    alarming: bool = False

    @property
    def short(self) -> str:
        """The end of a long name, which says more than its beginning."""
        return self.name if len(self.name) <= _LONGEST_NAME else f"…{self.name[1 - _LONGEST_NAME :]}"


@dataclass(slots=True)
class _Sums:
    """Counts for the charts, of findings that passed by."""

    kinds: Counter[FindingKind] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)  # bytes
    ages: Counter[str] = field(default_factory=Counter)
    forgotten: bool = False  # topics are more than are counted

    def add(self, finding: "Finding", before_us: int) -> None:
        self.kinds[finding.kind] += 1
        self.ages[_age(finding.newest_us, before_us)] += 1
        if finding.size_bytes and finding.kind is not FindingKind.MISSING_DATA:  # those bytes are nowhere
            self.topics[finding.topic] += finding.size_bytes
            if len(self.topics) > _MOST_TOPICS:
                self.topics = Counter(dict(self.topics.most_common(_MOST_TOPICS // 2)))
                self.forgotten = True

    def charts(self, kind: FindingKind | None) -> dict[str, list[_Bar]]:
        """Bars by the title of their chart; of kinds only that of `kind`, if there is one."""
        kinds = [
            _Bar(one.value, self.kinds[one], f"{self.kinds[one]:,}", one is FindingKind.MISSING_DATA)
            for one in (FindingKind if kind is None else [kind])
        ]
        named = [
            (decode_topic_name(name) or "of no known topic", size) for name, size in self.topics.most_common(_TOPICS)
        ]
        about = ", about: there are very many topics" if self.forgotten else ""
        ages = [*(name for name, _ in _AGES), _OLDER, _UNKNOWN]
        return {
            "Findings by kind": kinds,
            f"Bytes in storage by topic, the first {_TOPICS}{about}": [_Bar(*one, _size(one[1])) for one in named],
            "Ages of the newest object at the plan": [_Bar(one, self.ages[one], f"{self.ages[one]:,}") for one in ages],
        }


def write_page(found: Reported, path: str, *, kind: FindingKind | None, limit: int) -> tuple[Path, int]:
    """Write the page, the whole of it or nothing; return the absolute path, and how many findings there are.

    Args:
        found: The plan.
        path: Of the file, as the operator gave it.
        kind: Only findings of this kind; None: of every kind.
        limit: Of rows of the table.
    """
    sums = _Sums()
    for _, finding in found.files.all(kind):
        sums.add(finding, found.result.before_us)
    columns, rows = (*_COLUMNS, *(_FATE if found.applied else ())), sum(sums.kinds.values())
    parts = stream_template(
        "orphans.html",
        title=f"What the plan {found.plan.run_id} found",
        lost=sums.kinds[FindingKind.MISSING_DATA],
        summary=found.summary(),
        left_out=found.result.left_out,
        charts=sums.charts(kind),
        columns=columns,
        shown=min(rows, limit),
        all=rows,
        rows=(list(_cells(row, columns)) for row in islice(found.rows(kind), limit)),
    )
    return write_result_file("html", path, parts), rows


def _cells(row: Mapping[str, object], columns: tuple[str, ...]) -> Iterator[str | list[str]]:
    """A number as a text; of any other cell its lines."""
    for name in columns:
        if isinstance(row.get(name), int):
            yield str(row[name]) if name in {"id", "ledger_id"} else f"{row[name]:,}"
        else:
            values = [row[one] for one in _TOGETHER.get(name, (name,))]
            yield [str(value) for value in values if value not in {None, ""}]


def _age(newest_us: int | None, before_us: int) -> str:
    if newest_us is None:
        return _UNKNOWN
    days = (before_us - newest_us) / _DAY_US
    return next((name for name, most in _AGES if days < most), _OLDER)


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} PiB"
