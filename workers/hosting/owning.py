"""How a worker takes part in ownership: on ZooKeeper, or alone because a setting says so."""

import threading
from collections.abc import Callable
from typing import Protocol

from infra.coordination.faults import PemFiles
from infra.coordination.holdings import OwnershipEvents
from infra.coordination.identity import claim_path
from infra.coordination.owner import BundleOwner, ExpiredPolicy, OwnerPolicy
from infra.coordination.session import Ensemble, SessionState, ZooKeeperSession
from infra.coordination.single_owner import SingleOwner
from logstore.errors import InvalidInput, SextonError
from logstore.names import TopicName
from logstore.ownership import BundleId, Lease, bundle_of
from logstore.ports.catalog import Fences
from logstore.ports.owners import Owners
from workers.assembly.log import LogStore
from workers.settings import Settings
from workers.settings.tls_files import TlsFiles


class Ownership(Owners, Protocol):
    """One worker's part, started once and stopped once."""

    stopping: threading.Event
    """Set once it owns nothing and never will again."""

    failure: SextonError | None
    """Why it gave up, if it did: the worker then shuts down."""

    def start(self) -> None:
        """Join; see the adapters for what it raises."""

    def stop(self) -> None:
        """Give everything up at once."""

    def leases(self) -> list[Lease]:
        """All that this worker may write under now."""


class TopicCaches:
    """The process's memory of a bundle's topics: dropped when it goes, read again when it comes."""

    def __init__(self, log: LogStore) -> None:
        """Take the log whose caches they are."""
        self._log = log
        self._bundles = log.catalog.fences.bundles()

    def on_acquired(self, lease: Lease) -> None:
        """Load the bundle's topics again, before work resumes under the lease.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog did not answer.
        """
        self._log.subscriptions.forget()
        name, count = TopicName.from_encoded, self._bundles
        self._log.managed.reload_hints(lambda topic: bundle_of(name(topic.name), bundles=count) == lease.bundle)

    def on_unloaded(self, bundle: BundleId) -> None:
        """Others change them from now on."""
        del bundle
        self._log.subscriptions.forget()


def new_ownership(
    settings: Settings,
    log: LogStore,
    worker_id: str,
    load: Callable[[], float],
    *,
    events: OwnershipEvents | None = None,
) -> Ownership:
    """The ownership that settings ask for, not yet started; `load` is work in hand from 0 on, 1 if nothing more fits.

    Raises:
        ServiceFailed: No ZooKeeper is known, and no setting says that there is none.
    """
    fences: Fences = log.catalog.fences
    if settings.ownership == "single":
        return SingleOwner(worker_id, fences, events)
    ensemble = ensemble_of(settings)

    def connect(tell: Callable[[SessionState], None]) -> ZooKeeperSession:
        session = ZooKeeperSession(ensemble, tell)
        try:
            claim_path(session, log.catalog.identities.catalog_id())
        except BaseException:
            session.close()
            raise
        return session

    policy = OwnerPolicy(
        expired=ExpiredPolicy(settings.session_expired_policy),
        reconnect_attempts=settings.session_reconnect_attempts,
    )
    return BundleOwner(worker_id, connect, fences, TopicCaches(log), policy=policy, load=load, events=events)


def ensemble_of(settings: Settings) -> Ensemble:
    """Where ZooKeeper is, and how to be let in there.

    Raises:
        InvalidInput: Nodes are to be for an identity that is not told, or files of TLS cannot be used.
        ServiceFailed: It is not known.
    """
    scheme, _, credential = settings.zookeeper_auth.get_secret_value().partition(":")
    if settings.zookeeper_acl == "creator" and not credential:
        raise InvalidInput("zookeeper_acl", expected="anyone, because there is no zookeeper_auth", found="creator")
    files = TlsFiles.of(settings, "zookeeper")
    if files and settings.zookeeper_tls == "off":
        raise InvalidInput("zookeeper_tls", expected="on, because there are files of TLS", found="off")
    return Ensemble(
        hosts=settings.require("zookeeper"),
        timeout_s=float(settings.session_timeout),
        auth=(scheme, credential) if credential else None,
        protected=settings.zookeeper_acl == "creator",
        tls=PemFiles(ca=files.ca, cert=files.cert, key=files.key) if files or settings.zookeeper_tls == "on" else None,
    )
