"""Promise 6 as consumers saw it: no message is lost, and none came before its time."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tests.soak.audit.evidence import At, Evidence
from tests.soak.scene import DELAYED, PLAIN


def wrong_delivered(seen: Evidence) -> Iterator[str]:
    """Each message that was answered and is due was received; and by the consumer's own clock it was due."""
    due: dict[str, dict[At, int | None]] = defaultdict(dict)
    for op in seen.of_kind("append"):
        times = op.asked.get("deliver_at_ms") or [None] * len(op.asked["payloads"])
        for (at, _), time_ms in zip(op.stored, times[op.answer.get("duplicates", 0) :], strict=False):
            due[op.asked["topic"]][at] = time_ms
    received: dict[str, set[At]] = defaultdict(set)
    for one in seen.received:
        for first, second in one["positions"]:
            received[one["topic"]].add((first, second))
            time_ms = due[one["topic"]].get((first, second))
            if time_ms is not None and time_ms > _clock_ms(seen, one):
                early = time_ms - _clock_ms(seen, one)
                yield f"{one['topic']}: {(first, second)} was received {early:.0f} ms before its time"
    for name in (*PLAIN, *DELAYED):
        for at, time_ms in sorted(due[name].items()):
            if (time_ms is None or time_ms <= seen.ended_s * 1_000) and at not in received[name]:
                yield f"{name}: {at} was due at {time_ms or 'once'}, and nobody received it"


def _clock_ms(seen: Evidence, one: Mapping[str, Any]) -> float:
    """The furthest that the consumer's clock had come: a step forward makes due what is handed out after it is over."""
    steps = [by for number, since, by in seen.steps if number == one["client"] and since <= one["wall"]]
    return max(float(one["clock_ms"]), (float(one["wall"]) + max([0.0, *steps])) * 1_000)
