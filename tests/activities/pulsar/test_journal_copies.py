"""The copies of a journal in the records bucket are all that an undo needs, and nothing else passes for one."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from activities.pulsar.inputs_and_results import BeginClusterApplyInput, BeginUndoInput
from activities.pulsar.journal_copies import JOURNAL_PREFIX, READ_BACK, JournalCopies, find_or_read_back_apply
from logstore.errors import PreconditionFailed, StoreUnavailable, UnknownObject
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import JournaledLedger, ReconciliationRun, RunKind
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import RESULT, STOPPED, ApplyCounts, PlanOrScrubResult
from tests.activities.activity_world import World, open_activity_world, run
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation

_RUN_ID = "apply-pulsar-1"
_CLAIM = Claim(workflow_id="tests", run_id="", ttl_s=60)
_SUMMARY = {
    "actor": "ann", "reason": "", "plan": "pulsar-1", "pages": 1, "folder": "/bulk", "identity": "5f0a/1/2",
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A catalog that was never told of the apply."""
    opened = open_activity_world(tmp_path)
    with opened.opened:
        yield opened


@pytest.fixture
def records(world: World) -> FakeObjectStore:
    return world.record_objects


def journaled(ledger_id: int, data: bytes = b"\0\xff") -> JournaledLedger:
    path = format_ledger_path(ledger_id)
    return JournaledLedger(ledger_id=ledger_id, path=path, version=3, czxid=2**63 - 1, data=data)


def lost_run(**more: Any) -> ReconciliationRun:
    """The run of the apply, as a catalog knew it that is lost now."""
    return ReconciliationRun(
        run_id=_RUN_ID, kind=RunKind.APPLY, created_us=1, finished_us=None, summary={**_SUMMARY, **more}
    )


def store(records: FakeObjectStore, *ledger_ids: int, **more: Any) -> str:
    """Store one object of the journal. Return its key."""
    before = set(records.keys)
    JournalCopies(records).store(lost_run(**more), list(map(journaled, ledger_ids)))
    (key,) = set(records.keys) - before
    return key


def read_back(world: World) -> ReconciliationRun:
    catalog = world.catalog
    copies = JournalCopies(world.record_objects)
    return find_or_read_back_apply(catalog.reconciliation, catalog.cluster_journal, copies, _RUN_ID, _CLAIM)


def list_journal(world: World) -> list[JournaledLedger]:
    return world.catalog.cluster_journal.list_ledgers(_RUN_ID, after=-1, limit=100)


def test_journal_of_a_lost_catalog_comes_back(world: World, records: FakeObjectStore) -> None:
    """Objects may overlap: an attempt that died before its deletions has stored the same ledgers."""
    store(records, 9, 7)
    store(records, 7, 2**63 - 1)
    found = read_back(world)
    assert list_journal(world) == [journaled(7), journaled(9), journaled(2**63 - 1)]
    assert (found.summary["identity"], found.summary["actor"]) == ("5f0a/1/2", "ann")
    assert found.finished_us is not None
    assert STOPPED not in found.summary, "nobody should be alerted"


def test_apply_of_which_only_the_journal_is_left_does_not_go_on(world: World, records: FakeObjectStore) -> None:
    """The newest plan stays in the catalog longer than its apply."""
    runs, identities = world.catalog.reconciliation, world.catalog.identities
    result = PlanOrScrubResult(findings={}, size_bytes={}, ledgers=9, before_us=1, report="")
    summary = {"catalog_id": identities.catalog_id(), RESULT: asdict(result)}
    runs.open_run("pulsar-1", RunKind.CLUSTER_PLAN, claim=_CLAIM, summary=summary)
    runs.close_run("pulsar-1", summary)
    store(records, 7)
    read_back(world)
    begin = world.activities.cluster_applying.begin_cluster_apply
    scope = run(begin, BeginClusterApplyInput(run_id="pulsar-1", actor="ann"))
    assert scope.done == ApplyCounts(applied={"orphan_ledger": 1})
    assert "plan again" in scope.stopped


def test_journal_of_the_catalog_is_used_without_the_bucket(world: World, records: FakeObjectStore) -> None:
    """An undo races with the garbage collection of bookies, and does not wait for a store that it does not need."""
    world.catalog.reconciliation.open_run(_RUN_ID, RunKind.APPLY, claim=_CLAIM, summary=_SUMMARY)
    world.catalog.cluster_journal.add(_RUN_ID, [journaled(7)])
    records.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=9))
    assert READ_BACK not in read_back(world).summary


def test_run_that_has_lost_its_journal_gets_it_from_the_bucket(world: World, records: FakeObjectStore) -> None:
    world.catalog.reconciliation.open_run(_RUN_ID, RunKind.APPLY, claim=_CLAIM, summary=_SUMMARY)
    key = store(records, 7, identity="77aa/8/9")
    with pytest.raises(PreconditionFailed, match="expected the cluster 5f0a/1/2, as the run or other objects name"):
        read_back(world)
    records.delete([key])
    read_back(world)
    assert list_journal(world) == [], "nothing was deleted"
    store(records, 7, 8)
    assert READ_BACK not in read_back(world).summary
    assert list_journal(world) == [journaled(7), journaled(8)]


def test_journal_that_was_read_in_part_is_read_again(world: World, records: FakeObjectStore) -> None:
    keys = sorted([store(records, 7), store(records, 8)])
    reads: list[str] = []

    def is_second_read(key: str) -> bool:
        reads.append(key)
        return reads.count(keys[1]) == 2

    records.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE, matches=is_second_read))
    with pytest.raises(StoreUnavailable):
        read_back(world)
    assert len(list_journal(world)) == 1
    read_back(world)
    assert list_journal(world) == [journaled(7), journaled(8)]


def test_apply_that_nobody_knows_is_refused(world: World, records: FakeObjectStore) -> None:
    store(records, 7)
    records.delete(list(records.keys))
    with pytest.raises(
        UnknownObject, match="run_id: expected a plan whose apply has deleted ledgers, found 'pulsar-1'"
    ):
        read_back(world)


def _tear(body: bytes) -> bytes:
    return body[:-9]


def _drop_a_line(body: bytes) -> bytes:
    return b"".join(body.splitlines(keepends=True)[:-1])


def _replace(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda body: body.replace(old, new)


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        _tear,
        _drop_a_line,
        lambda _: b"",
        lambda _: b"\xff\n",
        lambda _: b"[]\n{}\n",
        lambda _: b"null\n",
        _replace(b"apply-pulsar-1", b"apply-pulsar-2"),
        _replace(b"journal/1", b"journal/2"),
        _replace(b'"identity"', b'"identify"'),
        _replace(b'"5f0a/1/2"', b"5"),
        _replace(b"L0008", b"L0009"),
        _replace(b"AP8=", b"A!8="),
        _replace(b'"version": 3', b'"version": null'),
    ],
)
def test_torn_or_foreign_object_is_refused_by_name(
    damage: Callable[[bytes], bytes], renamed: bool, world: World, records: FakeObjectStore
) -> None:
    """Also if its name is the digest of what it has, as if another program had written it."""
    key = store(records, 7, 8)
    stored = records.get(key)
    assert stored
    body = damage(stored.body)
    assert body != stored.body
    records.delete([key])
    new_key = f"{JOURNAL_PREFIX}{_RUN_ID}/{sha256(body).hexdigest()}.jsonl" if renamed else key
    records.put_if_absent(new_key, body, metadata={})
    with pytest.raises(PreconditionFailed) as refused:
        read_back(world)
    assert str(refused.value).startswith(f"{new_key}: expected ")
    with pytest.raises(PreconditionFailed):
        run(world.activities.cluster_undoing.begin_undo, BeginUndoInput(run_id="pulsar-1", actor="tests"))


def test_flipped_bit_is_noticed(world: World, records: FakeObjectStore) -> None:
    """Nothing but the digest in the key can tell it from what the apply has stored."""
    key = store(records, 7)
    stored = records.get(key)
    assert stored
    records.delete([key])
    records.put_if_absent(key, stored.body.replace(b"AP8=", b"AP4="), metadata={})
    with pytest.raises(PreconditionFailed, match="expected an object whose name is its SHA-256 digest"):
        read_back(world)


@pytest.mark.parametrize(("foreign", "identity"), [(0, "77aa/8/9"), (1, "5f0a/1/2")])
def test_object_of_another_cluster_is_refused(
    foreign: int, identity: str, world: World, records: FakeObjectStore
) -> None:
    """Until it is moved away. Nothing of it stays in the catalog, whichever of the two was read first."""
    keys = [store(records, 7), store(records, 8, identity="77aa/8/9")]
    with pytest.raises(PreconditionFailed) as refused:
        read_back(world)
    assert str(refused.value).partition(":")[0] in keys
    records.delete([keys[foreign]])
    assert read_back(world).summary["identity"] == identity
    assert len(list_journal(world)) == 1


def test_ledger_with_two_values_is_refused(world: World, records: FakeObjectStore) -> None:
    store(records, 7)
    JournalCopies(records).store(lost_run(), [replace(journaled(7), data=b"another")])
    with pytest.raises(PreconditionFailed, match="expected ledger 7 as in the other objects of its journal"):
        read_back(world)


def test_object_states_its_cluster_and_its_apply(records: FakeObjectStore) -> None:
    stored = records.get(store(records, 7))
    assert stored
    header, line = map(json.loads, stored.body.splitlines())
    assert header == {"format": "sexton-cluster-journal/1", "run_id": _RUN_ID, "ledgers": 1, "summary": _SUMMARY}
    assert line["path"] == "00/0000/L0007"


@pytest.mark.parametrize(("age_s", "known", "stays"), [(61, False, False), (61, True, True), (59, False, True)])
def test_copies_leave_after_the_run(age_s: int, known: bool, stays: bool, records: FakeObjectStore) -> None:
    """All objects of the apply are old then, and the catalog does not have it any more."""
    store(records, 7)
    records.put_if_absent("manifests/1", b"", metadata={})
    records.now_us += age_s * 1_000_000
    JournalCopies(records).remove_old(older_than_us=records.now_us - 60_000_000, is_run_known=lambda _: known)
    assert JournalCopies(records).has_copies(_RUN_ID) is stays
    assert "manifests/1" in records.keys


def test_copies_of_a_young_apply_stay_together(records: FakeObjectStore) -> None:
    store(records, 7)
    records.now_us += 61_000_000
    store(records, 8)
    JournalCopies(records).remove_old(older_than_us=records.now_us - 60_000_000, is_run_known=lambda _: False)
    assert len(records.keys) == 2


def test_undo_names_ledgers_that_the_journal_does_not_have(world: World, records: FakeObjectStore) -> None:
    store(records, *range(20))
    begin = world.activities.cluster_undoing.begin_undo
    run(begin, BeginUndoInput(run_id="pulsar-1", actor="tests", ledger_ids=[7, 19]))
    with pytest.raises(UnknownObject, match=r"ledger: expected ledgers that applies of pulsar-1 .*found '20, 21'"):
        run(begin, BeginUndoInput(run_id="pulsar-1", actor="tests", ledger_ids=[7, 21, 20]))
    with pytest.raises(UnknownObject, match="49 and 70 more'"):
        run(begin, BeginUndoInput(run_id="pulsar-1", actor="tests", ledger_ids=list(range(40, 120))))
