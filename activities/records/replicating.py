"""Replicas of the record log are brought up to date, one after the other."""

import logging
from typing import Final

from activities.heartbeats import beating, defined
from activities.records import metrics
from activities.records.values import ReplicateInput
from logstore.errors import CatalogMismatch, PreconditionFailed, SextonError
from logstore.records.jobs import ShippedBlocks
from logstore.records.services.replicating import Replication
from logstore.units import between_units

_TOLD: Final = 300  # characters of why a replica was left out

_LOG: Final = logging.getLogger(__name__)


class RecordReplication:
    """The activity, over its service."""

    def __init__(self, replication: Replication) -> None:
        """Take the replicas."""
        self._replication = replication

    @defined(name="records.ship")
    def ship(self, request: ReplicateInput) -> list[ShippedBlocks]:
        """Bring every replica to the newest manifest.

        A replica that fails is logged and reported, and the others are still shipped to.

        Idempotency: a block that a replica has is not copied again, and a manifest is put once.
        Heartbeat: replicas done, every two seconds.
        Raises: nothing of its own; a cancellation ends it between two blocks.
        """
        del request  # who asked is in the workflow's input
        done: list[ShippedBlocks] = []
        with beating(lambda: (len(done),)):
            for name in self._replication.names:
                between_units()
                done.append(self._one(name))
        return done

    def _one(self, name: str) -> ShippedBlocks:
        try:
            shipped = self._replication.ship(name)
        except SextonError as error:
            guarded = isinstance(error, PreconditionFailed | CatalogMismatch)
            (_LOG.error if guarded else _LOG.warning)("replica %s is not brought up to date: %s", name, error)
            shipped = ShippedBlocks(replica=name, error=f"{type(error).__name__}: {error}"[:_TOLD])
        metrics.shipped(shipped)
        if shipped.blocks:
            _LOG.info(
                "replica %s: %d blocks, %d bytes shipped, manifest %d",
                name,
                shipped.blocks,
                shipped.bytes,
                shipped.manifest,
            )
        return shipped
