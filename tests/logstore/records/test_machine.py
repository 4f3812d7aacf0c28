"""The state machine of durable deletes, run."""

import random

import pytest

from tests.faults.failpoint_hits import find_effect_names
from tests.logstore.records.machine import EFFECTS, Durability
from tests.state_machines import SLOW_STEP_SETTINGS, run_state_machine


def test_effects_that_the_machine_dies_at_exist() -> None:
    """One that was renamed would never happen again."""
    assert find_effect_names().keys() >= set(EFFECTS)


@pytest.mark.timeout(600)  # a failure is shrunk for five minutes at the most, and then told
def test_no_durably_deleted_ledger_returns_and_no_live_one_is_lost() -> None:
    """Whatever flushes, defragments, sweeps, raids and dies in between (promise 5)."""
    run_state_machine(Durability, 0, examples=5, steps=40, **SLOW_STEP_SETTINGS)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_no_durably_deleted_ledger_returns_however_long(part: int) -> None:
    """The same with other programs at every run, and longer ones; a failure prints its program."""
    run_state_machine(
        Durability, random.SystemRandom().getrandbits(64), examples=25, steps=50 + part * 20, **SLOW_STEP_SETTINGS
    )
