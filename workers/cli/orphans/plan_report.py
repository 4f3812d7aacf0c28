"""Report of a finished plan: findings with their fates, as rows or as one HTML file without scripts.

Findings are read once for the charts and once for the table. Only one page of findings is in memory at a time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logstore.pulsar.cluster_findings import CONFIRMED, OWNER, VERDICT, VERSION, is_confirmed
from logstore.reconciliation.findings import CLUSTER_KINDS, STORE_KINDS, FindingKind
from workers.cli.result_files import write_result_file
from workers.human_readable_values import decode_topic_name, format_time_to_second, select_fields
from workers.pages.html_templates import stream_template

if TYPE_CHECKING:
    from logstore.ports.catalog.reconciliation import ReconciliationRun
    from logstore.reconciliation.finding_files import FindingFiles
    from logstore.reconciliation.findings import FateOfFinding, Finding, PlanOrScrubResult

_URGENT_KINDS: Final = (
    FindingKind.CORRUPT_DATA,
    FindingKind.MISSING_DATA,
    FindingKind.DANGLING_REFERENCE,
    FindingKind.MISMATCH,
)
_KINDS_OF_ZNODES: Final = frozenset(
    {
        FindingKind.ORPHAN_LEDGER,
        FindingKind.UNATTRIBUTED_LEDGER,
        FindingKind.ORPHAN_MANAGED_LEDGER,
        FindingKind.DANGLING_REFERENCE,
    }
)
"""Kinds of findings in a cluster whose key is the path of a znode."""
_TOPICS_IN_CHART: Final = 20
_MAX_COUNTED_TOPICS: Final = 10_000  # above this number, the half with fewer bytes is dropped
_DAY_US: Final = 86_400_000_000
_AGE_GROUPS: Final = (  # name, and upper bound in days
    ("under a week", 7),
    ("a week to a month", 30),
    ("1 to 3 months", 91),
    ("3 to 12 months", 365),
)
_OLDER: Final = "over a year"
_UNKNOWN: Final = "unknown"
_COLUMNS: Final = ("id", "kind", "topic", "ledger_id", "where", "objects", "size_bytes", "newest", "detail")
_CLUSTER_COLUMNS: Final = (
    *("id", "kind", "ledger_id", "where", "owner", "verdict", "confirmed", "size_bytes", "newest", "detail"),
)
_FATE_COLUMNS: Final = ("what became of it",)
_FIELDS_BY_COLUMN: Final = {
    "where": ("bucket", "key"),
    "what became of it": ("fate", "reason"),
}  # fields that share a cell, so that a row fits a screen
_MAX_BAR_NAME_CHARS: Final = 34  # the tooltip has the whole name


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFindingsReport:
    plan: "ReconciliationRun"
    result: "PlanOrScrubResult"
    files: "FindingFiles"
    applied: "ReconciliationRun | None"  # the plan's apply, or None
    read_fates: "Callable[[int], Mapping[int, FateOfFinding | None]]"  # by page; of the apply, if any
    certificate: str = ""  # text about the certificate of the apply

    @property
    def is_of_cluster(self) -> bool:
        from logstore.ports.catalog.reconciliation import RunKind  # noqa: PLC0415 - start-up time

        return self.plan.kind is RunKind.CLUSTER_PLAN

    @property
    def is_of_applied_cluster(self) -> bool:
        return self.is_of_cluster and self.applied is not None

    @property
    def kinds(self) -> tuple[FindingKind, ...]:
        return CLUSTER_KINDS if self.is_of_cluster else STORE_KINDS

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(_CLUSTER_COLUMNS if self.is_of_cluster else _COLUMNS), *(_FATE_COLUMNS if self.applied else ()))

    def iterate_rows(self, kind: FindingKind | None) -> Iterator[dict[str, object]]:
        """Yield findings with fates: first those of `_URGENT_KINDS` in their order, then other kinds."""
        other_kinds = frozenset(FindingKind).difference(_URGENT_KINDS)
        passes = [*(frozenset({urgent}) for urgent in _URGENT_KINDS), other_kinds]
        for kinds in passes if kind is None else [frozenset({kind})]:
            if any(self.result.findings.get(listed_kind.value) for listed_kind in kinds):
                yield from self._iterate_rows_of_kinds(kinds)

    def _iterate_rows_of_kinds(self, kinds: frozenset[FindingKind]) -> Iterator[dict[str, object]]:
        for page in range(self.files.pages):
            fates = self.read_fates(page)
            for number, finding in self.files.read_page(page).items():
                if finding.kind in kinds:
                    row = _row_from_finding(number, finding, fates.get(number))
                    yield {**row, **self._make_cluster_fields(finding)} if self.is_of_cluster else row

    def _make_cluster_fields(self, finding: "Finding") -> dict[str, object]:
        statement = finding.statement
        version, owner = statement.get(VERSION), statement.get(OWNER)
        return {
            "statement": {name: value for name, value in statement.items() if name != CONFIRMED},
            "path": finding.key if finding.kind in _KINDS_OF_ZNODES else None,
            "version": None if version is None else int(version),
            "owner": f"/{owner}" if owner else None,
            "verdict": statement.get(VERDICT),
            "confirmed": is_confirmed(finding, self.result),
        }

    def summarize_plan(self) -> dict[str, str]:
        counts = [(kind.value, self.result.findings.get(kind.value, 0)) for kind in (*_URGENT_KINDS, *self.kinds)]
        findings = ", ".join(f"{rows:,} {name}" for name, rows in dict(counts).items() if rows)
        young = f", {self.result.young:,} of them too young to be judged" if self.result.young else ""
        return {
            "plan": self.plan.run_id,
            "made": _describe_run(self.plan),
            "ledgers": f"{self.result.ledgers:,}{young}",
            **self._summarize_scope(),
            **({"not compared": "\n".join(self.result.left_out)} if self.result.left_out else {}),
            "findings": findings or "none",
            "applied": "not yet" if self.applied is None else _describe_run(self.applied),
            **({"certificate": self.certificate} if self.certificate else {}),
        }

    def _summarize_scope(self) -> dict[str, str]:
        before = format_time_to_second(self.result.before_us)
        if not self.is_of_cluster:
            return {"objects": f"written before {before}"}
        return {
            "cluster": str(self.plan.summary["cluster"] or self.plan.summary["identity"]),
            "references": f"{self.result.references:,}, second scan at {before}",
            "complete": "\n".join(["no", *self.result.incomplete]) if self.result.incomplete else "yes",
        }


def _describe_run(run: "ReconciliationRun") -> str:
    reason = f" ({run.summary['reason']})" if run.summary["reason"] else ""
    time = "not finished" if run.finished_us is None else format_time_to_second(run.finished_us)
    return f"{time}, by {run.summary['actor']}{reason}"


def _row_from_finding(number: int, finding: "Finding", applied: "FateOfFinding | None") -> dict[str, object]:
    return {
        "id": number,
        "kind": finding.kind.value,
        "topic": decode_topic_name(finding.topic) if finding.topic else "",
        "ledger_id": None if finding.ledger_id is None else int(finding.ledger_id),
        **select_fields(finding, "copy bucket key uuid row_id objects size_bytes"),
        "newest": None if finding.newest_us is None else format_time_to_second(finding.newest_us),
        "statement": dict(finding.statement),
        "detail": finding.detail,
        "fate": applied.fate.value if applied else None,
        "reason": applied.reason if applied else None,
    }


@dataclass(frozen=True, slots=True)
class _ChartBar:
    name: str
    value: int  # 0 or more
    label: str  # the value with its unit
    is_alarming: bool = False

    @property
    def short_name(self) -> str:
        return self.name if len(self.name) <= _MAX_BAR_NAME_CHARS else f"…{self.name[1 - _MAX_BAR_NAME_CHARS :]}"


@dataclass(slots=True)
class _ChartTotals:
    is_of_cluster: bool = False
    kinds: Counter[FindingKind] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)  # bytes by topic, or by owner in a cluster
    ages: Counter[str] = field(default_factory=Counter)
    has_dropped_topics: bool = False

    def count_finding(self, finding: "Finding", before_us: int) -> None:
        self.kinds[finding.kind] += 1
        self.ages[_find_age_group(finding.newest_us, before_us)] += 1
        if finding.size_bytes and finding.kind is not FindingKind.MISSING_DATA:  # missing data has no bytes in storage
            topic = f"/{finding.statement.get(OWNER, '')}" if self.is_of_cluster else decode_topic_name(finding.topic)
            self.topics[topic] += finding.size_bytes
            if len(self.topics) > _MAX_COUNTED_TOPICS:
                self.topics = Counter(dict(self.topics.most_common(_MAX_COUNTED_TOPICS // 2)))
                self.has_dropped_topics = True

    def make_charts(self, kind: FindingKind | None) -> dict[str, list[_ChartBar]]:
        subject = "owner" if self.is_of_cluster else "topic"
        kinds = [
            _ChartBar(bar.value, self.kinds[bar], f"{self.kinds[bar]:,}", bar is FindingKind.MISSING_DATA)
            for bar in ((CLUSTER_KINDS if self.is_of_cluster else STORE_KINDS) if kind is None else [kind])
        ]
        topics = [
            _ChartBar(name.removesuffix("/") or f"of no known {subject}", size, _format_bytes(size))
            for name, size in self.topics.most_common(_TOPICS_IN_CHART)
        ]
        about = ", about: there are very many topics" if self.has_dropped_topics else ""
        ages = [*(name for name, _ in _AGE_GROUPS), _OLDER, _UNKNOWN]
        return {
            "Findings by kind": kinds,
            f"Bytes in storage by {subject}, the first {_TOPICS_IN_CHART}{about}": topics,
            "Ages of the newest object at the plan": [
                _ChartBar(age, self.ages[age], f"{self.ages[age]:,}") for age in ages
            ],
        }


def write_report_page_and_count_findings(
    report: PlanFindingsReport, path: str, *, kind: FindingKind | None, limit: int
) -> tuple[Path, int]:
    """Write an HTML page with at most `limit` findings. Return the page's path and the number of all findings."""
    sums = _ChartTotals(report.is_of_cluster)
    for _, finding in report.files.iterate_findings(kind):
        sums.count_finding(finding, report.result.before_us)
    columns, rows = report.columns, sum(sums.kinds.values())
    parts = stream_template(
        "orphans.html",
        title=f"What the plan {report.plan.run_id} found",
        lost=sums.kinds[FindingKind.MISSING_DATA],
        summary=report.summarize_plan(),
        left_out=report.result.left_out,
        incomplete=report.result.incomplete,
        charts=sums.make_charts(kind),
        columns=columns,
        shown=min(rows, limit),
        all=rows,
        rows=(list(_iterate_cells(row, columns)) for row in islice(report.iterate_rows(kind), limit)),
    )
    return write_result_file("html", path, parts), rows


def _iterate_cells(row: Mapping[str, object], columns: tuple[str, ...]) -> Iterator[str | list[str]]:
    for name in columns:
        if isinstance(row.get(name), bool):
            yield ["yes" if row[name] else "no"]
        elif isinstance(row.get(name), int):
            yield str(row[name]) if name in {"id", "ledger_id"} else f"{row[name]:,}"
        else:
            values = [row[field_name] for field_name in _FIELDS_BY_COLUMN.get(name, (name,))]
            yield [str(value) for value in values if value not in {None, ""}]


def _find_age_group(newest_us: int | None, before_us: int) -> str:
    if newest_us is None:
        return _UNKNOWN
    days = (before_us - newest_us) / _DAY_US
    return next((name for name, max_days in _AGE_GROUPS if days < max_days), _OLDER)


def _format_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} PiB"
