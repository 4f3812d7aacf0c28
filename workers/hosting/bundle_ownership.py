"""Ownership of bundles by a worker. With `ownership=single`, the worker owns all bundles without ZooKeeper."""

import threading
from collections.abc import Callable
from typing import Protocol

from infra.coordination.bundle_holdings import OwnershipObserver
from infra.coordination.bundle_owner import BundleOwner, BundleOwnerOptions, ExpiredPolicy, SingleOwner
from infra.coordination.ownership_nodes import claim_path_for_catalog
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.catalog.ownership.fences import Fences
from logstore.errors import InvalidInput, SextonError
from logstore.ownership import BundleId, Lease, bundle_of_topic
from logstore.ports.bundle_owners import TopicOwners
from logstore.validated_names import TopicName
from workers.assembly.log_store import LogStore
from workers.settings import Settings
from workers.settings.tls_files import identity_and_tls_from_settings


class WorkerOwnership(TopicOwners, Protocol):
    """Ownership of bundles by one worker. A worker starts and stops its ownership once."""

    stopping: threading.Event
    """Event that is set when the worker owns no bundle and can never own a bundle again."""

    failure: SextonError | None
    """Error that ended the ownership. The worker then shuts down."""

    def start(self) -> None:
        """Become an owner of bundles. Each implementation documents the errors."""

    def stop(self) -> None:
        """Release all bundles without delay."""

    def leases(self) -> list[Lease]:
        """Return the leases under which this worker may write now."""


class TopicCacheInvalidator:
    """Observer of acquired and lost bundles, which discards this process's cached data about the bundles' topics."""

    def __init__(self, log: LogStore) -> None:
        self._log = log
        self._bundles = log.catalog.fences.count_bundles()

    def on_acquired(self, lease: Lease) -> None:
        self._log.subscriptions.forget()
        parse_name, bundles = TopicName.from_encoded, self._bundles
        self._log.topic_logs.reload_last_ledgers(
            lambda topic: bundle_of_topic(parse_name(topic.name), bundle_count=bundles) == lease.bundle
        )

    def on_unloaded(self, bundle: BundleId) -> None:
        del bundle
        self._log.subscriptions.forget()


def create_zookeeper_or_single_ownership(
    settings: Settings,
    log: LogStore,
    worker_id: str,
    read_load: Callable[[], float],
    *,
    observer: OwnershipObserver | None = None,
) -> WorkerOwnership:
    """Create the ownership that the settings define. `read_load` returns the worker's load. 1 means full.

    Raises:
        ServiceFailed: The settings name no ZooKeeper and are not `ownership=single`.
    """
    fences: Fences = log.catalog.fences
    if settings.ownership == "single":
        return SingleOwner(worker_id, fences, observer)
    ensemble = ensemble_from_settings(settings)

    def connect(on_state: Callable[[SessionState], None]) -> ZooKeeperSession:
        session = ZooKeeperSession(ensemble, on_state)
        try:
            claim_path_for_catalog(session, log.catalog.identities.catalog_id())
        except BaseException:
            session.close()
            raise
        return session

    policy = BundleOwnerOptions(
        expired=ExpiredPolicy(settings.session_expired_policy),
        reconnect_attempts=settings.session_reconnect_attempts,
    )
    return BundleOwner(
        worker_id, connect, fences, TopicCacheInvalidator(log), options=policy, load=read_load, events=observer
    )


def ensemble_from_settings(settings: Settings) -> EnsembleOptions:
    auth, tls = identity_and_tls_from_settings(settings, "zookeeper")
    if settings.zookeeper_acl == "creator" and not auth:
        raise InvalidInput("zookeeper_acl", expected="anyone, because there is no zookeeper_auth", found="creator")
    return EnsembleOptions(
        hosts=settings.require_address("zookeeper"),
        timeout_s=float(settings.session_timeout),
        auth=auth,
        protected=settings.zookeeper_acl == "creator",
        tls=tls,
    )
