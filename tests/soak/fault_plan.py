"""The plan of a soak's faults: a pure function of its seed, so that the same seed gives the same plan."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.faults.failpoint_hits import find_effect_names

_WEIGHT_BY_KIND: Final = {
    "kill-worker": 5,
    "pause-worker": 3,
    "cut-zookeeper-of-worker": 3,
    "step-clock-of-worker": 2,
    "kill-client": 3,
    "pause-client": 2,
    "step-clock-of-client": 2,
    "kill-replica": 2,
    "kill-temporal": 2,
    "kill-seaweedfs": 2,
    "kill-zookeeper": 2,
    "stop-database": 2,
    "s3-errors": 3,
    "s3-lost-answers": 3,
    "s3-slow": 2,
}
"""Every kind, and how often it comes beside the others. A fault is a kind and a target; it is lifted after a while."""

_DURATIONS_S: Final = {
    "pause-worker": (5.0, 25.0),  # the session of ZooKeeper ends after four
    "cut-zookeeper-of-worker": (5.0, 12.0),  # the same
    "pause-client": (3.0, 20.0),
    "step-clock-of-worker": (5.0, 30.0),
    "step-clock-of-client": (5.0, 30.0),
    "s3-errors": (2.0, 8.0),
    "s3-lost-answers": (2.0, 8.0),
    "s3-slow": (3.0, 10.0),
}
_OTHER_DURATIONS_S: Final = (0.5, 6.0)
_CLOCK_STEPS_S: Final = {
    "step-clock-of-worker": (-300.0, -45.0, -5.0, 5.0, 45.0, 300.0),  # beyond a minute it may not write records
    "step-clock-of-client": (-45.0, -5.0, 3.0),  # a consumer's own clock says what is due
}
_AMOUNT_RANGES: Final = {"s3-errors": (0.2, 0.6), "s3-lost-answers": (0.05, 0.3), "s3-slow": (0.2, 1.5)}
_MOMENTS: Final = ("before", "after", "reported_failed")
_MEAN_INTERVAL_S: Final = 7.0  # two faults, on average
_WORKER_STARTS: Final = 200  # of a worker process for which a failpoint is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFault:
    """One thing that goes wrong, and when it is over."""

    at_s: float  # since the start of the faults
    kind: str
    target: int  # number of a worker or client; 0 where there is one
    duration_s: float
    amount: float  # seconds of a clock's step or of a slow answer, or the share of requests that it meets; else 0

    @property
    def subject(self) -> str:
        """What it happens to: of each, one fault at a time."""
        word = self.kind.partition("-")[2] if not self.kind.startswith("s3-") else "s3"
        return f"{word.rpartition('-')[2]} {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """All that goes wrong."""

    seed: int
    faults: tuple[ScheduledFault, ...]  # ascending by time
    failpoints: tuple[str, ...]  # of the first process that is started as a worker, of the second, and so on

    @property
    def kinds(self) -> Counter[str]:
        """How many faults of each kind."""
        return Counter(fault.kind for fault in self.faults)


def plan(seed: int, *, seconds: float, workers: int, clients: int) -> FaultPlan:
    """Draw the faults of so many seconds.

    Faults of different subjects overlap as they come. The last ones are lifted when the time is over, whatever they
    were to last.
    """
    dice = random.Random(seed)
    faults = tuple(_draw_faults(dice, seconds, workers=workers, clients=clients))
    return FaultPlan(seed=seed, faults=faults, failpoints=tuple(_draw_failpoints(random.Random(seed + 1))))


def _draw_faults(dice: random.Random, seconds: float, *, workers: int, clients: int) -> Iterator[ScheduledFault]:
    free_at: dict[str, float] = {}
    at_s = 5.0
    while (at_s := at_s + dice.expovariate(1 / _MEAN_INTERVAL_S)) < seconds:
        kind = dice.choices(list(_WEIGHT_BY_KIND), list(_WEIGHT_BY_KIND.values()))[0]
        count = workers if kind.endswith("worker") else clients if kind.endswith("client") else 1
        fault = ScheduledFault(
            at_s=round(at_s, 3),
            kind=kind,
            target=dice.randrange(count),
            duration_s=round(dice.uniform(*_DURATIONS_S.get(kind, _OTHER_DURATIONS_S)), 3),
            amount=_draw_amount(dice, kind),
        )
        if free_at.get(fault.subject, 0.0) <= at_s:
            free_at[fault.subject] = at_s + fault.duration_s
            yield fault


def _draw_amount(dice: random.Random, kind: str) -> float:
    if kind in _CLOCK_STEPS_S:
        return dice.choice(_CLOCK_STEPS_S[kind])
    least, most = _AMOUNT_RANGES.get(kind, (0.0, 0.0))
    return round(dice.uniform(least, most), 3)


def _draw_failpoints(dice: random.Random) -> Iterator[str]:
    """A failpoint of each worker process: some effect fails, or kills it, at one of its first hits."""
    effects = sorted(find_effect_names())
    for _ in range(_WORKER_STARTS):
        chosen = dice.sample(effects, 6)
        yield ",".join(_draw_failpoint(dice, effect) for effect in chosen)


def _draw_failpoint(dice: random.Random, effect: str) -> str:
    moment = dice.choice(_MOMENTS)
    action = "fail" if moment == "reported_failed" or dice.random() < 0.5 else "kill"
    return f"{effect}.{moment}={action}@{dice.choice((1, 1, 2, 3, 7))}"


def format_faults(faults: Sequence[ScheduledFault]) -> list[str]:
    """A line for each fault."""
    return [
        f"{fault.at_s:7.1f} s  {fault.kind} {fault.target}, for {fault.duration_s:.1f} s"
        + (f", {fault.amount:g}" if fault.amount else "")
        for fault in faults
    ]
