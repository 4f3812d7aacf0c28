"""Flushing: what changed in the catalog since the last time becomes blocks and a manifest of the record log.

The log shows moments of the catalog, so that no cursor or bucket in it names an entry that the log lacks, and no half
of a transaction is there. Few changes are read at one moment, and a manifest names their blocks. Many are taken page by
page: each is read at a moment of its own and has a manifest that names nothing new. The number of that manifest orders
the versions of the page, and its blocks are staged. The last page is what is left then. It holds all that has changed
since the pages before it were read, because that is in the outbox again; its manifest names all of their blocks, and
shows the moment of this page. So a process that dies has lost one page, a catalog that is rebuilt in between is that of
the flush before, and memory and the time for which the catalog is read do not grow with the outbox.

Dying anywhere is harmless: `publishing` says why for manifests, and the outbox is emptied by the very rows that were
read, once the manifest is there. What is flushed twice is a newer version that says the same.

Source: Aerospike's write blocks; fuzzy checkpoints of databases; ADR 15.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from logstore.errors import CatalogBusy, PreconditionFailed
from logstore.ports.catalog import Changes, RecordLogState, Records, Unrecordable
from logstore.records.kinds import RecordKind
from logstore.records.manifest import FREE_IDS, Block, Ceilings, Manifest
from logstore.records.services.publishing import TRIES, BlockWriter, Standing, publish, require_adopted, standing
from logstore.records.services.record_log import RecordLog
from logstore.units import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa

PAGE: Final = 500_000
"""Changes that are taken at one moment of the catalog, unless fewer than twice as many are left."""

_LOOKED_AT: Final = 1_000  # changes
_US: Final = 1_000_000
_OVERTAKEN: Final = f"record log: others published {TRIES} manifests, each just before this flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """What a flush came to."""

    manifest: int  # number of the newest one
    records: int = 0  # versions written, tombstones among them
    tombstones: int = 0
    blocks: int = 0  # written
    bytes: int = 0  # of them
    changes: int = 0  # taken out of the outbox
    left: int = 0  # in the outbox: what came meanwhile, and cursors that are not due
    named: int = 0  # blocks of all manifests so far: many small ones are worth a defragmentation
    refused: tuple[Unrecordable, ...] = ()  # records that no block can hold: their changes are left

    def plus(self, later: "Flushed") -> "Flushed":
        """Both together: a page, and what came after it."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        return replace(later, **sums)


_SUMS: Final = ("records", "tombstones", "blocks", "bytes", "changes")


class Flusher:
    """Flushes one catalog. Threads and processes may do it at once: one of them wins each number."""

    def __init__(
        self,
        records: Records,
        log: RecordLog,
        *,
        clock_bound_s: float,
        cursor_interval_s: float = 60.0,
        page: int = PAGE,
    ) -> None:
        """Work on a catalog and its record log.

        Args:
            records: The catalog's outbox.
            log: Its record log.
            clock_bound_s: A catalog whose clock is further from the store's is refused.
            cursor_interval_s: Changes of cursors wait so long for others of the same cursor.
            page: Changes that are taken at one moment, 1 or more.
        """
        self._records, self._log = records, log
        self._clock_bound_s, self._cursor_interval_s = clock_bound_s, cursor_interval_s
        self._page = page

    def flush(
        self,
        *,
        cursors: bool = False,
        progress: Callable[[int], None] = lambda _: None,
        ends_adoption: bool = False,
    ) -> Flushed:
        """Write what is in the outbox, and raise ceilings of ids of which less than half is left.

        Idempotency: with nothing to write nothing is written. Repeated after a death it writes the rest, and the page
        in hand again as newer versions. What comes while it runs is in the last page, however much that is: it ends.

        Args:
            cursors: Those of cursors too, however new they are.
            progress: Told the number of versions written so far, after each batch.
            ends_adoption: Every topic of a rebuilt catalog is settled. Before that, half of an adoption would count as
                a moment of the catalog, and a later rebuild would not adopt the other half.

        Raises:
            CatalogAdopting: The catalog was rebuilt and is not complete, or it is a replica.
            PreconditionFailed: The catalog's clock and the store's differ too much; nothing was published.
            CatalogOutdated, CatalogMismatch, CorruptData, Unsupported: As `standing`.
            StoreUnavailable, OutcomeUnknown, CatalogBusy: Repeating is fine.
        """
        total, pages, lost = Flushed(manifest=0), -1, 0

        def told(written: int) -> None:
            progress(total.records + written)

        while lost < TRIES:
            raise_if_stopped()
            found = standing(self._records, self._log)
            if not ends_adoption:
                require_adopted(found.state)
            if pages < 0:
                pages = max(0, found.state.outbox // self._page - 1)
            more = pages > 0
            done = self._staged(found, told) if more else self._flush(found, cursors or self._due(found.state), told)
            if done is None:
                lost += 1
                continue
            total, lost = total.plus(done), 0
            if not more:
                return replace(total, left=self._records.state().outbox)
            pages = pages - 1 if done.changes else 0
        raise CatalogBusy(_OVERTAKEN)

    def rewrite(self, *, progress: Callable[[int], None] = lambda _: None) -> Flushed:
        """Write every record and tombstone of the catalog anew, into a manifest that names nothing else.

        For a record log of which a manifest or a block is damaged or gone, while the catalog is whole: nothing of the
        older manifests is read. The number of the manifest guards it: a flush that takes away what is to be written
        takes that number, too, and this begins anew.

        Idempotency: a death leaves records that are flushed once more than needed; repeating it writes all anew.

        Args:
            progress: As for `flush`.

        Raises:
            CatalogAdopting: The catalog was rebuilt and is not complete: it lacks what is in the log.
            CatalogOutdated: There is a newer manifest than the catalog knows: it is the catalog that lacks something.
            CorruptData, Unsupported: There is one, and it cannot be read.
            PreconditionFailed, StoreUnavailable, OutcomeUnknown, CatalogBusy: As `flush`.
        """
        for _ in range(TRIES):
            raise_if_stopped()
            state = self._records.state()
            require_adopted(state)
            if self._log.numbers(after=state.manifest):
                standing(self._records, self._log)  # settles it, if it is one of this catalog
                continue
            self._records.record_all()
            done = self._flush(Standing(state=state, manifest=_emptied(state)), True, progress, anew=True)
            if done:
                return replace(done, left=self._records.state().outbox)
        raise CatalogBusy(_OVERTAKEN)

    def _due(self, state: RecordLogState) -> bool:
        """Whether a change of a cursor has waited for long enough; or pages may hold what must not be without it."""
        oldest_us = state.oldest_cursor_us
        if state.staged:
            return True
        return oldest_us is not None and oldest_us <= state.now_us - self._cursor_interval_s * _US

    def _staged(self, found: Standing, progress: Callable[[int], None]) -> Flushed | None:
        """One page of many: its blocks are staged, and its manifest names what the one before it named."""
        with self._records.changes(cursors=False, page=self._page) as changes:
            blocks = self._written(changes, found.number + 1, progress)
            taken, at_us = changes.taken, changes.at_us
        if not taken:
            return Flushed(manifest=found.number)
        self._require_clock(blocks, at_us)
        done = publish(
            self._records,
            self._log,
            found,
            blocks=found.blocks,
            ceilings=raised(found.state.ceilings, found.state.next_ids),
            flushed_us=found.manifest.flushed_us if found.manifest else 0,
            next_ids=found.next_ids,
            taken=taken,
            staged=blocks,
        )
        return _flushed(done, blocks, len(taken)) if done else None

    def _flush(
        self, found: Standing, cursors: bool, progress: Callable[[int], None], *, anew: bool = False
    ) -> Flushed | None:
        state, ceilings = found.state, raised(found.state.ceilings, found.state.next_ids)
        staged = () if anew else state.staged
        settled = found.moment > 0 and found.moment == found.number and ceilings == state.ceilings and not anew
        if settled and not (state.outbox or staged):
            return Flushed(manifest=found.number, named=len(found.blocks))
        with self._records.changes(cursors=cursors) as changes:
            blocks = self._written(changes, found.number + 1, progress)
            taken, at_us, refused = changes.taken, changes.at_us, tuple(changes.refused)
        if settled and not (taken or blocks or staged):
            return Flushed(manifest=found.number, named=len(found.blocks), refused=refused)
        self._require_clock(blocks, at_us)
        together = (*found.blocks, *staged, *blocks)
        done = publish(
            self._records,
            self._log,
            found,
            blocks=together,
            ceilings=ceilings,
            flushed_us=at_us,
            next_ids=state.next_ids,
            taken=taken,
            ends=True,
        )
        return replace(_flushed(done, blocks, len(taken)), refused=refused) if done else None

    def _written(self, changes: Changes, number: int, progress: Callable[[int], None]) -> list[Block]:
        """Blocks of all changes, whose versions have the number of the manifest that is to name them."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        blocks: list[Block] = []
        writer: BlockWriter | None = None
        kind: RecordKind | None = None
        written = 0
        for of, batch in changes.batches():
            raise_if_stopped()
            if writer is None or of != kind:
                blocks += writer.close() if writer else []
                writer, kind = BlockWriter(self._log, of), of
            writer.add(_numbered(pa.Table.from_batches([batch]), number))
            written += batch.num_rows
            progress(written)
        return [*blocks, *(writer.close() if writer else [])]

    def _require_clock(self, blocks: list[Block], at_us: int) -> None:
        """Compare the catalog's clock with the time at which the store says that it got a block just now.

        It got it between the moment that was read and now, by the catalog's clock: so much is no fault of any clock.
        """
        stored_us = self._log.put_us(blocks[0].key) if blocks else None
        if stored_us is None:
            return
        bound_us = round(self._clock_bound_s * _US)
        if abs(stored_us - at_us) <= bound_us:
            return
        now_us = self._records.state().now_us  # the blocks took long, or a clock is wrong
        if not at_us - bound_us <= stored_us <= max(at_us, now_us) + bound_us:
            raise PreconditionFailed(
                f"clock: expected the catalog's and the store's within {self._clock_bound_s:g} s of each other, found "
                f"the catalog's at {at_us} and the store's at {stored_us} (microseconds since 1970); set the clocks"
            )


def _flushed(manifest: Manifest, blocks: list[Block], changes: int) -> Flushed:
    return Flushed(
        manifest=manifest.number,
        records=sum(one.records for one in blocks),
        tombstones=sum(one.tombstones for one in blocks),
        blocks=len(blocks),
        bytes=sum(one.size_bytes for one in blocks),
        changes=changes,
        named=len(manifest.blocks),
    )


def refused(records: Records) -> Sequence[Unrecordable]:
    """Records that flushes leave out; they soon are the oldest changes, which are looked at. Nothing is changed."""
    with records.changes(cursors=True, page=_LOOKED_AT) as changes:
        for _ in changes.batches():
            raise_if_stopped()
        return changes.refused


def _emptied(state: RecordLogState) -> Manifest | None:
    """In the place of the newest manifest, one that names no block."""
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


def raised(ceilings: Ceilings, next_ids: Ceilings) -> Ceilings:
    """Ceilings of which at least half of `FREE_IDS` is left: those that are lower are set `FREE_IDS` ahead."""

    def one(ceiling: int, next_id: int) -> int:
        return ceiling if ceiling - next_id >= FREE_IDS // 2 else next_id + FREE_IDS

    return Ceilings(
        ledger=one(ceilings.ledger, next_ids.ledger),
        topic=one(ceilings.topic, next_ids.topic),
        transaction=one(ceilings.transaction, next_ids.transaction),
    )


def _numbered(versions: "pa.Table", number: int) -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    at = versions.schema.get_field_index("version")
    return versions.set_column(
        at, versions.schema.field(at), pa.repeat(pa.scalar(number, pa.int64()), versions.num_rows)
    )
