"""Manifests of a rebuild: the loaded manifest, and the first manifest of the new epoch.

The first manifest of the new epoch is stored between load and adoption. If two rebuilds load the same manifest, they
use the same next number, and one rebuild succeeds. The database of the other rebuild never becomes the catalog. That
database stays ADOPTING, and no object is deleted because of it.

The first manifest of the new epoch has no row of that epoch. The manifest repeats the loaded moment, and names the
epoch of this moment. So another rebuild that begins before the flush at the end of adoption adopts the same uploads.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import AlreadyExists, PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.catalog.records import RecordLogState
from logstore.positions import LedgerId
from logstore.records.manifest import ID_HEADROOM, IdCeilings, Manifest, manifest_key
from logstore.records.rebuild_job import RebuildId
from logstore.records.services.record_log import Pin, RecordLog

_PIN_DURATION_US: Final = 7 * 86_400 * 1_000_000
_PIN_PURPOSE: Final = "rebuild"
_STORE_TIME_STEP_S: Final = 1.0  # S3 stores times of objects in whole seconds


class RebuildManifests:
    def __init__(self, log: RecordLog) -> None:
        self._log = log

    def require_newest_manifest(self) -> Manifest:
        """Return the newest manifest. HEAD requests make sure that no newer manifest is hidden.

        Raises:
            PreconditionFailed: The bucket has no manifest, because no flush has ever ended.
            CorruptData, Unsupported, StoreUnavailable: Errors of `RecordLog.read_certain_newest_manifest`.
        """
        newest = self._log.read_certain_newest_manifest()
        if newest is None:
            raise PreconditionFailed(
                "record log: expected a manifest in the records bucket, found none to rebuild from"
            )
        return newest

    def pin_manifest(self, rebuild: str, manifest: int, *, now_us: int) -> Manifest:
        """Pin a manifest for a week from `now_us`, and return the manifest. Idempotent."""
        self._log.pin_manifest(rebuild, manifest, now_us + _PIN_DURATION_US, _PIN_PURPOSE)
        return self.read_manifest(manifest)

    def list_pinned_rebuilds(self) -> list[RebuildId]:
        return [RebuildId.parse(pin.pin_id) for pin in self.list_pins()]

    def list_pins(self) -> list[Pin]:
        return [pin for pin in self._log.list_pins() if pin.purpose == _PIN_PURPOSE]

    def end_pin(self, pin: Pin) -> None:
        self._log.end_pin(pin)

    def read_manifest(self, number: int) -> Manifest:
        """Return the manifest with this number. Raise `PreconditionFailed` if there is none."""
        manifest = self._log.read_manifest(number)
        if manifest is None:
            raise PreconditionFailed(f"{manifest_key(number)}: expected it in the records bucket, found nothing")
        return manifest

    def has_next_manifest(self, number: int) -> bool:
        """Return whether manifest `number` + 1 exists. If not, the old catalog is valid, and its workers may run."""
        return self._log.read_manifest(number + 1) is not None

    def renew_pin_and_measure_age_s(self, rebuild: str, base: Manifest, *, now_us: int) -> float:
        """Return a lower bound of the age of the manifest after `base`, by the store's clock alone.

        The store's time of the renewed pin is the store's current time. A result of 0 or less means that the store has
        no times, or that the manifest is new.
        """
        renewed_us = self._log.stored_at_us(
            self._log.pin_manifest(rebuild, base.number, now_us + _PIN_DURATION_US, _PIN_PURPOSE)
        )
        stored_us = self._log.stored_at_us(manifest_key(base.number + 1))
        if renewed_us is None or stored_us is None:
            return 0.0
        return (renewed_us - stored_us) / 1_000_000 - _STORE_TIME_STEP_S

    def find_rows_epoch(self, base: Manifest) -> int:
        """Return the epoch of the rows in the blocks of `base`. Uploads of this epoch may have no rows in the blocks.

        Earlier builds stored the first manifest of an epoch as a moment of its own, with the blocks and the time of the
        previous manifest. For such a manifest, return the previous manifest's epoch, if that manifest still exists.
        """
        return self._find_earliest_of_moment(base).rows_epoch

    def find_unflushed_id_starts(self, base: Manifest) -> tuple[LedgerId, ...]:
        """Return, ascending, the first ids of the ranges in which ledgers may be younger than the manifest's moment.

        A manifest of an earlier build has no next ids. For such a manifest, the ranges begin at 0 and at `ID_HEADROOM`
        below the ceiling. The second range is needed because a rebuild skips ids up to the ceiling.
        """
        if base.next_ids:
            return (LedgerId(base.next_ids.ledger),)
        moment = self._log.read_manifest(base.moment_number) if base.moment_number < base.number else None
        return LedgerId(0), LedgerId(
            max(self._find_earliest_of_moment(moment or base).ceilings.ledger - ID_HEADROOM, 0)
        )

    def _find_earliest_of_moment(self, manifest: Manifest) -> Manifest:
        """Return the earliest existing manifest with the same moment. Earlier builds did not mark repeated moments."""
        while manifest.moment_epoch is None:
            previous = self._log.read_manifest(manifest.number - 1)
            if previous is None or previous.flushed_us != manifest.flushed_us:
                break
            manifest = previous
        return manifest

    def unpin(self, rebuild: str) -> None:
        self._log.unpin(rebuild)

    def require_no_foreign_successor(self, records: RecordOutbox, number: int) -> None:
        """Refuse a database that can no longer become the catalog. The manifest of its rows has the number `number`.

        Raise `PreconditionFailed` if the next manifest belongs to another rebuild or to the old catalog.
        """
        state = records.read_state()
        if state.manifest > number:
            return
        (stamp,) = state.pending_stamps
        successor = self._log.read_manifest(number + 1)
        is_replaced = successor is None and self._log.read_manifest(number) is None
        if is_replaced or (successor is not None and successor.stamp != stamp):
            raise _overtaken_error(number + 1, successor)

    def publish_new_epoch(self, records: RecordOutbox, base: Manifest, *, unreadable: Collection[str] = ()) -> int:
        """Store and settle the first manifest of the new epoch, after `base`. Return its number. Idempotent.

        `base` is the manifest of the loaded rows. The new manifest leaves out the blocks with the keys `unreadable`.

        Raises:
            PreconditionFailed: Another rebuild stored the next manifest, or the old catalog still writes.
        """
        state = records.read_state()
        if state.manifest > base.number:
            return state.manifest
        (stamp,) = state.pending_stamps
        manifest = self._next_manifest(state, base, stamp, unreadable)
        try:
            self._log.put_manifest(manifest)
        except AlreadyExists:
            number = manifest.number
            manifest = self.read_manifest(number)
            if manifest.stamp != stamp:
                raise _overtaken_error(number, manifest) from None
        with effect("records.settle"):
            records.settle_manifest(number=manifest.number, stamp=stamp, ceilings=manifest.ceilings)
        return manifest.number

    def _next_manifest(
        self, state: RecordLogState, base: Manifest, stamp: str, unreadable: Collection[str]
    ) -> Manifest:
        next_ids = state.next_ids
        ceilings = IdCeilings(
            ledger=next_ids.ledger + ID_HEADROOM,
            topic=next_ids.topic + ID_HEADROOM,
            transaction=next_ids.transaction + ID_HEADROOM,
        )
        return replace(
            base,
            number=base.number + 1,
            epoch=state.epoch,
            stamp=stamp,
            ceilings=ceilings,
            shows=base.moment_number,  # the blocks staged in the lost database are lost
            moment_epoch=self.find_rows_epoch(base),
            blocks=tuple(block for block in base.blocks if block.key not in unreadable),
        )


def _overtaken_error(number: int, successor: Manifest | None) -> PreconditionFailed:
    found = f"one of epoch {successor.epoch}" if successor else "nothing: newer ones have replaced it"
    return PreconditionFailed(
        f"{manifest_key(number)}: expected the manifest of this rebuild, found {found}: another rebuild won, or the"
        " catalog that was thought lost still writes; this database is not the catalog: give another one with --into"
    )
