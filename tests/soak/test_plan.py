"""The same seed gives the same faults, and a soak of ten minutes meets every kind."""

from tests.soak.fault_plan import plan


def test_same_seed_gives_the_same_plan() -> None:
    """What one run found, another one can look for."""
    wish = {"seconds": 600.0, "workers": 3, "clients": 2}
    assert plan(7, **wish) == plan(7, **wish)  # type: ignore[arg-type]  # its keywords
    assert plan(7, **wish).faults != plan(8, **wish).faults  # type: ignore[arg-type]


def test_ten_minutes_meet_every_kind_of_fault() -> None:
    """With few seeds left out: each kind comes a few times."""
    found = plan(1, seconds=600.0, workers=3, clients=2)
    assert len(found.kinds) == 15
    assert all(0 < fault.at_s < 600 and fault.duration_s > 0 for fault in found.faults)


def test_faults_of_one_subject_do_not_overlap() -> None:
    """A fault is lifted before the next of the same worker, client or server begins."""
    free_at: dict[str, float] = {}
    for fault in plan(3, seconds=3_600.0, workers=3, clients=2).faults:
        assert free_at.get(fault.subject, 0.0) <= fault.at_s
        free_at[fault.subject] = fault.at_s + fault.duration_s
