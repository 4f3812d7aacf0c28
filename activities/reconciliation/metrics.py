"""Counters of what plans found."""

from collections.abc import Mapping

from temporalio import activity


def found(findings: Mapping[str, int]) -> None:
    """Raise `sexton_reconciliation_findings_total` by what one plan has found, by kind."""
    counter = activity.metric_meter().create_counter(
        "sexton_reconciliation_findings_total", "Findings of finished plans; the same one counts in every plan"
    )
    for kind, rows in findings.items():
        if rows:
            counter.add(rows, {"kind": kind})
