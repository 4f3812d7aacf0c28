"""A soak so short that `make faults` can run it: all of the machinery, and few faults."""

import pytest

from tests.soak.soak_processes import create_soak_home, remove_soak_home
from tests.soak.soak_run import SoakRequest, SoakRun


@pytest.mark.all_faults
@pytest.mark.external_service
@pytest.mark.sigkill
@pytest.mark.timeout(2_400)  # it comes to rest within 15 minutes, twice
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_short_soak_breaks_no_promise(database: str) -> None:
    """Work was done, something went wrong, all came to rest, and the auditor has nothing to say."""
    home = create_soak_home()
    said: list[str] = []
    report = SoakRun(
        SoakRequest(seed=11, seconds=30.0, database=database, workers=2, clients=2), home, said.append
    ).run()
    assert not report.violations, report.text()
    done = report.operations()
    assert done["append"]["done"] > 0
    assert done["begin"]["done"] > 0  # on a busy machine no commit may be answered so soon
    assert report.happened
    assert {"rebuild-catalog", "follow-records", "replicate-records"}.isdisjoint(report.list_never_run_types())
    assert any("coming to rest" in sentence for sentence in said)
    remove_soak_home(home)
