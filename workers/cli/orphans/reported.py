"""A finished plan, read from its files: findings with what became of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logstore.reconciliation.findings import FindingKind
from workers.pages.texts import fields, shown_s, topic_shown

if TYPE_CHECKING:
    from logstore.ports.catalog import ReconciliationRun
    from logstore.reconciliation.files import Ended, FindingFiles
    from logstore.reconciliation.findings import Finding, PlanResult

_FIRST: Final = (FindingKind.MISSING_DATA, FindingKind.MISMATCH)  # a person must look at these


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
            "objects": f"written before {shown_s(self.result.before_us)}",
            "findings": found or "none",
            "applied": "not yet" if self.applied is None else _act(self.applied),
        }

    def _ended(self, page: int) -> "dict[int, Ended]":
        from logstore.reconciliation.files import FateFiles  # noqa: PLC0415 - start-up time

        folder = None if self.applied is None else Path(self.applied.summary["folder"]) / "fates"
        return (FateFiles(folder).page(page) or {}) if folder else {}


def _act(run: "ReconciliationRun") -> str:
    reason = f" ({run.summary['reason']})" if run.summary["reason"] else ""
    at = "not finished" if run.finished_us is None else shown_s(run.finished_us)
    return f"{at}, by {run.summary['actor']}{reason}"


def _row(number: int, finding: "Finding", ended: "Ended | None") -> dict[str, object]:
    return {
        "id": number,
        "kind": finding.kind.value,
        "topic": topic_shown(finding.topic) if finding.topic else "",
        "ledger_id": None if finding.ledger_id is None else int(finding.ledger_id),
        **fields(finding, "copy bucket key uuid row_id objects size_bytes"),
        "newest": None if finding.newest_us is None else shown_s(finding.newest_us),
        "statement": dict(finding.statement),
        "detail": finding.detail,
        "fate": ended.fate.value if ended else None,
        "reason": ended.reason if ended else None,
    }
