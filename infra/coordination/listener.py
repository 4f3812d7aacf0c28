"""Who does the work that ownership gives."""

from typing import Protocol

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
