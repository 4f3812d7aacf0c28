"""Activities of a topic's deletion at its owner, at another worker, and where nobody can say who that is."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from temporalio.exceptions import ApplicationError

from activities.deletion import CertifyInput, DeadLetterInput, LedgerDeletion, pulse
from activities.deletion.pace import Pace
from activities.deletion.phase_two import Examination, remove
from activities.deletion.pulse import Pulse
from activities.ownership import Elsewhere, Located, LookUpInput, Ownership, Place, TopicAnswer, TopicWork, owner_queue
from logstore.deletion.intents import DeletionState, Finding, StoredCopy
from logstore.errors import (
    CatalogBusy,
    CorruptData,
    InvalidInput,
    NotOwner,
    OutcomeUnknown,
    ServiceFailed,
    SessionLost,
    SextonError,
    StoreUnavailable,
)
from logstore.names import TopicName
from logstore.ownership import Lease
from logstore.ports.catalog import Deletions
from tests.activities.world import BATCH, BATCH_WORKFLOW, NAME, World, chunk_input, environment, one_input, run
from tests.fakes.objects import Fault, FaultKind, Operation
from tests.fakes.owners import FakeOwners, FakeOwnership

_TABLES: Final = ("ledger", "ledger_list", "pending_deletion", "run", "audit", "bundle_fence")


@dataclass(frozen=True, kw_only=True)
class Work:
    """One activity that writes for a topic, ready to be sent anywhere."""

    name: str
    request: TopicWork
    workflow_id: str = BATCH_WORKFLOW


@dataclass(frozen=True, kw_only=True)
class Site:
    """A topic with a batch and a ledger to detach still, seen by worker `a`."""

    world: World
    ownership: FakeOwnership
    owners: FakeOwners

    def send(self, work: Work, place: Place, *, topic: str = NAME) -> Any:
        """Run the activity as worker `a`."""
        method = getattr(self.world.deletion_at(self.owners), work.name)
        return run(method, replace(work.request, topic=topic, place=place), workflow_id=work.workflow_id)

    def everything(self) -> object:
        """All rows and all objects."""
        rows = [self.world.sql(f"SELECT * FROM {table}") for table in _TABLES]
        return rows, sorted(self.world.objects.keys), list(self.world.objects.calls)


@pytest.fixture
def site(world: World) -> Site:
    world.fill(2)
    ownership = FakeOwnership(world.catalog.fences)
    return Site(world=world, ownership=ownership, owners=FakeOwners(ownership, "a"))


def _detach(site: Site) -> Work:
    return Work(name="detach", request=site.world.detach_input(batch_id="next"))


def _chunk(name: str) -> Callable[[Site], Work]:
    def prepared(site: Site) -> Work:
        site.world.detach()
        return Work(name=name, request=chunk_input())

    return prepared


def _one(site: Site) -> Work:
    site.world.detach()
    (_, second) = site.world.intents()
    key = site.world.key(second.ledger_id)
    return Work(name="delete_one", request=one_input(key))


def _letter(site: Site) -> Work:
    one = _one(site)
    key = site.world.key(site.world.intents()[1].ledger_id)
    return replace(one, name="dead_letter", request=DeadLetterInput(key=key, catalog_epoch=1, error="503"))


def _certify(site: Site) -> Work:
    site.world.detach()
    return Work(name="certify", request=CertifyInput(batch_id=BATCH, actor="tests", reason="a test"))


ASKING: Final = [_detach, _chunk("delete_chunk"), _chunk("hand_over_chunk"), _one, _letter]
NAMES: Final = ["detach", "delete_chunk", "hand_over_chunk", "delete_one", "dead_letter"]
asking = pytest.mark.parametrize("prepared", ASKING, ids=NAMES)
writing = pytest.mark.parametrize("prepared", [*ASKING, _certify], ids=[*NAMES, "certify"])

Prepared = Callable[[Site], Work]


@asking
def test_asked_at_the_owner_is_done_there_under_its_lease(prepared: Prepared, site: Site) -> None:
    """Who gets the task and owns the topic does it at once: one activity, and the answer says whose lease it was."""
    work = prepared(site)
    site.ownership.acquire("a", NAME)
    before = site.everything()
    answer: TopicAnswer = site.send(work, Place.ASK)
    assert (answer.owner, answer.elsewhere) == ("a", None)
    assert site.everything() != before


@asking
def test_asked_where_nobody_owns_the_topic_is_done_without_a_lease(prepared: Prepared, site: Site) -> None:
    """Nobody to wait for."""
    work = prepared(site)
    before = site.everything()
    answer: TopicAnswer = site.send(work, Place.ASK)
    assert (answer.owner, answer.elsewhere) == ("", None)
    assert site.everything() != before


@asking
def test_asked_at_another_worker_does_nothing_and_says_whose_it_is(prepared: Prepared, site: Site) -> None:
    """No row changes and storage is not even listed: a regular answer, no failure and no attempt."""
    work = prepared(site)
    site.ownership.acquire("b", NAME)
    before = site.everything()
    answer: TopicAnswer = site.send(work, Place.ASK)
    assert answer.elsewhere == Elsewhere(worker_id="b")
    assert site.everything() == before


@asking
def test_asked_while_zookeeper_is_away_does_nothing_and_says_so(prepared: Prepared, site: Site) -> None:
    """Never read as "no owner": no worker is named, and no attempt of the row is spent."""
    work = prepared(site)
    site.ownership.away = 1
    before = site.everything()
    answer: TopicAnswer = site.send(work, Place.ASK)
    assert answer.elsewhere == Elsewhere(worker_id="")
    assert site.everything() == before


@asking
@pytest.mark.parametrize(
    "refusal",
    [CatalogBusy("planned"), SessionLost("planned"), OutcomeUnknown("planned"), ServiceFailed("zk", "no", advice="x")],
    ids=lambda error: type(error).__name__,
)
def test_asked_where_ownership_cannot_be_told_for_any_reason_spends_no_attempt(
    prepared: Prepared, site: Site, refusal: SextonError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone it asks the catalog, which may be busy; and ZooKeeper may refuse us until a person mends its rights."""

    def refuse(topic: TopicName) -> None:
        raise refusal

    work = prepared(site)
    monkeypatch.setattr(site.owners, "placement", refuse)
    before = site.everything()
    answer: TopicAnswer = site.send(work, Place.ASK)
    assert answer.elsewhere == Elsewhere(worker_id="")
    assert site.everything() == before


@writing
def test_at_an_owner_that_lost_the_topic_is_refused_before_anything(prepared: Prepared, site: Site) -> None:
    """An owner checks its lease first."""
    work = prepared(site)
    site.ownership.acquire("b", NAME)
    before = site.everything()
    with pytest.raises(NotOwner):
        site.send(work, Place.OWNER)
    assert site.everything() == before


@writing
def test_at_an_owner_that_was_paused_is_refused_by_the_catalog(prepared: Prepared, site: Site) -> None:
    """It believes in its lease still; the fence has been raised, and nothing changes, row or object (promise 7)."""
    work = prepared(site)
    site.owners.stale = site.ownership.acquire("a", NAME)
    site.ownership.acquire("b", NAME)
    before = site.everything()
    with pytest.raises(NotOwner):
        site.send(work, Place.OWNER)
    assert site.everything() == before


@writing
def test_at_its_owner_is_done_and_asks_nobody(prepared: Prepared, site: Site) -> None:
    """The lease is the worker's own knowledge."""
    work = prepared(site)
    site.ownership.acquire("a", NAME)
    before = site.everything()
    site.send(work, Place.OWNER)
    assert site.everything() != before
    assert not site.ownership.asked


@writing
@pytest.mark.parametrize(
    ("place", "topic"), [(Place.ANYWHERE, NAME), (Place.ASK, ""), (Place.ASK, "orders"), (Place.OWNER, "orders")]
)
def test_of_no_topic_or_for_anywhere_needs_no_owner(prepared: Prepared, site: Site, place: Place, topic: str) -> None:
    """A batch of several topics, a request of an older program, a damaged name: as before there were owners."""
    work = prepared(site)
    site.ownership.acquire("b", NAME)
    before = site.everything()
    answer = site.send(work, place, topic=topic)
    assert not isinstance(answer, TopicAnswer) or (answer.owner, answer.elsewhere) == ("", None)
    assert site.everything() != before
    assert not site.ownership.asked


def test_certify_of_another_workers_topic_is_done_here(site: Site) -> None:
    """A count takes nothing from anybody."""
    work = _certify(site)
    site.ownership.acquire("b", NAME)
    assert site.send(work, Place.ASK).outcomes == {"RETRYING": 2}


def test_chunk_whose_owner_changes_before_its_end_records_nothing_and_the_next_owner_does(site: Site) -> None:
    """Objects that went are gone, rows are the new owner's: they end as deleted once (promise 7)."""
    work = _chunk("delete_chunk")(site)
    site.owners.stale = site.ownership.acquire("a", NAME)

    def lose() -> None:
        site.ownership.acquire("b", NAME)

    site.world.objects.plan(Fault(operation=Operation.DELETE, kind=FaultKind.CALL, action=lose))
    with pytest.raises(NotOwner):
        site.send(work, Place.OWNER)
    assert [one.state for one in site.world.intents()] == [DeletionState.PENDING] * 2
    other = site.world.deletion_at(FakeOwners(site.ownership, "b"))
    request = replace(work.request, topic=NAME, place=Place.OWNER)
    assert sum(run(other.delete_chunk, request).outcomes.values()) == 2
    assert sum(site.world.outcomes().get(name, 0) for name in ("DELETED", "ALREADY_GONE")) == 2


def test_one_whose_owner_changes_before_its_end_keeps_its_row(site: Site) -> None:
    """Neither its outcome nor its error is written: it is no failure of the row."""
    work = _one(site)
    site.owners.stale = site.ownership.acquire("a", NAME)
    site.world.objects.plan(
        Fault(operation=Operation.LIST, kind=FaultKind.CALL, action=lambda: _void(site.ownership.acquire("b", NAME)))
    )
    with pytest.raises(NotOwner):
        site.send(work, Place.OWNER)
    row = site.world.intents()[1]
    assert (row.state, row.last_error) == (DeletionState.PENDING, None)


def _void(_: object) -> None:
    """Nothing."""


def test_remove_that_lost_its_lease_judges_no_row(world: World) -> None:
    """Another worker took the topic over while storage deleted: no row gets an error or an outcome from us."""
    world.fill(1)
    world.detach()
    (intent,) = world.intents()
    found = Examination(copies={intent.row_id: (intent, StoredCopy(finding=Finding.OWN))})

    class TakenOver:
        def inspect(self, _: object) -> StoredCopy:
            raise NotImplementedError

        def check_absence(self, _: object) -> Any:
            raise NotImplementedError

        def statement(self, _: object) -> None:
            raise NotImplementedError

        def remove(self, _: object, *, on_progress: object) -> Any:
            raise NotOwner(1, expected="a", found="b")

    with pytest.raises(NotOwner):
        environment().run(remove, found, {intent.copy.value: TakenOver()}, Pulse(lambda: None), Pace())


@pytest.fixture
def fast_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BEAT_EVERY_S", "_LEAST_S", "_RENEW_EVERY_S"):
        monkeypatch.setattr(pulse, name, 0.01)


class Spied:
    """The `Deletions` port; writes down which lease came with each write."""

    _WRITES: Final = {"detach", "renew", "finish", "hand_over", "take", "hold", "close"}

    def __init__(self, deletions: Deletions) -> None:
        self._deletions = deletions
        self.leases: list[tuple[str, Lease | None]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._deletions, name)
        if name not in self._WRITES:
            return real

        def spied(*args: Any, lease: Lease | None = None, **rest: Any) -> Any:
            self.leases.append((name, lease))
            return real(*args, lease=lease, **rest)

        return spied


@pytest.mark.usefixtures("fast_pulse")
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
@writing
def test_at_its_owner_every_write_is_under_the_lease(prepared: Prepared, site: Site, fails: bool) -> None:
    """Renewals while it works, what failed, what is handed over: no write slips past the fence (promise 7)."""
    work = prepared(site)
    lease = site.ownership.acquire("a", NAME)
    spied: Any = Spied(site.world.catalog.deletions)
    deletion = LedgerDeletion(
        deletions=spied,
        ledgers=site.world.catalog.ledgers,
        topics=site.world.catalog.topics,
        storages=site.world.log.storages,
        owners=site.owners,
    )
    pause = Fault(operation=Operation.LIST, kind=FaultKind.CALL, action=lambda: time.sleep(0.1))
    corrupt = Fault(operation=Operation.LIST, kind=FaultKind.MIDWAY, error=lambda: CorruptData("planned: not XML"))
    site.world.objects.plan(*([corrupt] if fails else []), pause)
    request = replace(work.request, topic=NAME, place=Place.OWNER)
    with suppress(ApplicationError):
        run(getattr(deletion, work.name), request, workflow_id=work.workflow_id)
    assert spied.leases
    assert {found for _, found in spied.leases} == {lease}
    wanted = {"delete_one": "hold", "delete_chunk": "hand_over" if fails else "renew"}.get(work.name)
    assert wanted is None or wanted in [name for name, _ in spied.leases]


@pytest.mark.usefixtures("fast_pulse")
def test_chunk_of_an_owner_that_wakes_deletes_no_further_page(site: Site) -> None:
    """The claim is renewed under the lease, and what refuses the renewal ends the work in its midst."""
    work = _chunk("delete_chunk")(site)
    site.owners.stale = site.ownership.acquire("a", NAME)

    def sleep() -> None:
        site.ownership.acquire("b", NAME)
        threading.Event().wait(0.5)

    site.world.objects.plan(Fault(operation=Operation.LIST, kind=FaultKind.CALL, action=sleep))
    with pytest.raises(NotOwner):
        site.send(work, Place.OWNER)
    assert all(len(site.world.left_of(one.ledger_id)) == 3 for one in site.world.intents())


@pytest.mark.parametrize(("owner", "told"), [("a", "a"), ("b", "b"), ("", "")])
def test_look_up_names_the_owner_whoever_it_is(site: Site, owner: str, told: str) -> None:
    """The asking worker, another one, or nobody."""
    if owner:
        site.ownership.acquire(owner, NAME)
    asked = LookUpInput(topic=NAME)
    assert run(Ownership(owners=site.owners).look_up, asked) == Located(worker_id=told)


def test_look_up_while_zookeeper_is_away_fails_so_that_it_is_repeated(site: Site) -> None:
    """No answer is no owner."""
    site.ownership.away = 1
    with pytest.raises(StoreUnavailable):
        run(Ownership(owners=site.owners).look_up, LookUpInput(topic=NAME))


def test_look_up_of_what_is_no_topic_is_refused(site: Site) -> None:
    """Nothing of that name can have an owner."""
    with pytest.raises(InvalidInput, match="topic"):
        run(Ownership(owners=site.owners).look_up, LookUpInput(topic="orders"))


def test_owner_queue_names_the_worker() -> None:
    """What workers poll and workflows send to; a running workflow holds it, so it never changes."""
    assert owner_queue("w-1") == "sexton-owner-w-1"
