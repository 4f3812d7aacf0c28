"""What may become of attempts: unheard, asleep behind their retries, in any order."""

import random
from collections.abc import Sequence

from tests.driver.workflow_driver import AttemptEnding, AttemptScript
from tests.driver.workflow_executions import ActivityAttempt, ActivityTask


class FirstAttemptsScript(AttemptScript):
    """The first attempt of every activity of every workflow ends so."""

    def __init__(self, ending: AttemptEnding) -> None:
        """Take how they end."""
        self._ending = ending
        self._seen_activities: set[tuple[str, str]] = set()

    def ending(self, attempt: ActivityAttempt) -> AttemptEnding:
        workflow_and_activity = (attempt.task.execution.run.start.type, attempt.type)
        if workflow_and_activity in self._seen_activities:
            return AttemptEnding.ANSWERED
        self._seen_activities.add(workflow_and_activity)
        return self._ending


class RandomScript(AttemptScript):
    """Of what could be done, anything comes next; one in five attempts ends in some other way than answered."""

    def __init__(self, seed: int) -> None:
        """Take what the order follows from."""
        self._dice = random.Random(seed)

    def choose(self, ready: Sequence[ActivityTask]) -> ActivityTask:
        return self._dice.choice(ready)

    def ending(self, attempt: ActivityAttempt) -> AttemptEnding:
        other_endings = (AttemptEnding.UNHEARD, AttemptEnding.LATE)
        return (
            self._dice.choice(other_endings)
            if attempt.number == 1 and self._dice.random() < 0.2
            else AttemptEnding.ANSWERED
        )
