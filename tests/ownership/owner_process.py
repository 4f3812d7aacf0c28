"""A worker that owns bundles and writes under its leases without a pause; and never forgets a lease that it had.

So does a thread that slept through the loss of its bundle: the worker is as stubborn as a worker can be, and what
protects a bundle from it is the fence alone.
"""

import ctypes
import itertools
import os
import signal
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from infra.coordination.bundle_holdings import OwnershipObserver, TakeoverTimes, UnloadReason
from infra.coordination.bundle_owner import BundleOwner, BundleOwnerOptions, ExpiredPolicy
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.catalog import Database
from logstore.catalog.ownership.fences import Fences
from logstore.errors import NotOwner, OutcomeUnknown, RetryableError, SextonError, WorkerIdTaken
from logstore.ownership import BundleId, Lease
from tests.ownership import fence_story
from tests.ownership.journal import EventJournal

TAKEN, FAILED = 3, 1  # exit codes
_LEASES_PER_BUNDLE = 3
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerProcessPlan:
    """What a process is started with."""

    worker_id: str
    journal: Path
    database_url: str
    hosts: str
    timeout_s: float
    expired: ExpiredPolicy = ExpiredPolicy.RECONNECT
    takeover: TakeoverTimes = field(default_factory=lambda: TakeoverTimes(takeover_grace_s=0.5, rest_s=2.0))
    namespace: Path | None = None  # of the network, to live in
    pause_s: float = 0.02  # between two writes


class _LeaseMemory:
    """A `BundleListener` that forgets nothing: it has the latest three leases of each bundle that was ever its own."""

    def __init__(self) -> None:
        self._leases: dict[BundleId, deque[Lease]] = {}

    def on_acquired(self, lease: Lease) -> None:
        self._leases.setdefault(lease.bundle, deque(maxlen=_LEASES_PER_BUNDLE)).append(lease)

    def on_unloaded(self, bundle: BundleId) -> None:
        pass  # as a thread does that sleeps

    def all(self) -> list[Lease]:
        return [lease for leases in list(self._leases.values()) for lease in list(leases)]


class _JournalObserver(OwnershipObserver):
    """An `OwnershipObserver` that puts into the journal what happens."""

    def __init__(self, journal: EventJournal) -> None:
        self._journal = journal

    def on_session_opened(self, session: int) -> None:
        self._journal.say("opened", session=session)

    def on_session_state(self, state: SessionState) -> None:
        self._journal.say("linked", link=state)

    def on_acquired(self, leases: Collection[Lease]) -> None:
        self._journal.say("acquired", fences={lease.bundle: lease.fence for lease in leases})

    def on_unloaded(self, bundles: Collection[BundleId], why: UnloadReason) -> None:
        self._journal.say("unloaded", bundles=sorted(bundles), why=why)

    def on_reconciled(self, pending_bundles: int) -> None:
        self._journal.say("looked", unsettled=pending_bundles)

    def on_ended(self, failure: SextonError | None) -> None:
        self._journal.say("ended", failure=failure and type(failure).__name__)


class _LeaseWriter:
    """Writes under every lease that this process had, the latest three of a bundle."""

    def __init__(self, plan: OwnerProcessPlan, journal: EventJournal, database: Database) -> None:
        self._plan, self._journal, self._database = plan, journal, database
        self._numbers = itertools.count()

    def write(self, lease: Lease) -> None:
        attempt = f"{self._plan.worker_id}.{os.getpid()}/{next(self._numbers)}"
        outcome, error = "accepted", ""
        try:
            fence_story.write_under_lease(self._database, lease, attempt)
        except NotOwner as refusal:
            outcome, error = "refused", str(refusal)
        except (RetryableError, OutcomeUnknown) as failure:
            outcome, error = "unknown", str(failure)
        self._journal.say(
            "wrote", attempt=attempt, bundle=lease.bundle, fence=lease.fence, outcome=outcome, error=error
        )


def run_owner_process(plan: OwnerProcessPlan) -> None:
    """Live until SIGTERM; exits with `TAKEN` where the worker id is another's, with `FAILED` where it gave up."""
    if plan.namespace:
        _enter_network_namespace(plan.namespace)
    journal = EventJournal(plan.journal)
    database = Database(plan.database_url)
    memory = _LeaseMemory()
    policy = BundleOwnerOptions(expired=plan.expired, check_interval_s=0.2, takeover=plan.takeover)
    connect, fences = _make_connect(plan, journal), Fences(database)
    owner = BundleOwner(plan.worker_id, connect, fences, memory, options=policy, events=_JournalObserver(journal))
    signal.signal(signal.SIGTERM, lambda *_: owner.stopping.set())
    try:
        owner.start()
    except WorkerIdTaken as error:
        journal.say("taken", error=str(error))
        os._exit(TAKEN)
    journal.say("started")
    _write_until_stopped(plan, owner, memory, _LeaseWriter(plan, journal, database))
    owner.stop()
    os._exit(FAILED if owner.failure else 0)


def _write_until_stopped(
    plan: OwnerProcessPlan, owner: BundleOwner, memory: _LeaseMemory, writer: _LeaseWriter
) -> None:
    while not owner.stopping.wait(plan.pause_s):
        for lease in memory.all():
            if owner.stopping.wait(plan.pause_s):
                break
            writer.write(lease)


def _make_connect(
    plan: OwnerProcessPlan, journal: EventJournal
) -> Callable[[Callable[[SessionState], None]], ZooKeeperSession]:
    ensemble = EnsembleOptions(hosts=plan.hosts, timeout_s=plan.timeout_s)

    def connect(tell: Callable[[SessionState], None]) -> ZooKeeperSession:
        session = ZooKeeperSession(ensemble, tell)
        client_id = session.run_idempotent("telling its id", lambda client: client.client_id)
        journal.say("session", id=client_id[0], password=client_id[1].hex())
        return session

    return connect


def _enter_network_namespace(namespace: Path) -> None:
    """Move this process, which has one thread yet, into a network of its own."""
    with namespace.open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
