"""`orphans report`: findings of a plan with their fates, as rows or as one HTML file without scripts. `orphans list`.

Findings are read once for the charts and once for the table. Only one page of findings is in memory at a time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.ports.catalog.reconciliation import RunKind
from logstore.pulsar.cluster_findings import CONFIRMED, OWNER, VERDICT, VERSION, is_confirmed
from logstore.reconciliation.findings import (
    CLUSTER_KINDS,
    FATES_FOLDER,
    LEFT,
    LEFT_HELD_BACK,
    RESULT,
    STOPPED,
    STORE_KINDS,
    FindingKind,
    apply_counts,
    plan_result,
    plan_run_id,
)
from workers.cli.applies import describe_certificate
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command
from workers.cli.orphans import PLAN, RunId, count_by_kind, orphans
from workers.cli.output import Answer, check_result_file, write_result_file
from workers.cli.shared_options import cut_rows_with_note
from workers.human_readable_values import decode_topic_name, format_time_to_second, select_fields
from workers.pages import stream_template

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
        return self.plan.kind is RunKind.CLUSTER_PLAN

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
        before = format_time_to_second(self.result.before_us)
        scope = {"objects": f"written before {before}"}
        if self.is_of_cluster:
            scope = {
                "cluster": str(self.plan.summary["cluster"] or self.plan.summary["identity"]),
                "references": f"{self.result.references:,}, second scan at {before}",
                "complete": "\n".join(["no", *self.result.incomplete]) if self.result.incomplete else "yes",
            }
        return {
            "plan": self.plan.run_id,
            "made": _describe_run(self.plan),
            "ledgers": f"{self.result.ledgers:,}{young}",
            **scope,
            **({"not compared": "\n".join(self.result.left_out)} if self.result.left_out else {}),
            "findings": findings or "none",
            "applied": "not yet" if self.applied is None else _describe_run(self.applied),
            **({"certificate": self.certificate} if self.certificate else {}),
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
        **select_fields(finding, "ledger_id copy bucket key uuid row_id objects size_bytes"),
        "newest": None if finding.newest_us is None else format_time_to_second(finding.newest_us),
        **select_fields(finding, "statement detail"),
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


Kind = Annotated[FindingKind | None, typer.Option("--kind", case_sensitive=False, help="Only findings of this kind.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="The most rows to show.")]
Html = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write one page with charts there; it needs no other file.")
]


@command(orphans, "report", f"{PLAN}", f"{PLAN} --kind missing_data --json", f"{PLAN} --html orphans.html")
def report_findings(
    context: CommandContext, run_id: RunId, *, kind: Kind = None, limit: Limit = 1_000, html: Html = None
) -> Answer:
    """Show the findings of a plan and, after an apply, the fate of each finding."""
    from logstore.reconciliation.services import run_checks  # noqa: PLC0415 - start-up time

    runs = context.catalog.reconciliation
    plan, applied = runs.get_run(run_id), run_checks.find_apply(runs, run_id)
    result = run_checks.require_finished_plan_or_scrub(plan)
    files = run_checks.open_finding_files(result, run_id)
    read_fates = _find_fates_reader(context, applied)
    plan_report = PlanFindingsReport(plan=plan, result=result, files=files, applied=applied, read_fates=read_fates)
    if plan_report.is_of_cluster and applied:
        plan_report = replace(plan_report, certificate=describe_certificate(context, run_id))
    if html is not None:
        check_result_file("html", html)
        path, count = write_report_page_and_count_findings(plan_report, html, kind=kind, limit=limit)
        document = {"run_id": run_id, "html": str(path), "findings": count}
        return Answer(document=document, columns="plan=run_id html findings")
    rows = cut_rows_with_note(list(islice(plan_report.iterate_rows(kind), limit + 1)), limit, "first")
    display = [_make_finding_display_row(row, is_applied=applied is not None) for row in rows]
    table = Answer(document=rows, display=display, columns_below=("detail", "reason"), empty="no findings")
    summary = plan_report.summarize_plan()
    return Answer(document=rows, display=summary, wide_display=summary, sections=[table])


def _find_fates_reader(
    context: CommandContext, applied: "ReconciliationRun | None"
) -> "Callable[[int], Mapping[int, FateOfFinding | None]]":
    """Return a function that reads the fates of a page. They are in files for a cluster, and for earlier builds."""
    from activities.reconciliation.finding_fates import page_fate_files  # noqa: PLC0415 - start-up time

    if applied is None:
        return lambda _page: {}
    if FATES_FOLDER in applied.summary:
        files = page_fate_files(Path(applied.summary[FATES_FOLDER]))
        return lambda page: files.read_page(page) or {}
    return partial(context.catalog.reconciliation.read_fates, applied.run_id)


def _make_finding_display_row(row: dict[str, object], *, is_applied: bool) -> dict[str, object]:
    subject = f"deletion {row['row_id']}" if row["row_id"] is not None else f"ledger {row['ledger_id']}"
    cluster_fields: dict[str, object] = {}
    if "confirmed" in row:  # a ledger as `pulsar explain` takes it, without separators
        ledger = "" if row["ledger_id"] is None else str(row["ledger_id"])
        cluster_fields = {"ledger": ledger, "confirmed": row["confirmed"]}
    return {
        **select_fields(row, "id kind"),
        **cluster_fields,
        "where": row["key"] or subject,
        **select_fields(row, "objects bytes=size_bytes"),
        **({"fate": row["fate"]} if is_applied else {}),
        "detail": row["detail"],
        "reason": f"{row['fate']}: {row['reason']}" if row["reason"] else "",
    }


_KIND_LABELS = {
    RunKind.PLAN: "plan",
    RunKind.APPLY: "apply",
    RunKind.SCRUB: "scrub",
    RunKind.CLUSTER_PLAN: "cluster-plan",
}

MaxRuns = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most plans to show, newest first.")]


@command(orphans, "list", "", "--limit 5 --json")
def list_reconciliation_runs(context: CommandContext, *, limit: MaxRuns = 20) -> Answer:
    """List plans, applies and scrubs, newest first, with the run ids for `report` and `apply`.

    A plan of a Pulsar cluster has the kind `cluster-plan`. If only orphans are left of it that an apply keeps without
    --include-unconfirmed or --include-irreversible, its apply has the state `finished`.
    """
    runs = context.catalog.reconciliation
    candidates = [run for kind in _KIND_LABELS for run in runs.list_runs(kind, limit=limit)]
    newest = sorted(candidates, key=lambda run: run.created_us, reverse=True)[:limit]
    rows = [_make_run_row(run) for run in newest]
    display = [select_fields(row, "run_id kind state begun") | {"counts": _format_counts(row)} for row in rows]
    return Answer(
        document=rows, display=display, columns_below=("counts",), empty="no plans; `sexton orphans plan` makes one"
    )


def _make_run_row(run: "ReconciliationRun") -> dict[str, object]:
    is_apply, left = run.kind is RunKind.APPLY, _find_left_orphans(run)
    stopped = (run.summary.get(STOPPED) or None) if is_apply else None
    is_over = run.finished_us is not None or (left is not None and not left["removable"] and not stopped)
    return {
        "run_id": plan_run_id(run.run_id) if is_apply else run.run_id,
        "kind": _KIND_LABELS[run.kind],
        "state": "finished" if is_over else "unfinished",
        "begun": format_time_to_second(run.created_us),
        "finished": None if run.finished_us is None else format_time_to_second(run.finished_us),
        **select_fields(run.summary, "actor reason"),
        "complete": None if is_apply or run.finished_us is None else not plan_result(run.summary).incomplete,
        "left": left,
        "stopped": stopped,
        "counts": _count_findings_of_run(run, is_apply=is_apply) if RESULT in run.summary else {},
    }


def _find_left_orphans(run: "ReconciliationRun") -> dict[str, int] | None:
    """Return what a later apply of a plan of a cluster may remove. `None`: nothing.

    An apply that is at work has no outcome.
    """
    if run.finished_us is not None or LEFT not in run.summary:
        return None
    held_back = run.summary[LEFT_HELD_BACK]
    return {"removable": run.summary[LEFT] - held_back, "held_back": held_back}


def _count_findings_of_run(run: "ReconciliationRun", *, is_apply: bool) -> dict[str, int]:
    if not is_apply:
        kinds = CLUSTER_KINDS if run.kind is RunKind.CLUSTER_PLAN else STORE_KINDS
        return count_by_kind(plan_result(run.summary).findings, kinds)
    counts = apply_counts(run.summary)
    return {"applied": sum(counts.applied.values()), "kept": sum(counts.skipped.values()), "failed": counts.failed}


def _format_counts(row: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in row["counts"].items() if count)
    left, rest = row["left"], f"stopped: {row['stopped']}" if row["stopped"] else ""
    if left and not rest:
        rest = f"{left['held_back']:,} left for an apply with --include-unconfirmed or --include-irreversible"
        if left["removable"]:
            rest = f"{left['removable'] + left['held_back']:,} left: apply again"
    if rest:
        return "; ".join(filter(None, (counts, rest)))
    phrase = counts or ("at work, refused or failed" if row["finished"] is None else "nothing found")
    return f"incomplete: {phrase}" if row["complete"] is False else phrase
