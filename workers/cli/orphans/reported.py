"""A finished plan, read from its files: findings with what became of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logstore.reconciliation.findings import FindingKind
from workers.cli.texts import shown_s, topic_shown

if TYPE_CHECKING:
    from logstore.reconciliation.files import Ended, FindingFiles
    from logstore.reconciliation.findings import Finding
    from logstore.reconciliation.results import PlanResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A finished plan, with what became of its findings."""

    run_id: str
    result: "PlanResult"
    files: "FindingFiles"
    fates: Path | None  # folder of what apply did; None: it was not applied

    def rows(self, kind: FindingKind | None) -> Iterator[dict[str, object]]:
        """Findings with their fates, a page in memory at a time."""
        for page in range(self.files.pages):
            ended = self._ended(page)
            for number, finding in self.files.page(page).items():
                if kind in {None, finding.kind}:
                    yield _row(number, finding, ended.get(number))

    def _ended(self, page: int) -> "dict[int, Ended]":
        from logstore.reconciliation.files import FateFiles  # noqa: PLC0415 - start-up time

        return (FateFiles(self.fates).page(page) or {}) if self.fates else {}


def _row(number: int, finding: "Finding", ended: "Ended | None") -> dict[str, object]:
    return {
        "id": number,
        "kind": finding.kind.value,
        "topic": topic_shown(finding.topic) if finding.topic else "",
        "ledger_id": None if finding.ledger_id is None else int(finding.ledger_id),
        "copy": finding.copy,
        "bucket": finding.bucket,
        "key": finding.key,
        "uuid": finding.uuid,
        "row_id": finding.row_id,
        "objects": finding.objects,
        "size_bytes": finding.size_bytes,
        "newest": None if finding.newest_us is None else shown_s(finding.newest_us),
        "statement": dict(finding.statement),
        "detail": finding.detail,
        "fate": ended.fate.value if ended else None,
        "reason": ended.reason if ended else None,
    }
