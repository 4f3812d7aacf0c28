"""The state machine of durable deletes, run."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.effects import named_in_source
from tests.logstore.records.machine import EFFECTS, Durability


def test_effects_that_the_machine_dies_at_exist() -> None:
    """One that was renamed would never happen again."""
    assert named_in_source().keys() >= set(EFFECTS)


def _run(seed: int, *, examples: int, steps: int) -> None:
    @seeded(seed)
    class Part(Durability):
        """A class of its own, for a seed of its own."""

    run_state_machine_as_test(
        Part,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(600)  # a failure is shrunk for five minutes at the most, and then told
def test_no_durably_deleted_ledger_returns_and_no_live_one_is_lost() -> None:
    """Whatever flushes, defragments, sweeps, raids and dies in between (promise 5)."""
    _run(0, examples=10, steps=40)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_no_durably_deleted_ledger_returns_however_long(part: int) -> None:
    """The same with other programs at every run, and longer ones; a failure prints its program."""
    _run(random.SystemRandom().getrandbits(64), examples=60, steps=50 + part * 20)
