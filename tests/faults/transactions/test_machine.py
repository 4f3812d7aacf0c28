"""The state machine of transactions, run."""

import random

import pytest

from tests.faults.failpoint_hits import find_effect_names
from tests.faults.transactions.transaction_machine import EFFECTS, TransactionStateMachine
from tests.state_machines import SLOW_STEP_SETTINGS, run_state_machine


def test_effects_that_the_machine_dies_at_exist() -> None:
    """One that was renamed would never happen again."""
    assert find_effect_names().keys() >= EFFECTS


class _Settled(TransactionStateMachine):
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
    run_state_machine(_Settled, 0, examples=8, steps=32, **SLOW_STEP_SETTINGS)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(8))
def test_any_order_of_transactions_keeps_every_promise_however_long(part: int) -> None:
    """The same with other programs at every run, and longer ones; a failure prints its program."""
    run_state_machine(
        _Settled, random.SystemRandom().getrandbits(64), examples=100, steps=50 + part * 10, **SLOW_STEP_SETTINGS
    )
