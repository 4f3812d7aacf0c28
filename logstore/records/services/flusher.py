"""Flushes: the catalog's changes since the last flush are written into blocks and a manifest of the record log.

A manifest shows the catalog at one moment. So its blocks have only complete transactions, and have the segment of every
entry that a cursor or an index bucket names. A small flush reads all changes at one moment. A large flush works
in pages:

1. Each page is read at a moment of its own, and its blocks are staged. A manifest is stored for each page. This
   manifest names no new block, but its number orders the page's record versions.
2. The last page also has every record that changed after an earlier page was read, because the change is in the outbox.
3. The last manifest names the blocks of all pages and shows the moment of the last page.

So a crash loses the work on at most one page. A rebuild during a flush gets the catalog of the previous flush. Memory
and the time of a read transaction do not grow with the outbox.

After a manifest is stored, exactly those rows that were read are removed from the outbox. A change that is flushed
twice becomes a newer record version with equal content.

`SharedFlushes` lets deletions wait for a flush before they delete objects. The record log must have the tombstone or
intent first. Otherwise a rebuilt catalog would list a ledger that lacks objects.

Source: Aerospike's write blocks; fuzzy checkpoints of databases; ADR 15.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Condition
from typing import TYPE_CHECKING, Final, Protocol

from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogBusy, PreconditionFailed, SextonError, StoreUnavailable
from logstore.ports.catalog.records import RecordLogState, UnrecordableRecord
from logstore.records.job_results import FlushedRecords
from logstore.records.manifest import ID_HEADROOM, Block, IdCeilings, Manifest
from logstore.records.record_kinds import RecordKind
from logstore.records.services.manifest_publication import (
    MAX_PUBLISH_ATTEMPTS,
    BlockWriter,
    RecordLogHead,
    publish_manifest,
    read_settled_head,
    require_no_adoption,
)
from logstore.records.services.record_log import RecordLog
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.catalog.records.outbox_reader import OutboxChanges


CHANGES_PER_PAGE: Final = 500_000
"""Number of changes read at one moment. The last page may have up to twice as many changes."""

_MAX_CHANGES_EXAMINED: Final = 1_000  # bound for `find_unrecordable`
_US: Final = 1_000_000
_OVERTAKEN_MESSAGE: Final = (
    f"record log: others published {MAX_PUBLISH_ATTEMPTS} manifests, each just before this flush"
)


class Flusher:
    """Flushes of one catalog.

    Several threads and processes may flush at once. For each manifest number exactly one flush succeeds. The clocks of
    the catalog and the store may differ by at most `clock_bound_s`. Changes of a cursor are flushed after
    `cursor_interval_s`, because later changes may follow. `page` is the number of changes in a page, at least 1.
    """

    def __init__(
        self,
        records: RecordOutbox,
        log: RecordLog,
        *,
        clock_bound_s: float,
        cursor_interval_s: float = 60.0,
        page: int = CHANGES_PER_PAGE,
    ) -> None:
        self._records, self._log = records, log
        self._clock_bound_s, self._cursor_interval_s = clock_bound_s, cursor_interval_s
        self._page = page

    def flush(
        self,
        *,
        cursors: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        ends_adoption: bool = False,
    ) -> FlushedRecords:
        """Write the outbox to the record log. Raise ceilings that are close to the next ids (`raise_low_ceilings`).

        Idempotency: without changes nothing is written. After a crash, a repeated call writes the interrupted page and
        the later pages. Changes committed meanwhile are in the last page, so the flush always ends.

        With `cursors`, changes of cursors are written even if they are not due. `progress` gets the number of record
        versions written so far. Set `ends_adoption` only if every topic of a rebuilt catalog is settled. Otherwise the
        manifest would show half an adoption, and a later rebuild would not adopt the other half.

        Raises:
            CatalogAdopting: The catalog is rebuilt and incomplete, or is a replica database.
            PreconditionFailed: The clocks of catalog and store differ too much. Nothing was published.
            CatalogOutdated, CatalogMismatch, CorruptData, Unsupported: Errors of `read_settled_head`.
            StoreUnavailable, OutcomeUnknown, CatalogBusy: The flush may be repeated.
        """
        total, remaining_pages, lost_races = FlushedRecords(), -1, 0

        def report_progress(versions: int) -> None:
            progress(total.records + versions)

        while lost_races < MAX_PUBLISH_ATTEMPTS:
            raise_if_stopped()
            head = read_settled_head(self._records, self._log)
            if not ends_adoption:
                require_no_adoption(head.state)
            if remaining_pages < 0:
                remaining_pages = max(0, head.state.outbox_changes // self._page - 1)
            is_last = remaining_pages == 0
            if is_last:
                result = self._try_to_flush_rest(head, cursors or self._are_cursors_due(head.state), report_progress)
            else:
                result = self._try_to_publish_staged_page(head, report_progress)
            if result is None:
                lost_races += 1
                continue
            total, lost_races = total.plus(result), 0
            if is_last:
                # all pages together are one flush
                left = self._records.read_state().outbox_changes
                return replace(total, flushes=min(total.flushes, 1), left=left)
            remaining_pages = remaining_pages - 1 if result.flushes else 0
        raise CatalogBusy(_OVERTAKEN_MESSAGE)

    def rewrite_all_records(self, *, progress: Callable[[int], None] = lambda _: None) -> FlushedRecords:
        """Write every record and tombstone into new blocks. The new manifest names only these blocks.

        This repairs a record log in which manifests or blocks are absent or damaged. Older manifests are not read.

        Idempotency: a repeated call writes all records again. After a crash some records are flushed twice.

        Raises:
            CatalogAdopting: The catalog is rebuilt and incomplete: it lacks records of the record log.
            CatalogOutdated: The catalog does not know the newest manifest, so it lacks records.
            CorruptData, Unsupported: The newest manifest is unreadable.
            PreconditionFailed, StoreUnavailable, OutcomeUnknown, CatalogBusy: Errors of `flush`.
        """
        for _ in range(MAX_PUBLISH_ATTEMPTS):
            raise_if_stopped()
            state = self._records.read_state()
            require_no_adoption(state)
            if self._log.list_manifest_numbers(after=state.manifest):
                read_settled_head(self._records, self._log)  # settles the manifest if it is this catalog's
                continue
            self._records.requeue_all_records()
            head = RecordLogHead(state=state, manifest=_known_manifest_without_blocks(state))
            result = self._try_to_flush_rest(head, True, progress, is_rewrite=True)
            if result:
                return replace(result, left=self._records.read_state().outbox_changes)
        raise CatalogBusy(_OVERTAKEN_MESSAGE)

    def _are_cursors_due(self, state: RecordLogState) -> bool:
        """Return whether to write changes of cursors now.

        If there are staged blocks, changes of cursors are due, because record versions in these blocks may depend on
        the changes. Otherwise changes of cursors are due after the cursor interval.
        """
        if state.staged_blocks:
            return True
        oldest_us = state.oldest_cursor_change_us
        return oldest_us is not None and oldest_us <= state.now_us - self._cursor_interval_s * _US

    def _try_to_publish_staged_page(
        self, head: RecordLogHead, progress: Callable[[int], None]
    ) -> FlushedRecords | None:
        with self._records.read_changes(cursors=False, page=self._page) as changes:
            blocks = self._write_blocks(changes, head.number + 1, progress)
            outbox_rows, at_us = changes.outbox_rows, changes.at_us
        if not outbox_rows:
            return FlushedRecords(manifest=head.number)
        self._require_clocks_agree(blocks, at_us)
        manifest = publish_manifest(
            self._records,
            self._log,
            head,
            blocks=head.blocks,
            ceilings=raise_low_ceilings(head.state.ceilings, head.state.next_ids),
            flushed_us=head.manifest.flushed_us if head.manifest else 0,
            next_ids=head.next_ids,
            outbox_rows=outbox_rows,
            staged_blocks=blocks,
        )
        return _summarize_flush(manifest, blocks, has_changes=True) if manifest else None

    def _try_to_flush_rest(
        self, head: RecordLogHead, cursors: bool, progress: Callable[[int], None], *, is_rewrite: bool = False
    ) -> FlushedRecords | None:
        state, ceilings = head.state, raise_low_ceilings(head.state.ceilings, head.state.next_ids)
        staged_blocks = () if is_rewrite else state.staged_blocks
        is_current = 0 < head.moment_number == head.number and ceilings == state.ceilings and not is_rewrite
        if is_current and not (state.outbox_changes or staged_blocks):
            return FlushedRecords(manifest=head.number, named=len(head.blocks))
        with self._records.read_changes(cursors=cursors) as changes:
            blocks = self._write_blocks(changes, head.number + 1, progress)
            outbox_rows, at_us, unrecordable = changes.outbox_rows, changes.at_us, changes.unrecordable
        if head.manifest and is_current and not (outbox_rows or blocks or staged_blocks):
            return _summarize_flush(head.manifest, blocks, unrecordable, has_changes=False)
        self._require_clocks_agree(blocks, at_us)
        manifest = publish_manifest(
            self._records,
            self._log,
            head,
            blocks=(*head.blocks, *staged_blocks, *blocks),
            ceilings=ceilings,
            flushed_us=at_us,
            next_ids=state.next_ids,
            outbox_rows=outbox_rows,
            ends_flush=True,
        )
        return _summarize_flush(manifest, blocks, unrecordable, has_changes=bool(outbox_rows)) if manifest else None

    def _write_blocks(self, changes: "OutboxChanges", number: int, progress: Callable[[int], None]) -> list[Block]:
        """Store all changes in blocks. `number` is the number of the manifest that is stored next."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        blocks: list[Block] = []
        writer: BlockWriter | None = None
        writer_kind: RecordKind | None = None
        versions = 0
        for kind, batch in changes.iterate_version_batches():
            raise_if_stopped()
            if writer is None or kind != writer_kind:
                blocks += writer.store_remaining() if writer else []
                writer, writer_kind = BlockWriter(self._log, kind), kind
            writer.add_versions(_set_version(pa.Table.from_batches([batch]), number))
            versions += batch.num_rows
            progress(versions)
        return [*blocks, *(writer.store_remaining() if writer else [])]

    def _require_clocks_agree(self, blocks: list[Block], at_us: int) -> None:
        """Compare the clocks of catalog and store. `blocks` were stored after the catalog's time `at_us`."""
        stored_us = self._log.stored_at_us(blocks[0].key) if blocks else None
        if stored_us is None:
            return
        bound_us = round(self._clock_bound_s * _US)
        if abs(stored_us - at_us) <= bound_us:
            return
        now_us = self._records.read_state().now_us  # writing took long, or a clock is wrong
        if not at_us - bound_us <= stored_us <= max(at_us, now_us) + bound_us:
            raise PreconditionFailed(
                f"clock: expected the catalog's and the store's within {self._clock_bound_s:g} s of each other, found "
                f"the catalog's at {at_us} and the store's at {stored_us} (microseconds since 1970); set the clocks"
            )


def _summarize_flush(
    manifest: Manifest, blocks: list[Block], unrecordable: Sequence[UnrecordableRecord] = (), *, has_changes: bool
) -> FlushedRecords:
    return FlushedRecords(
        manifest=manifest.number,
        flushes=int(bool(blocks or has_changes)),
        records=sum(block.records for block in blocks),
        tombstones=sum(block.tombstones for block in blocks),
        blocks=len(blocks),
        bytes=sum(block.size_bytes for block in blocks),
        named=len(manifest.blocks),
        refused=len(unrecordable),
        refusal=str(unrecordable[0]) if unrecordable else "",
    )


def find_unrecordable(records: RecordOutbox) -> Sequence[UnrecordableRecord]:
    """Examine the oldest changes. Return the records that no block can hold. Nothing is changed.

    The changes of such a record stay in the outbox, and so are soon among the oldest changes.
    """
    with records.read_changes(cursors=True, page=_MAX_CHANGES_EXAMINED) as changes:
        for _ in changes.iterate_version_batches():
            raise_if_stopped()
        return changes.unrecordable


def _known_manifest_without_blocks(state: RecordLogState) -> Manifest | None:
    if not state.manifest:
        return None
    return Manifest(
        number=state.manifest,
        catalog_id=state.catalog_id,
        epoch=state.epoch,
        bundles=state.bundles,
        stamp=state.stamp,
        flushed_us=0,
        ceilings=state.ceilings,
    )


def raise_low_ceilings(ceilings: IdCeilings, next_ids: IdCeilings) -> IdCeilings:
    """Raise each ceiling that is less than `ID_HEADROOM // 2` above its next id. Leave the other ceilings.

    The new ceiling is `ID_HEADROOM` above the next id.
    """

    def raise_ceiling(ceiling: int, next_id: int) -> int:
        return ceiling if ceiling - next_id >= ID_HEADROOM // 2 else next_id + ID_HEADROOM

    return IdCeilings(
        ledger=raise_ceiling(ceilings.ledger, next_ids.ledger),
        topic=raise_ceiling(ceilings.topic, next_ids.topic),
        transaction=raise_ceiling(ceilings.transaction, next_ids.transaction),
    )


def _set_version(versions: "pa.Table", number: int) -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    position = versions.schema.get_field_index("version")
    column = pa.repeat(pa.scalar(number, pa.int64()), versions.num_rows)
    return versions.set_column(position, versions.schema.field(position), column)


class ChangeFlusher(Protocol):
    def flush(self) -> object:
        """Write all changes that were committed before the call."""


class SharedFlushes:
    """Flushes that the threads of a process share. Thread-safe.

    A thread needs a flush that begins after its request. All waiting threads share this flush and its failure. So
    threads do not wait for one failing flush after another.
    """

    def __init__(self, records: RecordOutbox, flusher: ChangeFlusher) -> None:
        self._records, self._flusher = records, flusher
        self._changed = Condition()
        self._started = self._ended = self._last_success = 0  # flush numbers, from 1
        self._is_running = False
        self._failure: SextonError | None = None  # error of the last finished flush

    def flush_deletions(self, ledger_ids: Sequence[int]) -> dict[int, SextonError]:
        """Flush the deletions of these ledgers. Return a `StoreUnavailable` for each ledger that is not flushed.

        If the catalog does not answer, the result has every ledger.
        """
        unflushed = frozenset(ledger_ids)
        try:
            unflushed = self._records.find_unflushed_ledgers(ledger_ids)
            if unflushed:
                self.wait_until_flushed(sorted(unflushed))
        except SextonError as error:
            return dict.fromkeys(
                unflushed, StoreUnavailable(f"the record log must know of the deletion first: {error}")
            )
        return {}

    def wait_until_flushed(self, ledger_ids: Sequence[int]) -> None:
        """Wait until the record log has the tombstones and intents of these ledgers. Idempotent.

        Raises:
            CatalogBusy: Some ledgers are not flushed, because of other writers. The call may be repeated.
            RetryableError, TerminalError: The flush failed.
        """
        if not self._records.find_unflushed_ledgers(ledger_ids):
            return
        self._join_flush()
        unflushed = self._records.find_unflushed_ledgers(ledger_ids)
        if unflushed:
            raise CatalogBusy(
                f"record log: a flush left {len(unflushed)} of {len(ledger_ids)} ledgers, as {min(unflushed)}"
            )

    def _join_flush(self) -> None:
        with self._changed:
            needed = self._started + 1  # a running flush may have read the catalog before this request
            while self._is_running and self._ended < needed:
                self._changed.wait()
            if self._last_success >= needed:
                return
            if self._ended >= needed and self._failure is not None:
                raise StoreUnavailable(f"a flush of the record log failed: {self._failure}") from self._failure
            self._is_running, self._started = True, self._started + 1
            number = self._started
        failure: SextonError | None = None
        success = 0
        try:
            self._flusher.flush()
            success = number
        except SextonError as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._is_running, self._ended, self._failure = False, number, failure
                self._last_success = max(self._last_success, success)
                self._changed.notify_all()
