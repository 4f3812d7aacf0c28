"""Promise 6: no consumer misses a message or receives one before its time."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from tests.soak.audit.evidence import ClientOperation, EntryPosition, Evidence
from tests.soak.soak_setup import CONSUMING_SUBSCRIPTION, DELAYED_TOPICS, PLAIN_TOPICS, SOUGHT_SUBSCRIPTION


def check_deliveries(evidence: Evidence) -> Iterator[str]:
    """Check that each answered, due message was received, and was due by the consumer's own clock."""
    due = {name: dict(_delivery_times(name, evidence.ops)) for name in (*PLAIN_TOPICS, *DELAYED_TOPICS)}
    received: dict[str, set[EntryPosition]] = defaultdict(set)
    for delivery in evidence.received:
        for ledger_id, entry_id in delivery["positions"]:
            position = (ledger_id, entry_id)
            if delivery["subscription"] == CONSUMING_SUBSCRIPTION:
                received[delivery["topic"]].add(position)
            time_ms = due[delivery["topic"]].get(position)
            if time_ms is not None and time_ms > _clock_ms(evidence, delivery):
                early_ms = time_ms - _clock_ms(evidence, delivery)
                yield f"{delivery['topic']}: {position} was received {early_ms:.0f} ms before its time"
    for name in (*PLAIN_TOPICS, *DELAYED_TOPICS):
        for position, time_ms in sorted(due[name].items()):
            if (time_ms is None or time_ms <= evidence.ended_s * 1_000) and position not in received[name]:
                yield f"{name}: {position} was due at {time_ms or 'once'}, and nobody received it"
    listed = {ledger_id for ledger_id, row in evidence.ledgers.items() if row["place"] is not None}
    for name in DELAYED_TOPICS:
        for position in sorted(
            find_missing_after_seek(name, evidence.ops, evidence.received, listed, evidence.ended_s * 1_000)
        ):
            place = f"stands behind where {SOUGHT_SUBSCRIPTION} was set to"
            yield f"{name}: {position} was due, {place}, and did not come again"


def find_last_seek(name: str, ops: Iterable[ClientOperation]) -> ClientOperation | None:
    """Return the last answered seek in a topic. The same client repeats a seek until one is answered."""
    answered = [op for op in ops if op.kind == "seek" and op.asked["topic"] == name and op.end == "done"]
    return max(answered, key=lambda op: op.requested_s, default=None)


def find_missing_after_seek(
    name: str,
    ops: Collection[ClientOperation],
    received: Iterable[Mapping[str, Any]],
    listed_ledgers: Collection[int],
    until_ms: float,
) -> set[EntryPosition]:
    """Return the due messages behind the last seek that were not received since.

    Messages of unlisted ledgers are left out if both subscriptions had passed them before the seek.
    """
    seek = find_last_seek(name, ops)
    if seek is None:
        return set()
    missing = {position for position, time_ms in _delivery_times(name, ops) if time_ms is None or time_ms <= until_ms}
    missing = {position for position in missing if position >= tuple(seek.asked["to"])}
    for delivery in received:
        if (delivery["topic"], delivery["subscription"]) == (name, SOUGHT_SUBSCRIPTION) and delivery[
            "wall"
        ] >= seek.requested_s:
            missing.difference_update((ledger_id, entry_id) for ledger_id, entry_id in delivery["positions"])
    has_passed = make_passed_predicate(
        op for op in ops if op.asked.get("topic") == name and op.requested_s < seek.requested_s
    )
    return {position for position in missing if position[0] in listed_ledgers or not has_passed(position)}


def make_passed_predicate(ops: Iterable[ClientOperation]) -> Callable[[EntryPosition], bool]:
    """Return a predicate: whether all subscriptions of a delayed topic were once past an entry."""
    acknowledged: dict[str, set[EntryPosition]] = {CONSUMING_SUBSCRIPTION: set(), SOUGHT_SUBSCRIPTION: set()}
    furthest_seek: EntryPosition = (-1, -1)
    for op in ops:
        if op.kind == "acknowledge":
            acknowledged[op.asked["subscription"]] |= op.positions
        elif op.kind == "seek":
            furthest_seek = max(furthest_seek, (op.asked["to"][0], op.asked["to"][1]))
    return lambda position: (
        position in acknowledged[CONSUMING_SUBSCRIPTION]
        and (position in acknowledged[SOUGHT_SUBSCRIPTION] or position < furthest_seek)
    )


def _delivery_times(name: str, ops: Iterable[ClientOperation]) -> Iterator[tuple[EntryPosition, int | None]]:
    """Yield each answered entry of a topic with its delivery time in ms."""
    for op in ops:
        if op.kind == "append" and op.asked["topic"] == name:
            times = op.asked.get("deliver_at_ms") or [None] * len(op.asked["payloads"])
            for (position, _), time_ms in zip(op.stored, times[op.answer.get("duplicates", 0) :], strict=False):
                yield position, time_ms


def _clock_ms(evidence: Evidence, delivery: Mapping[str, Any]) -> float:
    """Return the latest time of the consumer's clock: messages due by a past step forward may still come."""
    steps = [
        step_s for number, since, step_s in evidence.steps if number == delivery["client"] and since <= delivery["wall"]
    ]
    return max(float(delivery["clock_ms"]), (float(delivery["wall"]) + max([0.0, *steps])) * 1_000)
