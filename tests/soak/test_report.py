"""The report of a soak says what was never tried."""

from tests.soak.soak_report import SoakReport


def test_report_names_workflow_types_that_never_ran() -> None:
    """A soak that leaves a job out must not look as if it had tried all."""
    report = SoakReport(seed=1, seconds=30.0, database="sqlite", workers=2, clients=2, types={"b": 0, "c": 2, "a": 0})
    assert "workflow types: 1 of 3 were run\n  never run: a, b\n" in report.text()
    assert report.document()["never_run"] == ["a", "b"]
    report.types = {"c": 2}
    assert "never run" not in report.text()
