"""Promise 6: no consumer misses a message or receives one before its time."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from tests.soak.audit.evidence import At, Evidence, Operation
from tests.soak.scene import CONSUMED, DELAYED, PLAIN, SOUGHT


def check_deliveries(evidence: Evidence) -> Iterator[str]:
    """Check that each answered, due message was received, and was due by the consumer's own clock."""
    due = {name: dict(_delivery_times(name, evidence.ops)) for name in (*PLAIN, *DELAYED)}
    received: dict[str, set[At]] = defaultdict(set)
    for delivery in evidence.received:
        for first, second in delivery["positions"]:
            if delivery["subscription"] == CONSUMED:
                received[delivery["topic"]].add((first, second))
            time_ms = due[delivery["topic"]].get((first, second))
            if time_ms is not None and time_ms > _clock_ms(evidence, delivery):
                early_ms = time_ms - _clock_ms(evidence, delivery)
                yield f"{delivery['topic']}: {(first, second)} was received {early_ms:.0f} ms before its time"
    for name in (*PLAIN, *DELAYED):
        for at, time_ms in sorted(due[name].items()):
            if (time_ms is None or time_ms <= evidence.ended_s * 1_000) and at not in received[name]:
                yield f"{name}: {at} was due at {time_ms or 'once'}, and nobody received it"
    listed = {ledger_id for ledger_id, row in evidence.ledgers.items() if row["place"] is not None}
    for name in DELAYED:
        for at in sorted(missing_after_seek(name, evidence.ops, evidence.received, listed, evidence.ended_s * 1_000)):
            yield f"{name}: {at} was due, stands behind where {SOUGHT} was set to, and did not come again"


def last_seek(name: str, ops: Iterable[Operation]) -> Operation | None:
    """Return the last answered seek in a topic. The same client repeats a seek until one is answered."""
    answered = [op for op in ops if op.kind == "seek" and op.asked["topic"] == name and op.end == "done"]
    return max(answered, key=lambda op: op.asked_s, default=None)


def missing_after_seek(
    name: str,
    ops: Collection[Operation],
    received: Iterable[Mapping[str, Any]],
    listed: Collection[int],
    until_ms: float,
) -> set[At]:
    """Return the due messages behind the last seek that were not received since.

    Messages of unlisted ledgers are left out if both subscriptions had passed them before the seek.
    """
    last = last_seek(name, ops)
    if last is None:
        return set()
    missing = {at for at, time_ms in _delivery_times(name, ops) if time_ms is None or time_ms <= until_ms}
    missing = {at for at in missing if at >= tuple(last.asked["to"])}
    for delivery in received:
        if (delivery["topic"], delivery["subscription"]) == (name, SOUGHT) and delivery["wall"] >= last.asked_s:
            missing.difference_update((first, second) for first, second in delivery["positions"])
    has_passed = make_passed_predicate(op for op in ops if op.asked.get("topic") == name and op.asked_s < last.asked_s)
    return {at for at in missing if at[0] in listed or not has_passed(at)}


def make_passed_predicate(ops: Iterable[Operation]) -> Callable[[At], bool]:
    """Return a predicate: whether all subscriptions of a delayed topic were once past an entry."""
    acknowledged: dict[str, set[At]] = {CONSUMED: set(), SOUGHT: set()}
    furthest: At = (-1, -1)
    for op in ops:
        if op.kind == "acknowledge":
            acknowledged[op.asked["subscription"]] |= op.positions
        elif op.kind == "seek":
            furthest = max(furthest, (op.asked["to"][0], op.asked["to"][1]))
    return lambda at: at in acknowledged[CONSUMED] and (at in acknowledged[SOUGHT] or at < furthest)


def _delivery_times(name: str, ops: Iterable[Operation]) -> Iterator[tuple[At, int | None]]:
    """Yield each answered entry of a topic with its delivery time in ms."""
    for op in ops:
        if op.kind == "append" and op.asked["topic"] == name:
            times = op.asked.get("deliver_at_ms") or [None] * len(op.asked["payloads"])
            for (at, _), time_ms in zip(op.stored, times[op.answer.get("duplicates", 0) :], strict=False):
                yield at, time_ms


def _clock_ms(evidence: Evidence, delivery: Mapping[str, Any]) -> float:
    """Return the latest time of the consumer's clock: messages due by a past step forward may still come."""
    steps = [by for number, since, by in evidence.steps if number == delivery["client"] and since <= delivery["wall"]]
    return max(float(delivery["clock_ms"]), (float(delivery["wall"]) + max([0.0, *steps])) * 1_000)
