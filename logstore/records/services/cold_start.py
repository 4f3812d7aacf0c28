"""A cold start between its load and its adoption: the manifest of the new epoch, of which one can be put.

Two rebuilds from one manifest put the same number, and the first one wins. The one that loses never is the catalog: its
database stays ADOPTING, and nothing is destroyed from it.

The manifest ends the old epoch and holds no row of the new one. It repeats the moment that was loaded, with the epoch
of that moment, until the flush at the end of the adoption. A rebuild that begins in between adopts the same uploads.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from logstore.errors import AlreadyExists, PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.catalog.records import RecordLogState, Records
from logstore.positions import LedgerId
from logstore.records.manifest import FREE_IDS, Ceilings, Manifest, manifest_key
from logstore.records.rebuilding import RebuildId
from logstore.records.services.record_log import Pin, RecordLog

_PINNED_US: Final = 7 * 86_400 * 1_000_000
_WHAT: Final = "rebuild"
_STORE_TIME_STEP_S: Final = 1.0  # S3 tells times of objects in whole seconds


class ColdStart:
    """The record log's part of a rebuild."""

    def __init__(self, log: RecordLog) -> None:
        """Work on this log."""
        self._log = log

    def newest(self) -> Manifest:
        """The newest manifest.

        Raises:
            PreconditionFailed: There is none: nothing was ever flushed into this bucket.
            Unsupported: It is of a newer format.
            CorruptData: It cannot be read.
            StoreUnavailable: The listing lacks a newer one, which HEAD finds.
        """
        found = self._log.certain_newest()
        if found is None:
            raise PreconditionFailed(
                "record log: expected a manifest in the records bucket, found none to rebuild from"
            )
        return found

    def pin(self, rebuild: str, manifest: int, *, now_us: int) -> Manifest:
        """Keep the blocks of a manifest for a week from now on; repeating it is harmless."""
        self._log.pin(rebuild, manifest, now_us + _PINNED_US, _WHAT)
        return self.manifest(manifest)

    def held(self) -> list[RebuildId]:
        """Rebuilds that hold a manifest."""
        return [RebuildId.parse(pin.pin_id) for pin in self.pins()]

    def pins(self) -> list[Pin]:
        """Return the pins of rebuilds."""
        return [pin for pin in self._log.pins() if pin.what == _WHAT]

    def end_pin(self, pin: Pin) -> None:
        """Release one pin. A rebuild that has renewed it meanwhile holds another one, which stays."""
        self._log.end_pin(pin)

    def manifest(self, number: int) -> Manifest:
        """The manifest of a number.

        Raises:
            PreconditionFailed: It is not there, or not any more.
        """
        found = self._log.manifest(number)
        if found is None:
            raise PreconditionFailed(f"{manifest_key(number)}: expected it in the records bucket, found nothing")
        return found

    def is_followed(self, number: int) -> bool:
        """Whether the manifest behind a number stands: that of the new epoch, or one by which a rebuild is refused.

        Until it does the old catalog is the catalog, and its workers may go on.
        """
        return self._log.manifest(number + 1) is not None

    def find_epoch_age_s(self, rebuild: str, base: Manifest, *, now_us: int) -> float:
        """Return how long ago the manifest behind another one was put, at least, by the store's clock alone.

        The pin is renewed, because the time of an object that was just put is the store's time. Answers of 0 or less
        mean that the store tells no time, or that the manifest was put just now.
        """
        renewed_us = self._log.put_us(self._log.pin(rebuild, base.number, now_us + _PINNED_US, _WHAT))
        put_us = self._log.put_us(manifest_key(base.number + 1))
        if renewed_us is None or put_us is None:
            return 0.0
        return (renewed_us - put_us) / 1_000_000 - _STORE_TIME_STEP_S

    def rows_epoch(self, base: Manifest) -> int:
        """Epoch of the catalog whose rows a manifest holds: uploads of that epoch may be in no block.

        Earlier builds put the manifest of a new epoch as one that shows a moment of its own. It has the blocks and the
        time of the manifest before it, which tells the epoch of its rows as long as no sweep has removed it.
        """
        return self._moment(base).rows_epoch

    def unflushed_from(self, base: Manifest) -> tuple[LedgerId, ...]:
        """Return ids from which on ledgers may be younger than the moment that a manifest shows, ascending.

        A rebuild passes over all ids up to the ceilings, so these are more than the ids behind the highest one of a
        record. Manifests of earlier builds lack the next ids. Their ceilings were set `FREE_IDS` above them: by a
        rebuild, before its first ledger, or by a flush, which knows every ledger before that.
        """
        if base.next_ids:
            return (LedgerId(base.next_ids.ledger),)
        shown = self._log.manifest(base.moment) if base.moment < base.number else None
        return LedgerId(0), LedgerId(max(self._moment(shown or base).ceilings.ledger - FREE_IDS, 0))

    def _moment(self, manifest: Manifest) -> Manifest:
        """Return the manifest whose moment an earlier build's one repeats, as far as manifests before it are there."""
        while manifest.moment_epoch is None:
            before = self._log.manifest(manifest.number - 1)
            if before is None or before.flushed_us != manifest.flushed_us:
                break
            manifest = before
        return manifest

    def unpin(self, rebuild: str) -> None:
        """Release them."""
        self._log.unpin(rebuild)

    def require_own_successor(self, records: Records, number: int) -> None:
        """Refuse a loaded database that can no longer become the catalog.

        Args:
            records: Of the loaded database.
            number: Of the manifest from which it was loaded.

        Raises:
            PreconditionFailed: The next manifest is of another rebuild, or a flush of the old catalog.
        """
        state = records.state()
        if state.manifest > number:
            return
        (stamp,) = state.pending
        successor = self._log.manifest(number + 1)
        is_replaced = successor is None and self._log.manifest(number) is None
        if is_replaced or (successor is not None and successor.stamp != stamp):
            raise _overtaken(number + 1, successor)

    def publish(self, records: Records, base: Manifest, *, unreadable: Collection[str] = ()) -> int:
        """Put the manifest of the new epoch behind the one that was loaded, and settle it; its number.

        A process may die before the put, and then nothing has happened, or behind it, and then its stamp is found.

        Args:
            records: Of the rebuilt catalog.
            base: The manifest from which it was rebuilt.
            unreadable: Keys of blocks that were left out; they are named no more.

        Raises:
            PreconditionFailed: Another manifest stands there: another rebuild won, or the old catalog lives.
        """
        state = records.state()
        if state.manifest > base.number:
            return state.manifest
        (stamp,) = state.pending
        manifest = self._next(state, base, stamp, unreadable)
        try:
            self._log.put_manifest(manifest)
        except AlreadyExists:
            manifest = self._ours(manifest)
        with effect("records.settle"):
            records.settle(number=manifest.number, stamp=stamp, ceilings=manifest.ceilings)
        return manifest.number

    def _next(self, state: RecordLogState, base: Manifest, stamp: str, unreadable: Collection[str]) -> Manifest:
        begin = state.next_ids
        ceilings = Ceilings(
            ledger=begin.ledger + FREE_IDS, topic=begin.topic + FREE_IDS, transaction=begin.transaction + FREE_IDS
        )
        return replace(
            base,
            number=base.number + 1,
            epoch=state.epoch,
            stamp=stamp,
            ceilings=ceilings,
            shows=base.moment,  # what was staged is lost with the database
            moment_epoch=self.rows_epoch(base),
            blocks=tuple(block for block in base.blocks if block.key not in unreadable),
        )

    def _ours(self, expected: Manifest) -> Manifest:
        successor = self.manifest(expected.number)
        if successor.stamp != expected.stamp:
            raise _overtaken(expected.number, successor)
        return successor


def _overtaken(number: int, successor: Manifest | None) -> PreconditionFailed:
    shown = f"one of epoch {successor.epoch}" if successor else "nothing: newer ones have replaced it"
    return PreconditionFailed(
        f"{manifest_key(number)}: expected the manifest of this rebuild, found {shown}: another rebuild won, or the"
        " catalog that was thought lost still writes; this database is not the catalog: give another one with --into"
    )
