"""The state machine of durable deletes, run."""

import random

import pytest

from tests.faults.effects import named_in_source
from tests.logstore.records.machine import EFFECTS, Durability
from tests.state_machines import AT_LENGTH, play


def test_effects_that_the_machine_dies_at_exist() -> None:
    """One that was renamed would never happen again."""
    assert named_in_source().keys() >= set(EFFECTS)


@pytest.mark.timeout(600)  # a failure is shrunk for five minutes at the most, and then told
def test_no_durably_deleted_ledger_returns_and_no_live_one_is_lost() -> None:
    """Whatever flushes, defragments, sweeps, raids and dies in between (promise 5)."""
    play(Durability, 0, examples=5, steps=40, **AT_LENGTH)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_no_durably_deleted_ledger_returns_however_long(part: int) -> None:
    """The same with other programs at every run, and longer ones; a failure prints its program."""
    play(Durability, random.SystemRandom().getrandbits(64), examples=60, steps=50 + part * 20, **AT_LENGTH)
