"""The soak's auditor finds each kind of violation, under the right promise, and nothing in a store that keeps them."""

from collections.abc import Callable, MutableMapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.soak.audit.evidence import (
    PRIMARY,
    TIERED,
    ClientOperation,
    Evidence,
    LogEntry,
    join_operations,
    ledger_prefix,
)
from tests.soak.audit.promise_checks import count_sets, find_violations
from tests.soak.flawless_evidence import NOW_S, ledger_row, make_flawless_evidence, make_operation
from tests.soak.soak_setup import (
    CONSUMING_SUBSCRIPTION,
    DELAYED_TOPICS,
    HOLDING_SUBSCRIPTION,
    LIST_TOPICS,
    PLAIN_TOPICS,
    SOUGHT_SUBSCRIPTION,
    SOURCE_TOPIC,
)

Harm = Callable[[Evidence], object]


def _rows(seen: Evidence, table: str) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", seen.tables[table])


def _objects(seen: Evidence, role: str) -> MutableMapping[str, int]:
    return cast("MutableMapping[str, int]", seen.objects[role])


def _entries(seen: Evidence, topic_id: int) -> dict[tuple[int, int], LogEntry]:
    return cast("dict[tuple[int, int], LogEntry]", seen.entries[topic_id])


def _ops(seen: Evidence) -> list[ClientOperation]:
    return cast("list[ClientOperation]", seen.ops)


def _set(seen: Evidence, table: str, row: int, **values: Any) -> None:
    _rows(seen, table)[row].update(values)


def _reread(seen: Evidence, elements: list[Any]) -> None:
    seen.reads = [{**seen.reads[0], "elements": elements}]


def _unanswer(seen: Evidence, kind: str) -> None:
    """Nobody asked for that."""
    seen.ops = [one for one in seen.ops if one.kind != kind]


def _rebuilt(seen: Evidence) -> Evidence:
    assert seen.rebuilt
    return seen.rebuilt


def _copied(seen: Evidence, table: str) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", seen.replica[table])


def _answer(seen: Evidence, kind: str, ledger_id: int, **answer: Any) -> None:
    """Let one job have been answered otherwise."""
    at = next(n for n, one in enumerate(seen.ops) if one.kind == kind and one.asked["ledger"] == ledger_id)
    _ops(seen)[at] = replace(seen.ops[at], answer=answer)


def _seek(seen: Evidence, to: list[int], mark: tuple[int, int]) -> None:
    """Let the last seek have gone there, and the cursor stand elsewhere."""
    _ops(seen).append(
        make_operation("seek", at_s=NOW_S + 1, topic=DELAYED_TOPICS[0], subscription=SOUGHT_SUBSCRIPTION, to=to)
    )
    seen.acknowledged = {**seen.acknowledged, (5, SOUGHT_SUBSCRIPTION): (mark, frozenset())}


def _vanish(seen: Evidence) -> None:
    """Entry and segment of the only reader's topic, as if they had never been."""
    del _entries(seen, 1)[1, 1]
    seen.seen = {1: [((1, 0), "a")]}


def test_store_that_keeps_every_promise_has_no_violation() -> None:
    """And its sets are counted."""
    seen = make_flawless_evidence()
    assert find_violations(seen) == []
    assert count_sets(seen) == {
        "stored ledgers": 9,
        "stored tiered copies": 1,
        "referenced ledgers": 10,
        "intended deletions": 1,
        "deletions that ended": 1,
        "dead letters": 0,
        "tombstones": 1,
        "visible entries": 12,
        "pending delayed messages": 1,
    }


_PLANTED: list[tuple[int, str, Harm]] = [
    (1, "is None in storage", lambda it: _objects(it, PRIMARY).pop(f"{ledger_prefix(1)}00000000.parquet")),
    (1, "of 101 bytes is 7", lambda it: _objects(it, PRIMARY).update({f"{ledger_prefix(1)}00000000.parquet": 7})),
    (1, "without its statement", lambda it: _objects(it, PRIMARY).pop(f"{ledger_prefix(1)}aa.meta.json")),
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
    (1, "holds 'z'", lambda it: _entries(it, 1).update({(1, 1): LogEntry(payload="z")})),
    (1, "ledger 33 was to stay", lambda it: _entries(it, 7).pop((33, 0))),
    (1, "ledger 35 was to stay", lambda it: _entries(it, 8).pop((35, 0))),
    (1, "ledger 36 was to stay", lambda it: _entries(it, 8).update({(36, 0): LogEntry(payload="x")})),
    (1, "its end was not refused", lambda it: _answer(it, "operate", 33, refused=False)),
    (1, "its tiered copy was taken away", lambda it: _rows(it, "ledger_copy").append(
        {"ledger_id": 31, "kind": "OFFLOADED_LEDGER", "state": "LIVE", "context": {"uuid": "u"}})),
    (1, "rebuilt: ledger 1: segment 0 of 101 bytes is None", lambda it: _objects(_rebuilt(it), PRIMARY).pop(
        f"{ledger_prefix(1)}00000000.parquet")),
    (1, "rebuilt: " + PLAIN_TOPICS[0], lambda it: _entries(_rebuilt(it), 1).pop((1, 1))),
    (2, "ledger 8 is forgotten", lambda it: _objects(it, PRIMARY).update({f"{ledger_prefix(8)}00000000.parquet": 1})),
    (2, "no segment is of that number", lambda it: _objects(it, PRIMARY).update(
        {f"{ledger_prefix(1)}00000007.parquet": 1})),
    (2, "no segment is of that number", lambda it: _objects(it, PRIMARY).update(
        {f"{ledger_prefix(1)}00140000.parquet": 1})),
    (2, "tiered copy v of ledger 5", lambda it: _objects(it, TIERED).update({"v-ledger-5": 1})),
    (2, "tiered copy v of ledger 5", lambda it: cast("list[str]", it.uploads).append("v-ledger-5")),
    (2, "in no list", lambda it: _rows(it, "ledger").append({**ledger_row(8, 1, 0), "place": None})),
    (2, "has not ended", lambda it: _set(it, "pending_deletion", 0, state="PENDING")),
    (2, "without a reason", lambda it: _set(it, "pending_deletion", 0, state="DEAD_LETTERED")),
    (2, "ended as RETRYING", lambda it: _set(it, "pending_deletion", 0, outcome="RETRYING")),
    (2, "still runs", lambda it: cast("list[str]", it.waits).append("a job still runs")),
    (3, "was touched", lambda it: cast("dict[Any, str]", it.foreign_digests_at_end).clear()),
    (3, "is no ledger's", lambda it: _objects(it, PRIMARY).update({"stray": 1})),
    (3, "is no copy's", lambda it: _objects(it, TIERED).update({"stray": 1})),
    (4, "COMMITTED, and is ABORTED", lambda it: _set(it, "transaction", 0, state="ABORTED")),
    (4, "for ever", lambda it: _set(it, "transaction", 1, state="ABORTING")),
    (4, "there is none", lambda it: _rows(it, "transaction").pop(0)),
    (4, "nobody asked for that", lambda it: _unanswer(it, "commit")),
    (4, "the log says []", lambda it: _entries(it, 3).pop((3, 1))),
    (4, "is not its", lambda it: _entries(it, 3).update({(3, 0): LogEntry(payload="t", txn="0:2")})),
    (4, "was never told", lambda it: _rows(it, "transaction_participant").append(
        {"tc_id": 0, "sequence": 1, "topic": "t", "subscription": "", "settled_us": None})),
    (4, "which was aborted", lambda it: it.acknowledged.update(  # type: ignore[attr-defined]
        {(4, CONSUMING_SUBSCRIPTION): ((4, 1), frozenset())})),
    (4, "was acknowledged in transaction", lambda it: it.acknowledged.update(  # type: ignore[attr-defined]
        {(4, CONSUMING_SUBSCRIPTION): ((4, -1), frozenset())})),
    (4, "before a read that does not have it", lambda it: _reread(it, [])),
    (4, "and not decided", lambda it: _set(it, "transaction", 0, decided_us=(NOW_S + 5) * 1e6)),
    (4, "too many", lambda it: setattr(it, "seen", {2: [((2, 0), "t"), ((2, 1), "half")]})),
    (4, "too few", lambda it: setattr(it, "seen", {2: []})),
    (5, "is in the catalog", lambda it: _rows(it, "ledger").append(ledger_row(9, 1, 0))),
    (5, "and is stored", lambda it: _objects(it, PRIMARY).update({f"{ledger_prefix(9)}aa.meta.json": 1})),
    (5, "its newest record lives", lambda it: it.recorded.update({("ledger", 9): True})),  # type: ignore[attr-defined]
    (5, "ledger 32 was answered as ended, and is in the catalog", lambda it: _rows(it, "ledger").append(
        ledger_row(32, 7, 1))),
    (5, "ledger 34 was answered as ended, and is stored", lambda it: _objects(it, PRIMARY).update(
        {f"{ledger_prefix(34)}aa.meta.json": 1})),
    (5, "rebuilt: y was deleted and is a topic", lambda it: _rows(_rebuilt(it), "topic").append(
        {"topic_id": 77, "name": "y"})),
    (5, "rebuilt: ledger 32 was answered as ended", lambda it: _rows(_rebuilt(it), "ledger").append(
        ledger_row(32, 7, 1))),
    (5, "the replica lacks 1 rows of ledger", lambda it: _rows(it, "ledger").append(ledger_row(40, 1, 0))),
    (5, "beyond the catalog, 1 rows of transaction", lambda it: _rows(it, "transaction").pop()),
    (5, "beyond the catalog, 1 rows of ledger", lambda it: _copied(it, "ledger").append(ledger_row(32, 7, 1))),
    (5, "beyond the catalog, 1 rows of ledger", lambda it: _copied(it, "ledger").append(ledger_row(9, 1, 1))),
    (5, "beyond the catalog, 1 rows of topic", lambda it: _copied(it, "topic").append({"topic_id": 77, "name": "y"})),
    (5, "the replica lacks 1 rows of delayed_index", lambda it: _copied(it, "delayed_index").clear()),
    (5, "the replica lacks 1 rows of tombstone", lambda it: _copied(it, "tombstone").clear()),
    (5, "the replica lacks 1 rows of tombstone", lambda it: _copied(it, "tombstone")[0].update(component="SCHEMA")),
    (5, "the replica lacks 1 rows of tombstone", lambda it: _copied(it, "tombstone")[0].update(generation=None)),
    (5, "ledger 1 lives in one bucket", lambda it: it.shipped.update(  # type: ignore[attr-defined]
        {("ledger", 1): False})),
    (5, "ledger_list has rows of it", lambda it: _rows(it, "ledger_list").append(
        {"list_id": 70, "topic_id": 77, "component": "MANAGED_LEDGER"})),
    (5, "the record log does not know it", lambda it: it.recorded.pop(("ledger", 1))),  # type: ignore[attr-defined]
    (5, "is not in the record log", lambda it: it.recorded.update({("ledger", 9): True})),  # type: ignore[attr-defined]
    (5, "were never flushed", lambda it: _rows(it, "record_outbox").append({"version": 1})),
    (6, "nobody received it", lambda it: setattr(it, "received", [it.received[0], it.received[2]])),
    (6, "did not come again", lambda it: setattr(it, "received", it.received[:2])),
    (6, "ms before its time", lambda it: cast("list[Any]", it.received).append(
        {**it.received[1], "positions": [[5, 1]]})),
    (6, "stands in 0 buckets", lambda it: setattr(it, "buckets", {6: []})),
    (6, "stands in 2 buckets", lambda it: setattr(it, "buckets", {6: [(5, 1), (5, 1)]})),
    (7, "fell from 2 to 1", lambda it: cast("list[Any]", it.fences).append((NOW_S + 2, 0, 1, "w"))),
    (7, "is of v and of w", lambda it: cast("list[Any]", it.fences).append((NOW_S + 2, 0, 2, "w"))),
    (7, "is x's in ZooKeeper", lambda it: setattr(it, "owners", {0: "x"})),
    (8, "'a' is there 2 times", lambda it: _entries(it, 1).update({(1, 2): LogEntry(payload="a")})),
    (8, "was refused as not stored", lambda it: _entries(it, 1).update({(1, 2): LogEntry(payload="refused")})),
    (8, "stands behind 2", lambda it: _entries(it, 1).update(
        {(1, 2): LogEntry(payload="producer-0 2"), (1, 3): LogEntry(payload="producer-0 1")})),
    (8, "segment has", lambda it: _rows(it, "segment").append(_rows(it, "segment")[5])),
    (8, "a client met", lambda it: cast("list[str]", it.faults).append("TypeError")),
    (8, "failed with", lambda it: cast("list[Any]", it.failed_workflows).append(("trim-topic/1", "KeyError"))),
    (8, "ended with -9", lambda it: cast("dict[str, int]", it.exits).update({"worker 0": -9})),
    (8, "by sought was answered, and is lost", lambda it: it.acknowledged.update(  # type: ignore[attr-defined]
        {(5, SOUGHT_SUBSCRIPTION): ((4, -1), frozenset())})),
    (8, "sought was set to (5, 1)", lambda it: _seek(it, [5, 1], (5, -1))),
    (8, "was answered, and is lost", lambda it: it.acknowledged.update(  # type: ignore[attr-defined]
        {(1, CONSUMING_SUBSCRIPTION): ((1, -1), frozenset())})),
    (8, "nobody asked for that", lambda it: it.acknowledged.update(  # type: ignore[attr-defined]
        {(1, CONSUMING_SUBSCRIPTION): ((1, 1), frozenset())})),
    (8, "has lost its subscription", lambda it: it.acknowledged.pop((1, CONSUMING_SUBSCRIPTION))),  # type: ignore[attr-defined]
    (8, "has lost its subscription hold", lambda it: it.acknowledged.pop((2, HOLDING_SUBSCRIPTION))),  # type: ignore[attr-defined]
    (8, "by hold, and nobody asked for that", lambda it: it.acknowledged.update(  # type: ignore[attr-defined]
        {(4, HOLDING_SUBSCRIPTION): ((4, 0), frozenset())})),
    (8, "by s, and nobody asked for that", lambda it: it.acknowledged.update(  # type: ignore[attr-defined]
        {(2, CONSUMING_SUBSCRIPTION): ((-1, -1), frozenset({(2, 0)}))})),
    (8, "(4, 1) counts as acknowledged by s, and nobody asked for that", lambda it: it.acknowledged.update(  # type: ignore[attr-defined]
        {(4, CONSUMING_SUBSCRIPTION): ((4, 1), frozenset())})),
    (8, "by hold, and nobody asked for that", lambda it: _rebuilt(it).acknowledged.update(  # type: ignore[attr-defined]
        {(3, HOLDING_SUBSCRIPTION): ((3, 0), frozenset())})),
    (6, "the check delayed_index failed with", lambda it: _rows(it, "delayed_index").append({"topic_id": 5})),
]  # fmt: skip


@pytest.mark.parametrize(("promise", "told", "harm"), _PLANTED, ids=[f"{one}-{told}" for one, told, _ in _PLANTED])
def test_planted_violation_is_found(promise: int, told: str, harm: Harm) -> None:
    """A check that finds nothing here would find nothing in ten minutes either."""
    seen = make_flawless_evidence()
    harm(seen)
    found = find_violations(seen)
    assert [one for one in found if one.promise == promise and told in one.sentence], found


def _consume(seen: Evidence) -> None:
    _ops(seen).append(make_operation("acknowledge", topic=PLAIN_TOPICS[0], positions=[[1, 1]]))
    for table in ("ledger", "segment", "ledger_copy"):
        _rows(seen, table)[:] = [row for row in _rows(seen, table) if row["ledger_id"] != 1]
    for key in [key for key in seen.objects[PRIMARY] if key.startswith(ledger_prefix(1))]:
        del _objects(seen, PRIMARY)[key]
    _entries(seen, 1).clear()
    seen.seen = {1: []}
    seen.acknowledged = {**seen.acknowledged, (1, CONSUMING_SUBSCRIPTION): ((1, 1), frozenset())}


def _hide(seen: Evidence) -> None:
    _entries(seen, 2)[0, 0] = LogEntry(payload="older", txn="0:2")
    _set(seen, "transaction", 1, finished_us=(NOW_S + 5) * 1e6)
    _ops(seen)[:] = [one for one in seen.ops if one.kind != "abort"]
    _reread(seen, [])


def _dead_letter(seen: Evidence) -> None:
    _set(seen, "pending_deletion", 0, state="DEAD_LETTERED", last_error="METADATA_MISMATCH")
    _objects(seen, PRIMARY)[f"{ledger_prefix(9)}theirs.txt"] = 1


def _leave(seen: Evidence) -> None:
    """A tombstone that a raid took from the catalog, and a topic that was deleted plainly."""
    _copied(seen, "tombstone").append({"kind": "ledger", "id": 10})
    _copied(seen, "topic").append({"topic_id": 78, "name": "z"})


def _seed_again(seen: Evidence) -> None:
    """The versions that a tombstone covered are off the disk: nothing says any more whose it was."""
    _copied(seen, "tombstone")[0].update(topic_id=None, list_id=None, component=None)


def _return(seen: Evidence) -> None:
    """A topic that was deleted plainly, once the database is lost."""
    lost = _rebuilt(seen)
    gone = make_operation("delete-topic", {"refused": False}, topic="z", topic_id=78, durable=False)
    for one in (seen, lost):
        _ops(one).append(gone)
    _rows(lost, "topic").append({"topic_id": 78, "name": "z"})
    _rows(lost, "schema_version").append({"topic_id": 78, "version": 0, "ledger_id": 41, "digest": "x"})


def _never_seal(seen: Evidence) -> None:
    """A topic got its first delayed message, and no seal has come since."""
    _rows(seen, "delayed_index").append({"topic_id": 13, "version": 0, "sealed_ledger": -1, "sealed_entry": -1})


def _refuse_elsewhere(seen: Evidence) -> None:
    error = {"error": "StoreUnavailable"}
    _ops(seen).append(make_operation("append", error, end="failed", topic=LIST_TOPICS[2], payloads=["t"], txn="0:1"))


@pytest.mark.parametrize(
    "allow",
    [
        pytest.param(_consume, id="a trimmed ledger whose entries were acknowledged"),
        pytest.param(_hide, id="a read behind a transaction that was open"),
        pytest.param(_return, id="a topic without a tombstone, back in a rebuilt catalog"),
        pytest.param(_refuse_elsewhere, id="an element of two lists that a third one refused"),
        pytest.param(_leave, id="rows of a replica that no tombstone took away"),
        pytest.param(_never_seal, id="an index that was never sealed, and is in no record"),
        pytest.param(_seed_again, id="a tombstone of a replica that was seeded behind a defragmentation"),
        pytest.param(_dead_letter, id="a refused deletion that says why"),
    ],
)
def test_what_the_design_allows_is_no_violation(allow: Harm) -> None:
    """The auditor is strict and not wrong."""
    seen = make_flawless_evidence()
    allow(seen)
    for table in seen.tables.keys() - {"tombstone", "topic"}:
        _copied(seen, table)[:] = deepcopy([row for row in _rows(seen, table) if row.get("version") != 0])
    assert find_violations(seen) == []


def test_questions_and_answers_of_journals_are_joined() -> None:
    """One without an answer is unknown: its process died, or did not hear."""
    asked = {"what": "asked", "kind": "append", "topic": LIST_TOPICS[0], "payloads": ["a"], "wall": 1.0}
    said = [
        {**asked, "op": "x"},
        {**asked, "op": "y", "wall": 0.5},
        {"what": "done", "op": "x", "kind": "append", "wall": 2.0, "first": [7, 3], "duplicates": 0},
    ]
    unknown, done = join_operations(said)
    assert (unknown.end, list(unknown.stored)) == ("unknown", [])
    assert (done.end, done.ended_s, list(done.stored)) == ("done", 2.0, [((7, 3), "a")])
    assert list(replace(done, answer={"first": [7, 3], "duplicates": 1}).stored) == []
    assert {SOURCE_TOPIC, DELAYED_TOPICS[0]}.isdisjoint(LIST_TOPICS)
