"""Times of a plan for a cluster."""

import pytest

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.pulsar.plan_jobs import MAX_BETWEEN_SCANS_S, MIN_BETWEEN_SCANS_S, require_safe_times


@pytest.mark.parametrize("between_s", [MIN_BETWEEN_SCANS_S, MAX_BETWEEN_SCANS_S])
@pytest.mark.parametrize("older_than_s", [None, 86_400.0])
def test_safe_times_pass(between_s: float, older_than_s: float | None) -> None:
    require_safe_times(between_s, older_than_s, unsafe=False)


@pytest.mark.parametrize(
    ("between_s", "older_than_s", "option"), [(599.0, None, "between"), (600.0, 86_399.0, "older-than")]
)
def test_short_times_need_a_word(between_s: float, older_than_s: float | None, option: str) -> None:
    with pytest.raises(PreconditionFailed, match=option):
        require_safe_times(between_s, older_than_s, unsafe=False)
    require_safe_times(between_s, older_than_s, unsafe=True)


@pytest.mark.parametrize(
    ("between_s", "older_than_s", "option"),
    [(-1.0, None, "between"), (86_401.0, None, "between"), (600.0, -1.0, "older-than")],
)
def test_impossible_times_are_refused_always(between_s: float, older_than_s: float | None, option: str) -> None:
    for unsafe in (False, True):
        with pytest.raises(InvalidInput, match=option):
            require_safe_times(between_s, older_than_s, unsafe=unsafe)


def test_times_of_zero_are_the_shortest() -> None:
    require_safe_times(0.0, 0.0, unsafe=True)
