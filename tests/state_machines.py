"""How state machines are run."""

from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

SLOW_STEP_SETTINGS: Final[dict[str, Any]] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
"""For machines whose steps take long."""


def run_state_machine(
    machine: type[RuleBasedStateMachine], seed: int, *, examples: int, steps: int, **more_settings: Any
) -> None:
    """Play so many programs of so many steps; a failing one is shrunk and printed."""
    seeded_machine = seeded(seed)(type("Part", (machine,), {}))  # a class of its own, for a seed of its own
    run_state_machine_as_test(
        seeded_machine,
        settings=settings(max_examples=examples, stateful_step_count=steps, database=None, **more_settings),
    )
