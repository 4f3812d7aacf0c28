"""The soak's auditor finds each kind of violation, under the right promise, and nothing in a store that keeps them."""

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.soak.audit.evidence import PRIMARY, TIERED, Entry, Evidence, Op, ops_of, prefix
from tests.soak.audit.promises import sets, violations
from tests.soak.honest import NOW_S, honest, ledger, op
from tests.soak.scene import CONSUMED, DELAYED, LISTS, PLAIN, SOURCE

Harm = Callable[[Evidence], object]


def _rows(seen: Evidence, table: str) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", seen.tables[table])


def _objects(seen: Evidence, role: str) -> MutableMapping[str, int]:
    return cast("MutableMapping[str, int]", seen.objects[role])


def _entries(seen: Evidence, topic_id: int) -> dict[tuple[int, int], Entry]:
    return cast("dict[tuple[int, int], Entry]", seen.entries[topic_id])


def _ops(seen: Evidence) -> list[Op]:
    return cast("list[Op]", seen.ops)


def _set(seen: Evidence, table: str, row: int, **values: Any) -> None:
    _rows(seen, table)[row].update(values)


def _reread(seen: Evidence, elements: list[Any]) -> None:
    seen.reads = [{**seen.reads[0], "elements": elements}]


def _unanswer(seen: Evidence, kind: str) -> None:
    """Nobody asked for that."""
    seen.ops = [one for one in seen.ops if one.kind != kind]


def _vanish(seen: Evidence) -> None:
    """Entry and segment of the only reader's topic, as if they had never been."""
    del _entries(seen, 1)[1, 1]
    seen.seen = {1: [((1, 0), "a")]}


def test_store_that_keeps_every_promise_has_no_violation() -> None:
    """And its sets are counted."""
    seen = honest()
    assert violations(seen) == []
    assert sets(seen) == {
        "stored ledgers": 5,
        "stored tiered copies": 1,
        "referenced ledgers": 6,
        "intended deletions": 1,
        "deletions that ended": 1,
        "dead letters": 0,
        "tombstones": 1,
        "visible entries": 8,
        "pending delayed messages": 1,
    }


_PLANTED: list[tuple[int, str, Harm]] = [
    (1, "is None in storage", lambda it: _objects(it, PRIMARY).pop(f"{prefix(1)}00000000.parquet")),
    (1, "of 101 bytes is 7", lambda it: _objects(it, PRIMARY).update({f"{prefix(1)}00000000.parquet": 7})),
    (1, "without its statement", lambda it: _objects(it, PRIMARY).pop(f"{prefix(1)}aa.meta.json")),
    (1, "u-ledger-5-index is lost", lambda it: _objects(it, TIERED).pop("u-ledger-5-index")),
    (1, "has no copy", lambda it: _set(it, "ledger_copy", 5, state="WRITING")),
    (1, "its segments 2", lambda it: _set(it, "ledger", 0, entries=3)),
    (1, "begins at 1, not 0", lambda it: _set(it, "segment", 0, first_entry=1, entries=1)),
    (1, "needed as DELAYED_INDEX, listed as None", lambda it: _set(it, "delayed_bucket", 0, ledger_id=8)),
    (1, "needed as None, listed as DELAYED_INDEX", lambda it: _rows(it, "delayed_bucket").clear()),
    (1, "needed as MANAGED_CURSOR", lambda it: _rows(it, "cursor").append({"snapshot_ledger": 9, "topic_id": 1})),
    (1, "is not what was set", lambda it: _rows(it, "schema_version").append(
        {"topic_id": 5, "version": 0, "ledger_id": 6, "digest": "x"})),
    (1, "and it is gone", _vanish),
    (1, "holds 'z'", lambda it: _entries(it, 1).update({(1, 1): Entry(payload="z")})),
    (2, "ledger 8 is forgotten", lambda it: _objects(it, PRIMARY).update({f"{prefix(8)}00000000.parquet": 1})),
    (2, "no segment is of that number", lambda it: _objects(it, PRIMARY).update({f"{prefix(1)}00000007.parquet": 1})),
    (2, "tiered copy v of ledger 5", lambda it: _objects(it, TIERED).update({"v-ledger-5": 1})),
    (2, "tiered copy v of ledger 5", lambda it: cast("list[str]", it.uploads).append("v-ledger-5")),
    (2, "in no list", lambda it: _rows(it, "ledger").append({**ledger(8, 1, 0), "place": None})),
    (2, "has not ended", lambda it: _set(it, "pending_deletion", 0, state="PENDING")),
    (2, "without a reason", lambda it: _set(it, "pending_deletion", 0, state="DEAD_LETTERED")),
    (2, "ended as RETRYING", lambda it: _set(it, "pending_deletion", 0, outcome="RETRYING")),
    (2, "still runs", lambda it: cast("list[str]", it.waits).append("a job still runs")),
    (3, "was touched", lambda it: cast("dict[Any, str]", it.planted_now).clear()),
    (3, "is no ledger's", lambda it: _objects(it, PRIMARY).update({"stray": 1})),
    (3, "is no copy's", lambda it: _objects(it, TIERED).update({"stray": 1})),
    (4, "COMMITTED, and is ABORTED", lambda it: _set(it, "transaction", 0, state="ABORTED")),
    (4, "for ever", lambda it: _set(it, "transaction", 1, state="ABORTING")),
    (4, "there is none", lambda it: _rows(it, "transaction").pop(0)),
    (4, "nobody asked for that", lambda it: _unanswer(it, "commit")),
    (4, "the log says []", lambda it: _entries(it, 3).pop((3, 1))),
    (4, "is not its", lambda it: _entries(it, 3).update({(3, 0): Entry(payload="t", txn="0:2")})),
    (4, "was never told", lambda it: _rows(it, "transaction_participant").append(
        {"tc_id": 0, "sequence": 1, "topic": "t", "subscription": "", "settled_us": None})),
    (4, "which was aborted", lambda it: it.acknowledged.update({(4, CONSUMED): ((4, 1), frozenset())})),  # type: ignore[attr-defined]
    (4, "was acknowledged in transaction", lambda it: it.acknowledged.update({(4, CONSUMED): ((4, -1), frozenset())})),  # type: ignore[attr-defined]
    (4, "before a read that does not have it", lambda it: _reread(it, [])),
    (4, "and not decided", lambda it: _set(it, "transaction", 0, decided_us=(NOW_S + 5) * 1e6)),
    (4, "too many", lambda it: setattr(it, "seen", {2: [((2, 0), "t"), ((2, 1), "half")]})),
    (4, "too few", lambda it: setattr(it, "seen", {2: []})),
    (5, "is in the catalog", lambda it: _rows(it, "ledger").append(ledger(9, 1, 0))),
    (5, "and is stored", lambda it: _objects(it, PRIMARY).update({f"{prefix(9)}aa.meta.json": 1})),
    (5, "its newest record lives", lambda it: it.recorded.update({("ledger", 9): True})),  # type: ignore[attr-defined]
    (5, "ledger_list has rows of it", lambda it: _rows(it, "ledger_list").append(
        {"list_id": 70, "topic_id": 77, "component": "MANAGED_LEDGER"})),
    (5, "the record log does not know it", lambda it: it.recorded.pop(("ledger", 1))),  # type: ignore[attr-defined]
    (5, "is not in the record log", lambda it: it.recorded.update({("ledger", 9): True})),  # type: ignore[attr-defined]
    (5, "were never flushed", lambda it: _rows(it, "record_outbox").append({"version": 1})),
    (6, "nobody received it", lambda it: setattr(it, "received", it.received[:1])),
    (6, "ms before its time", lambda it: cast("list[Any]", it.received).append(
        {**it.received[1], "positions": [[5, 1]]})),
    (6, "stands in 0 buckets", lambda it: setattr(it, "buckets", {6: []})),
    (6, "stands in 2 buckets", lambda it: setattr(it, "buckets", {6: [(5, 1), (5, 1)]})),
    (7, "fell from 2 to 1", lambda it: cast("list[Any]", it.fences).append((NOW_S + 2, 0, 1, "w"))),
    (7, "is of v and of w", lambda it: cast("list[Any]", it.fences).append((NOW_S + 2, 0, 2, "w"))),
    (7, "is x's in ZooKeeper", lambda it: setattr(it, "owners", {0: "x"})),
    (8, "'a' is there 2 times", lambda it: _entries(it, 1).update({(1, 2): Entry(payload="a")})),
    (8, "was refused as not stored", lambda it: _entries(it, 1).update({(1, 2): Entry(payload="refused")})),
    (8, "stands behind 2", lambda it: _entries(it, 1).update(
        {(1, 2): Entry(payload="producer-0 2"), (1, 3): Entry(payload="producer-0 1")})),
    (8, "segment has", lambda it: _rows(it, "segment").append(_rows(it, "segment")[5])),
    (8, "a client met", lambda it: cast("list[str]", it.faults).append("TypeError")),
    (8, "failed with", lambda it: cast("list[Any]", it.failed_workflows).append(("trim-topic/1", "KeyError"))),
    (8, "ended with -9", lambda it: cast("dict[str, int]", it.exits).update({"worker 0": -9})),
    (8, "was answered, and is lost", lambda it: it.acknowledged.update({(1, CONSUMED): ((1, -1), frozenset())})),  # type: ignore[attr-defined]
    (8, "nobody asked for that", lambda it: it.acknowledged.update({(1, CONSUMED): ((1, 1), frozenset())})),  # type: ignore[attr-defined]
    (8, "has lost its subscription", lambda it: it.acknowledged.pop((1, CONSUMED))),  # type: ignore[attr-defined]
]  # fmt: skip


@pytest.mark.parametrize(("promise", "told", "harm"), _PLANTED, ids=[f"{one}-{told}" for one, told, _ in _PLANTED])
def test_planted_violation_is_found(promise: int, told: str, harm: Harm) -> None:
    """A check that finds nothing here would find nothing in ten minutes either."""
    seen = honest()
    harm(seen)
    found = violations(seen)
    assert [one for one in found if one.promise == promise and told in one.sentence], found


def _consume(seen: Evidence) -> None:
    _ops(seen).append(op("acknowledge", topic=PLAIN[0], positions=[[1, 1]]))
    for table in ("ledger", "segment", "ledger_copy"):
        _rows(seen, table)[:] = [row for row in _rows(seen, table) if row["ledger_id"] != 1]
    for key in [key for key in seen.objects[PRIMARY] if key.startswith(prefix(1))]:
        del _objects(seen, PRIMARY)[key]
    _entries(seen, 1).clear()
    seen.seen = {1: []}
    seen.acknowledged = {**seen.acknowledged, (1, CONSUMED): ((1, 1), frozenset())}


def _hide(seen: Evidence) -> None:
    _entries(seen, 2)[0, 0] = Entry(payload="older", txn="0:2")
    _set(seen, "transaction", 1, finished_us=(NOW_S + 5) * 1e6)
    _ops(seen)[:] = [one for one in seen.ops if one.kind != "abort"]
    _reread(seen, [])


def _dead_letter(seen: Evidence) -> None:
    _set(seen, "pending_deletion", 0, state="DEAD_LETTERED", last_error="METADATA_MISMATCH")
    _objects(seen, PRIMARY)[f"{prefix(9)}theirs.txt"] = 1


@pytest.mark.parametrize(
    "allow",
    [
        pytest.param(_consume, id="a trimmed ledger whose entries were acknowledged"),
        pytest.param(_hide, id="a read behind a transaction that was open"),
        pytest.param(_dead_letter, id="a refused deletion that says why"),
    ],
)
def test_what_the_design_allows_is_no_violation(allow: Harm) -> None:
    """The auditor is strict and not wrong."""
    seen = honest()
    allow(seen)
    assert violations(seen) == []


def test_questions_and_answers_of_journals_are_joined() -> None:
    """One without an answer is unknown: its process died, or did not hear."""
    asked = {"what": "asked", "kind": "append", "topic": LISTS[0], "payloads": ["a"], "wall": 1.0}
    said = [
        {**asked, "op": "x"},
        {**asked, "op": "y", "wall": 0.5},
        {"what": "done", "op": "x", "kind": "append", "wall": 2.0, "first": [7, 3], "duplicates": 0},
    ]
    unknown, done = ops_of(said)
    assert (unknown.end, list(unknown.stored)) == ("unknown", [])
    assert (done.end, done.ended_s, list(done.stored)) == ("done", 2.0, [((7, 3), "a")])
    assert list(replace(done, answer={"first": [7, 3], "duplicates": 1}).stored) == []
    assert {SOURCE, DELAYED[0]}.isdisjoint(LISTS)
