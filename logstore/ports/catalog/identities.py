"""The catalog's own id, and in which buckets it has put its marker."""

from collections.abc import Sequence
from typing import Protocol

from logstore.identity.markers import Role
from logstore.ports.catalog.inspection import InspectedCopy


class Identities(Protocol):
    """The catalog's id and its buckets."""

    def catalog_id(self) -> str:
        """A UUID that was given to the catalog when it was made, or brought to a version that has one."""

    def marked_buckets(self) -> frozenset[tuple[Role, str]]:
        """Role and name of every bucket that carries this catalog's marker, as far as was recorded."""

    def record_marker(self, role: Role, bucket: str) -> None:
        """Record that the bucket carries the marker: from then on it is refused without.

        Idempotency: keyed by role and bucket; the time of the first call is kept.
        """

    def known_copies(self, role: Role, bucket: str, *, limit: int) -> Sequence[InspectedCopy]:
        """Copies that stand in that bucket if it is this catalog's, each as storage can be asked for it.

        Those are LIVE copies and, behind them, those that were detached and are not gone, newest first; of
        tiered ones those whose context names the bucket. The records bucket has none.

        Args:
            role: Of the bucket.
            bucket: Its name.
            limit: The most rows to return.
        """
