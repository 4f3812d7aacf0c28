"""Activities of a topic's deletion at its owner, at another worker, and where nobody can say who that is."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from pydantic import TypeAdapter
from temporalio.exceptions import ApplicationError

from activities import heartbeats
from activities.deletion.deletion_pace import DeletionPace
from activities.deletion.inputs_and_results import CertifyInput, DeadLetterInput
from activities.deletion.ledger_deletion import LedgerDeletionActivities
from activities.deletion.phase_two_steps import IntentExamination, remove_examined_copies
from activities.heartbeats import ClaimRenewingHeartbeats
from activities.owner_routing import (
    CompletedWork,
    OwnerRedirect,
    OwnerRoutedAnswer,
    OwnerRoutedInput,
    Route,
    owner_task_queue,
)
from logstore.catalog.deletion.phase_one import PhaseOne
from logstore.catalog.deletion.phase_two_queue import PhaseTwoQueue
from logstore.deletion.intents import CopyVerdict, DeleteIntentResult, DeletionState, Outcome, StoredCopy
from logstore.errors import (
    CatalogBusy,
    CorruptData,
    LookupRefused,
    NotOwner,
    OutcomeUnknown,
    ServiceFailed,
    SessionLost,
    SextonError,
    StoreUnavailable,
)
from logstore.ownership import Lease
from logstore.records.services.flusher import SharedFlushes
from tests.activities.activity_world import (
    BATCH_ID,
    BATCH_WORKFLOW_ID,
    TOPIC_NAME,
    World,
    make_activity_environment,
    make_chunk_input,
    make_delete_intent_input,
    run,
    run_owner_routed_activity,
)
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.fakes.owners import FakeBundleOwnership, FakeOwners
from workers.hosting.error_and_subject_interceptors import to_application_error

_TABLES: Final = ("ledger", "ledger_list", "pending_deletion", "run", "audit", "bundle_fence")


@dataclass(frozen=True, kw_only=True)
class Work:
    """One activity that writes for a topic, ready to be sent anywhere."""

    name: str
    request: OwnerRoutedInput
    workflow_id: str = BATCH_WORKFLOW_ID


@dataclass(frozen=True, kw_only=True)
class Site:
    """A topic with a batch and a ledger to detach still, seen by worker `a`."""

    world: World
    ownership: FakeBundleOwnership
    owners: FakeOwners

    def send(self, work: Work, place: Route, *, topic: str = TOPIC_NAME) -> Any:
        """Run the activity as worker `a`."""
        method = getattr(self.world.deletion_activities_with_owners(self.owners), work.name)
        return run(method, replace(work.request, topic=topic, place=place), workflow_id=work.workflow_id)

    def everything(self) -> object:
        """All rows and all objects."""
        rows = [self.world.sql(f"SELECT * FROM {table}") for table in _TABLES]
        return rows, sorted(self.world.objects.keys), list(self.world.objects.calls)


@pytest.fixture
def site(world: World) -> Site:
    world.fill(2)
    ownership = FakeBundleOwnership(world.catalog.fences)
    return Site(world=world, ownership=ownership, owners=FakeOwners(ownership, "a"))


def _detach(site: Site) -> Work:
    return Work(name="detach", request=site.world.make_detach_input(batch_id="next"))


def _chunk(name: str) -> Callable[[Site], Work]:
    def prepared(site: Site) -> Work:
        site.world.detach()
        return Work(name=name, request=make_chunk_input())

    return prepared


def _one(site: Site) -> Work:
    site.world.detach()
    (_, second) = site.world.intents()
    key = site.world.key(second.ledger_id)
    return Work(name="claim_and_delete_copy", request=make_delete_intent_input(key))


def _letter(site: Site) -> Work:
    one = _one(site)
    key = site.world.key(site.world.intents()[1].ledger_id)
    return replace(one, name="dead_letter_intent", request=DeadLetterInput(key=key, catalog_epoch=1, error="503"))


def _certify(site: Site) -> Work:
    site.world.detach()
    return Work(name="close_and_certify_batch", request=CertifyInput(batch_id=BATCH_ID, actor="tests", reason="a test"))


WORKS: Final = [_detach, _chunk("delete_chunk"), _chunk("hand_over_chunk"), _one, _letter, _certify]
NAMES: Final = ["detach", "delete_chunk", "hand_over_chunk", "delete_one", "dead_letter", "certify"]
writing = pytest.mark.parametrize("prepared", WORKS, ids=NAMES)

Prepared = Callable[[Site], Work]


@writing
@pytest.mark.parametrize("owner", ["a", "", "b"], ids=["mine", "nobody's", "another's"])
def test_asked_is_done_by_the_owner_or_where_there_is_none(prepared: Prepared, site: Site, owner: str) -> None:
    """One activity, which says under whose lease; at another's no row changes, storage is not listed, nothing fails."""
    work = prepared(site)
    if owner:
        site.ownership.acquire(owner, TOPIC_NAME)
    before = site.everything()
    answer = site.send(work, Route.LOOKUP)
    assert isinstance(answer, OwnerRedirect if owner == "b" else CompletedWork)
    assert answer.owner == owner
    assert (site.everything() == before) is (owner == "b")


@writing
@pytest.mark.parametrize(
    "silence",
    [StoreUnavailable("planned"), CatalogBusy("planned"), SessionLost("planned"), OutcomeUnknown("planned")],
    ids=lambda error: type(error).__name__,
)
def test_asked_while_nobody_can_be_looked_up_is_done_without_a_lease(
    prepared: Prepared, site: Site, silence: SextonError
) -> None:
    """Claims and fences keep every promise: an outage of ZooKeeper stops no job, whoever owns the topic."""
    work = prepared(site)
    site.ownership.acquire("b", TOPIC_NAME)
    site.ownership.trouble = silence
    before = site.everything()
    answer = site.send(work, Route.LOOKUP)
    assert isinstance(answer, CompletedWork)
    assert answer.owner == ""
    assert site.everything() != before


@writing
def test_asked_where_zookeeper_refuses_says_so_and_changes_nothing(prepared: Prepared, site: Site) -> None:
    """No retry mends rights or a path: a person reads where, and what to do."""
    work = prepared(site)
    site.ownership.trouble = ServiceFailed("zookeeper", "zk:2181/log refuses us", advice="grant all rights")
    before = site.everything()
    with pytest.raises(LookupRefused, match=r"^zookeeper: zk:2181/log refuses us; grant all rights$") as refused:
        site.send(work, Route.LOOKUP)
    assert to_application_error(refused.value).non_retryable
    assert site.everything() == before


def test_lookup_waits_no_longer_than_the_request_says(site: Site) -> None:
    """`owner_patience_s` bounds it."""
    work = _detach(site)
    site.send(replace(work, request=replace(work.request, owner_patience_s=3)), Route.LOOKUP)
    assert site.ownership.patience_s == [3]


@pytest.mark.parametrize("paused", [False, True])
@writing
def test_at_an_owner_that_lost_the_topic_is_refused(prepared: Prepared, site: Site, *, paused: bool) -> None:
    """Nothing changes, row or object (promise 7).

    The owner looks at its lease first. One that was paused believes in its lease still; the catalog, where another
    worker has raised the fence, refuses it.
    """
    work = prepared(site)
    if paused:
        site.owners.stale = site.ownership.acquire("a", TOPIC_NAME)
    site.ownership.acquire("b", TOPIC_NAME)
    before = site.everything()
    with pytest.raises(NotOwner):
        site.send(work, Route.OWNER)
    assert site.everything() == before


@writing
def test_at_its_owner_is_done_and_asks_nobody(prepared: Prepared, site: Site) -> None:
    """The lease is the worker's own knowledge."""
    work = prepared(site)
    site.ownership.acquire("a", TOPIC_NAME)
    before = site.everything()
    site.send(work, Route.OWNER)
    assert site.everything() != before
    assert not site.ownership.asked


@writing
@pytest.mark.parametrize(
    ("place", "topic"),
    [(Route.ANYWHERE, TOPIC_NAME), (Route.LOOKUP, ""), (Route.LOOKUP, "orders"), (Route.OWNER, "orders")],
)
def test_of_no_topic_or_for_anywhere_needs_no_owner(prepared: Prepared, site: Site, place: Route, topic: str) -> None:
    """A batch of several topics, a request of an older program, a damaged name: as before there were owners."""
    work = prepared(site)
    site.ownership.acquire("b", TOPIC_NAME)
    before = site.everything()
    answer = site.send(work, place, topic=topic)
    assert isinstance(answer, CompletedWork)
    assert answer.owner == ""
    assert site.everything() != before
    assert not site.ownership.asked


def test_chunk_whose_owner_changes_before_its_end_records_nothing_and_the_next_owner_does(site: Site) -> None:
    """Objects that went are gone, rows are the new owner's: they end as deleted once (promise 7)."""
    work = _chunk("delete_chunk")(site)
    site.owners.stale = site.ownership.acquire("a", TOPIC_NAME)

    def lose() -> None:
        site.ownership.acquire("b", TOPIC_NAME)

    site.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.CALL, action=lose))
    with pytest.raises(NotOwner):
        site.send(work, Route.OWNER)
    assert [one.state for one in site.world.intents()] == [DeletionState.PENDING] * 2
    other = site.world.deletion_activities_with_owners(FakeOwners(site.ownership, "b"))
    request = replace(work.request, topic=TOPIC_NAME, place=Route.OWNER)
    assert sum(run_owner_routed_activity(other.delete_chunk, request).outcomes.values()) == 2
    assert sum(site.world.outcomes().get(name, 0) for name in ("DELETED", "ALREADY_GONE")) == 2


def test_one_whose_owner_changes_before_its_end_keeps_its_row(site: Site) -> None:
    """Neither its outcome nor its error is written: it is no failure of the row."""
    work = _one(site)
    site.owners.stale = site.ownership.acquire("a", TOPIC_NAME)
    site.world.objects.plan(
        Fault(
            operation=StoreOperation.LIST,
            kind=FaultKind.CALL,
            action=lambda: _void(site.ownership.acquire("b", TOPIC_NAME)),
        )
    )
    with pytest.raises(NotOwner):
        site.send(work, Route.OWNER)
    row = site.world.intents()[1]
    assert (row.state, row.last_error) == (DeletionState.PENDING, None)


def _void(_: object) -> None:
    """Nothing."""


def test_remove_that_lost_its_lease_judges_no_row(world: World) -> None:
    """Another worker took the topic over while storage deleted: no row gets an error or an outcome from us."""
    world.fill(1)
    world.detach()
    (intent,) = world.intents()
    found = IntentExamination(own_copies={intent.row_id: (intent, StoredCopy(verdict=CopyVerdict.OWN))})

    class TakenOver:
        def inspect_copy(self, _: object) -> StoredCopy:
            raise NotImplementedError

        def prepare_inspection(self, _: object) -> Any:
            raise NotImplementedError

        def prove_absence(self, _: object) -> Any:
            raise NotImplementedError

        def read_statement(self, _: object) -> None:
            raise NotImplementedError

        def remove_copies(self, _: object, *, on_progress: object) -> Any:
            raise NotOwner(1, expected="a", found="b")

    with pytest.raises(NotOwner):
        make_activity_environment().run(
            remove_examined_copies,
            found,
            {intent.copy.value: TakenOver()},
            ClaimRenewingHeartbeats(lambda: None),
            DeletionPace(),
        )


@pytest.fixture
def fast_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BEAT_INTERVAL_S", "_MIN_BEAT_INTERVAL_S", "_RENEWAL_INTERVAL_S"):
        monkeypatch.setattr(heartbeats, name, 0.01)


class Spied:
    """A port of deletion; writes down under which lease each write came."""

    _WRITES: Final = {
        "detach_ledgers",
        "renew_batch_claim",
        "record_outcomes",
        "move_to_own_workflows",
        "claim_intent",
        "record_attempt_and_extend_claim",
        "close_batch",
    }

    def __init__(
        self, port: PhaseOne | PhaseTwoQueue, leases: list[tuple[str, Lease | None]], lease: Lease | None
    ) -> None:
        self._port, self.leases, self._lease = port, leases, lease

    def with_lease(self, lease: Lease | None) -> "Spied":
        return Spied(self._port.with_lease(lease), self.leases, lease)

    def __getattr__(self, name: str) -> Any:
        if name in self._WRITES:
            self.leases.append((name, self._lease))
        return getattr(self._port, name)


@pytest.mark.usefixtures("fast_pulse")
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
@writing
def test_at_its_owner_every_write_is_under_the_lease(prepared: Prepared, site: Site, fails: bool) -> None:
    """Renewals while it works, what failed, what is handed over: no write slips past the fence (promise 7)."""
    work = prepared(site)
    lease = site.ownership.acquire("a", TOPIC_NAME)
    spied: Any = Spied(site.world.catalog.deletions, [], None)
    phase_one: Any = Spied(site.world.catalog.phase_one, spied.leases, None)
    deletion = LedgerDeletionActivities(
        phase_one=phase_one,
        deletions=spied,
        ledgers=site.world.catalog.ledgers,
        topics=site.world.catalog.topics,
        storages=site.world.log.storages,
        flushes=SharedFlushes(site.world.catalog.records, site.world.log.records.flusher),
        owners=site.owners,
    )
    pause = Fault(operation=StoreOperation.LIST, kind=FaultKind.CALL, action=lambda: time.sleep(0.1))
    corrupt = Fault(operation=StoreOperation.LIST, kind=FaultKind.MIDWAY, error=lambda: CorruptData("planned: not XML"))
    site.world.objects.plan(*([corrupt] if fails else []), pause)
    request = replace(work.request, topic=TOPIC_NAME, place=Route.OWNER)
    with suppress(ApplicationError):
        run(getattr(deletion, work.name), request, workflow_id=work.workflow_id)
    assert spied.leases
    assert {found for _, found in spied.leases} == {lease}
    writes = {
        "claim_and_delete_copy": "record_attempt_and_extend_claim",
        "delete_chunk": "move_to_own_workflows" if fails else "renew_batch_claim",
    }
    wanted = writes.get(work.name)
    assert wanted is None or wanted in [name for name, _ in spied.leases]


@pytest.mark.usefixtures("fast_pulse")
def test_chunk_of_an_owner_that_wakes_deletes_no_further_page(site: Site) -> None:
    """The claim is renewed under the lease, and what refuses the renewal ends the work in its midst."""
    work = _chunk("delete_chunk")(site)
    site.owners.stale = site.ownership.acquire("a", TOPIC_NAME)

    def sleep() -> None:
        site.ownership.acquire("b", TOPIC_NAME)
        threading.Event().wait(0.5)

    site.world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.CALL, action=sleep))
    with pytest.raises(NotOwner):
        site.send(work, Route.OWNER)
    assert all(len(site.world.left_of(one.ledger_id)) == 3 for one in site.world.intents())


_RESULT: Final = {"outcome": "DELETED", "objects": 3, "size_bytes": 9, "detail": ""}
_ONE: Final = DeleteIntentResult(outcome=Outcome.DELETED, objects=3, size_bytes=9)


@pytest.mark.parametrize(
    ("wire", "answer"),
    [
        ({"answer": "done", "owner": "a", "result": _RESULT}, CompletedWork(owner="a", result=_ONE)),
        ({"answer": "redirected", "owner": "b"}, OwnerRedirect(owner="b")),
    ],
    ids=["done", "redirected"],
)
def test_answer_is_read_as_done_or_redirected(wire: object, answer: OwnerRoutedAnswer[DeleteIntentResult]) -> None:
    """In the two forms that workers write, and written again in the same form."""
    assert TypeAdapter(OwnerRoutedAnswer[DeleteIntentResult]).validate_python(wire) == answer
    assert (
        TypeAdapter(OwnerRoutedAnswer[DeleteIntentResult]).validate_json(
            TypeAdapter(OwnerRoutedAnswer[DeleteIntentResult]).dump_json(answer)
        )
        == answer
    )


def test_owner_queue_names_the_worker() -> None:
    """What workers poll and workflows send to; a running workflow holds it, so it never changes."""
    assert owner_task_queue("w-1") == "sexton-owner-w-1"
