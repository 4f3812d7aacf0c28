"""Events of a worker's ownership, for the caches that do its work and for its telemetry."""

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Protocol

from infra.coordination.session import SessionEvent
from logstore.errors import SextonError
from logstore.ownership import BundleId, Lease


class Listener(Protocol):
    """Who does the work that ownership gives; called on the owner's thread, and returns soon."""

    def acquired(self, lease: Lease) -> None:
        """The bundle is this worker's: drop what is remembered of its topics, and load again what was loaded.

        The lease is given out once this returned, and not before. It may be told again, with a later lease.

        Raises:
            RetryableError: Not now; it is told again at a later look, or another worker is.
        """

    def unloaded(self, bundle: BundleId) -> None:
        """It is no longer, or never became so: its work stops, and what is remembered of its topics goes."""


class Unloaded(StrEnum):
    """Why a worker lost or released a bundle."""

    SHED = "SHED"  # given to a worker that has fewer
    STOPPED = "STOPPED"  # this worker ends
    REMOVED = "REMOVED"  # its node went while the session lives: somebody took it away
    OVERTAKEN = "OVERTAKEN"  # its fence was raised by another, though the node is ours: it is acquired again
    FOREIGN = "FOREIGN"  # after an expiry it was another's, or was asked for in vain as often as may be


class OwnershipEvents:
    """Told where it happens, on kazoo's own thread too: an override returns at once and raises nothing."""

    def opened(self, session: int) -> None:
        """A session was opened, and this worker is registered in it."""

    def linked(self, link: SessionEvent) -> None:
        """The session has changed its state."""

    def holds(self, bundles: int) -> None:
        """This number of leases is held from now on; none is given out while the connection is away."""

    def acquiring(self, bundles: Collection[BundleId]) -> AbstractContextManager[object]:
        """Surrounds the attempt to acquire these bundles."""
        del bundles
        return nullcontext()

    def acquired(self, leases: Collection[Lease]) -> None:
        """These bundles were acquired together."""

    def unloaded(self, bundles: Collection[BundleId], why: Unloaded) -> None:
        """These bundles were lost or released together."""

    def looked(self, unsettled: int) -> None:
        """A look at all bundles succeeded; `unsettled` bundles wait for an answer, or for an old node to vanish."""

    def ended(self, failure: SextonError | None) -> None:
        """This worker owns nothing from now on; None: it was asked to stop."""
