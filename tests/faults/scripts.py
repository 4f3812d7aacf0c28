"""What may become of attempts: unheard, asleep behind their retries, in any order."""

import random
from collections.abc import Sequence

from tests.driver.driver import Ending, Script
from tests.driver.executions import Attempt, Task


class FirstOfEach(Script):
    """The first attempt of every activity of every workflow ends so."""

    def __init__(self, ending: Ending) -> None:
        """Take how they end."""
        self._ending = ending
        self._met: set[tuple[str, str]] = set()

    def ending(self, attempt: Attempt) -> Ending:
        what = (attempt.task.execution.run.start.type, attempt.type)
        if what in self._met:
            return Ending.ANSWERED
        self._met.add(what)
        return self._ending


class AnyOrder(Script):
    """Of what could be done, anything comes next; one in five attempts ends in some other way than answered."""

    def __init__(self, seed: int) -> None:
        """Take what the order follows from."""
        self._dice = random.Random(seed)

    def choose(self, ready: Sequence[Task]) -> Task:
        return self._dice.choice(ready)

    def ending(self, attempt: Attempt) -> Ending:
        others = (Ending.UNHEARD, Ending.LATE)
        return self._dice.choice(others) if attempt.number == 1 and self._dice.random() < 0.2 else Ending.ANSWERED
