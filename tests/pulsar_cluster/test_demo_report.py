"""Text of the report of the demo."""

from tests.pulsar_cluster.demo_report import ClusterDemoReport, DamageExample
from workers.demo.promise_report import PromiseResult


def test_report_has_each_promise_with_its_evidence_and_keeps_paths_whole() -> None:
    path = f"/schemas/public/default/{'x' * 120}"
    report = ClusterDemoReport(
        promises_by_part={
            "The plan": [PromiseResult.from_problems("all is read", [], "7 ledgers")],
            "The apply": [PromiseResult.from_problems("no message is lost", ["1 is lost"], "5 messages")],
        },
        examples=[
            DamageExample(step="a package is deleted", ledger_id=3, component="", reason="nobody knows whose it is"),
            DamageExample(step="a trim", ledger_id=4, component="schema", reason=f"its owner {path} is absent"),
        ],
        seconds=12.4,
    )
    assert not report.ok
    assert report.format_text().splitlines() == [
        "",
        "The plan",
        "  kept    all is read",
        "          7 ledgers",
        "",
        "The apply",
        "  BROKEN  no message is lost",
        "          1 is lost",
        "",
        "What the damage left: one ledger of each step, as Sexton explains it",
        "  a package is deleted",
        "    ledger 3: nobody knows whose it is",
        "  a trim",
        "    ledger 4 (schema): its owner",
        f"    {path}",
        "    is absent",
        "",
        "1 of 2 promises kept, in 12 s",
    ]
