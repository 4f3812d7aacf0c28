"""Promise 6 as consumers saw it: no message is lost, and none came before its time."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from tests.soak.audit.evidence import At, Evidence, Op
from tests.soak.scene import CONSUMED, DELAYED, PLAIN, SOUGHT


def wrong_delivered(seen: Evidence) -> Iterator[str]:
    """Each message that was answered and is due was received; and by the consumer's own clock it was due."""
    due = {name: dict(_due(name, seen.ops)) for name in (*PLAIN, *DELAYED)}
    received: dict[str, set[At]] = defaultdict(set)
    for one in seen.received:
        for first, second in one["positions"]:
            if one["subscription"] == CONSUMED:
                received[one["topic"]].add((first, second))
            time_ms = due[one["topic"]].get((first, second))
            if time_ms is not None and time_ms > _clock_ms(seen, one):
                early = time_ms - _clock_ms(seen, one)
                yield f"{one['topic']}: {(first, second)} was received {early:.0f} ms before its time"
    for name in (*PLAIN, *DELAYED):
        for at, time_ms in sorted(due[name].items()):
            if (time_ms is None or time_ms <= seen.ended_s * 1_000) and at not in received[name]:
                yield f"{name}: {at} was due at {time_ms or 'once'}, and nobody received it"
    listed = {ledger_id for ledger_id, row in seen.ledgers.items() if row["place"] is not None}
    for name in DELAYED:
        for at in sorted(unsought(name, seen.ops, seen.received, listed, seen.ended_s * 1_000)):
            yield f"{name}: {at} was due, stands behind where {SOUGHT} was set to, and did not come again"


def last_seek(name: str, ops: Iterable[Op]) -> Op | None:
    """The last one in a topic that was answered: the same client asks again until one is."""
    done = [op for op in ops if op.kind == "seek" and op.asked["topic"] == name and op.end == "done"]
    return max(done, key=lambda op: op.asked_s, default=None)


def unsought(
    name: str, ops: Collection[Op], received: Iterable[Mapping[str, Any]], listed: Collection[int], until_ms: float
) -> set[At]:
    """Messages that were due, from where the last seek went to, and that did not come since.

    What is in no list any more was let go of before the seek, if both subscriptions were past it.
    """
    last = last_seek(name, ops)
    if last is None:
        return set()
    wanted = {at for at, time_ms in _due(name, ops) if time_ms is None or time_ms <= until_ms}
    wanted = {at for at in wanted if at >= tuple(last.asked["to"])}
    for one in received:
        if (one["topic"], one["subscription"]) == (name, SOUGHT) and one["wall"] >= last.asked_s:
            wanted.difference_update((first, second) for first, second in one["positions"])
    may_go = passed(op for op in ops if op.asked.get("topic") == name and op.asked_s < last.asked_s)
    return {at for at in wanted if at[0] in listed or not may_go(at)}


def passed(ops: Iterable[Op]) -> Callable[[At], bool]:
    """Whether all subscriptions of a topic of delayed messages were once past an entry: then it may go."""
    by: dict[str, set[At]] = {CONSUMED: set(), SOUGHT: set()}
    furthest: At = (-1, -1)
    for op in ops:
        if op.kind == "acknowledge":
            by[op.asked["subscription"]] |= op.positions
        elif op.kind == "seek":
            furthest = max(furthest, (op.asked["to"][0], op.asked["to"][1]))
    return lambda at: at in by[CONSUMED] and (at in by[SOUGHT] or at < furthest)


def _due(name: str, ops: Iterable[Op]) -> Iterator[tuple[At, int | None]]:
    """Each entry of a topic whose append was answered, with its delivery time in ms."""
    for op in ops:
        if op.kind == "append" and op.asked["topic"] == name:
            times = op.asked.get("deliver_at_ms") or [None] * len(op.asked["payloads"])
            for (at, _), time_ms in zip(op.stored, times[op.answer.get("duplicates", 0) :], strict=False):
                yield at, time_ms


def _clock_ms(seen: Evidence, one: Mapping[str, Any]) -> float:
    """The furthest that the consumer's clock had come: a step forward makes due what is handed out after it is over."""
    steps = [by for number, since, by in seen.steps if number == one["client"] and since <= one["wall"]]
    return max(float(one["clock_ms"]), (float(one["wall"]) + max([0.0, *steps])) * 1_000)
