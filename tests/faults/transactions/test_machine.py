"""The state machine of transactions, run."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.effects import named_in_source
from tests.faults.transactions.machine import EFFECTS, Transactions


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


def _run(seed: int, *, examples: int, steps: int) -> None:
    @seeded(seed)
    class Part(_Settled):
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
def test_any_order_of_transactions_keeps_every_promise() -> None:
    """Whatever programs, coordinators and death do in between, readers see what the model says (promises 1, 4, 8)."""
    _run(0, examples=8, steps=32)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(8))
def test_any_order_of_transactions_keeps_every_promise_however_long(part: int) -> None:
    """The same with other programs at every run, and longer ones; a failure prints its program."""
    _run(random.SystemRandom().getrandbits(64), examples=100, steps=50 + part * 10)
