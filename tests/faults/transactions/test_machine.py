"""The state machine of transactions, run."""

import random

import pytest

from tests.faults.effects import named_in_source
from tests.faults.transactions.machine import EFFECTS, Transactions
from tests.state_machines import AT_LENGTH, play


def test_effects_that_the_machine_dies_at_exist() -> None:
    """One that was renamed would never happen again."""
    assert named_in_source().keys() >= EFFECTS


class _Settled(Transactions):
    """Every example is brought to an end, and judged there once more."""

    def teardown(self) -> None:
        """See `settle`."""
        try:
            if self.serial.logs:
                self.settle()
        finally:
            super().teardown()


@pytest.mark.timeout(600)  # a failure is shrunk for five minutes at the most, and then told
def test_any_order_of_transactions_keeps_every_promise() -> None:
    """Whatever programs, coordinators and death do in between, readers see what the model says (promises 1, 4, 8)."""
    play(_Settled, 0, examples=8, steps=32, **AT_LENGTH)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(8))
def test_any_order_of_transactions_keeps_every_promise_however_long(part: int) -> None:
    """The same with other programs at every run, and longer ones; a failure prints its program."""
    play(_Settled, random.SystemRandom().getrandbits(64), examples=100, steps=50 + part * 10, **AT_LENGTH)
