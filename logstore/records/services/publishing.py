"""How versions get into the record log: blocks first, which no manifest names yet, and then a manifest that names them.

The number of the manifest is the lock. A writer reads the newest manifest, reads the catalog after that, stores blocks,
commits a random stamp to the catalog and puts the manifest of the next number. Of several one wins, and the others
begin anew with a manifest, a view of the catalog and blocks that are newer. So manifests show moments of the catalog in
their order, and the number of its manifest is the version of whatever a flush writes: it orders versions of a record
even where two transactions changed parts of it at once, neither of which saw the other.

A process that dies before the put leaves a stamp and blocks that no manifest names: both are harmless, and blocks are
swept when they are old. One that dies behind the put leaves a stamp that is pending: `standing` settles it. A put that
lands late wins the number or loses it to another one, as if it had been in time.

A database that was restored from a backup does not know what was answered since: written to, it would give the same
positions and ids out again. So it is asked whether it knows the newest manifest before a process uses the primary
bucket, and refused.

Source: Apache Iceberg (compare-and-set of the metadata pointer); ADR 15.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from logstore.errors import (
    AlreadyExists,
    CatalogAdopting,
    CatalogBusy,
    CatalogMismatch,
    CatalogOutdated,
    StoreUnavailable,
)
from logstore.failpoints import effect
from logstore.ports.catalog import KnownManifest, RecordLogState, Records
from logstore.ports.objects import OwnedStore
from logstore.records.blocks import VERSIONS
from logstore.records.kinds import RecordKind
from logstore.records.manifest import Block, Ceilings, Manifest
from logstore.records.services.record_log import RecordLog

if TYPE_CHECKING:
    import pyarrow as pa

_REBUILT: Final = (
    "Another database was rebuilt from the log: set SEXTON_DATABASE_URL to that one. Where it is lost, stop the workers"
    " and run `sexton records rebuild --into DATABASE_URL` with an empty database"
)
_RESTORED: Final = (
    "It was restored from a backup, or a copy of it is in use: stop the workers and run"
    " `sexton records rebuild --into DATABASE_URL` with an empty database"
)

TRIES: Final = 10
"""Of a writer that others overtake: each time one of them has published."""

_HELD_BYTES: Final = 64 << 20
"""So much of versions is held before blocks are made of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The catalog and the newest manifest of its record log, which know each other."""

    state: RecordLogState
    manifest: Manifest | None  # none: nothing was ever flushed

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Those that count."""
        return self.manifest.blocks if self.manifest else ()

    @property
    def number(self) -> int:
        """Of the newest manifest; 0: there is none."""
        return self.manifest.number if self.manifest else 0

    @property
    def moment(self) -> int:
        """Of the newest manifest that shows a moment of its own; 0: there is none."""
        return self.manifest.moment if self.manifest else 0

    @property
    def rows_epoch(self) -> int:
        """Epoch of the catalog at that moment."""
        return self.manifest.rows_epoch if self.manifest else self.state.epoch

    @property
    def next_ids(self) -> Ceilings | None:
        """Ids that were given out next at that moment; None where an earlier build wrote the manifest."""
        return self.manifest.next_ids if self.manifest else Ceilings(ledger=0, topic=0, transaction=0)


def standing(records: Records, log: RecordLog) -> Standing:
    """Read the catalog's state and the newest manifest, and settle one that its writer could not settle.

    Settling it takes nothing out of the outbox: what it holds is flushed again, as newer versions that say the same.
    For the same reason nothing is staged by it: no flush owns the blocks of that page. Repeating this is harmless.

    Raises:
        CatalogMismatch: The bucket has no manifest though the catalog knows one, or one of another catalog.
        CatalogOutdated: The catalog knows the newest manifest neither as its last one nor as one that was begun.
        CatalogBusy: Others published all the while.
        CorruptData, Unsupported: The manifest cannot be read.
    """
    for _ in range(TRIES):
        state = records.state()
        newest = log.newest(after=state.manifest)
        if newest is None:
            require_known(state, None)
            return Standing(state=state, manifest=None)
        _require_same(state, newest)
        if newest.stamp == state.stamp:
            return Standing(state=state, manifest=newest)
        if newest.stamp in state.pending:
            with effect("records.settle"):
                _settle(records, newest)
            continue
        require_known(records.known(), newest)
    raise CatalogBusy(f"record log: others published {TRIES} manifests while this one looked for the newest")


def _require_same(state: KnownManifest, newest: Manifest) -> None:
    if newest.catalog_id != state.catalog_id:
        raise CatalogMismatch(
            newest.key,
            expected=f"catalog {state.catalog_id}",
            found=f"catalog {newest.catalog_id}",
            advice="name the records bucket of this catalog",
        )


def require_known(state: KnownManifest, newest: Manifest | None) -> None:
    """Refuse a catalog to which the newest manifest is strange.

    The state was read after the manifest, and a stamp is committed before: one of a live writer is known by now.

    Args:
        state: Of the catalog.
        newest: None where there is no manifest.

    Raises:
        CatalogMismatch: It is another catalog's, or there is none though the catalog knows one.
        CatalogOutdated: The catalog knows it neither as its last one nor as one that was begun.
    """
    if newest is None:
        if state.manifest:
            raise CatalogMismatch(
                "records bucket",
                expected=f"manifest {state.manifest} or a newer one",
                found="none",
                advice="put back what was removed, or write all of it anew: sexton records rewrite",
            )
        return
    _require_same(state, newest)
    if state.manifest > newest.number or newest.stamp in {state.stamp, *state.pending}:
        return
    raise CatalogOutdated(
        f"{newest.key}: expected a stamp of this catalog, whose newest manifest is {state.manifest}, found "
        f"{newest.stamp} of epoch {newest.epoch}: the database is older than its record log. "
        f"{_REBUILT if newest.epoch > state.epoch else _RESTORED}"
    )


def require_adopted(state: RecordLogState) -> None:
    """Refuse while a rebuilt catalog is not complete.

    Raises:
        CatalogAdopting: It is not.
    """
    if state.adopting:
        raise CatalogAdopting(
            "record log: expected a catalog that is complete, found one that adopts what storage holds"
        )


def publish(
    records: Records,
    log: RecordLog,
    found: Standing,
    *,
    blocks: Sequence[Block],
    ceilings: Ceilings,
    flushed_us: int,
    next_ids: Ceilings | None,
    taken: Collection[int] = (),
    staged: Sequence[Block] = (),
    ends: bool = False,
) -> Manifest | None:
    """Put the manifest that follows the newest one, and settle it; None if another writer took its number.

    Args:
        records: The catalog's side.
        log: Where to put it.
        found: What `standing` said before the blocks were made.
        blocks: All that count from then on. In the midst of a flush, they show what those before them showed.
        ceilings: Of ids; they hold in the catalog once the manifest is there, never before.
        flushed_us: The moment of the catalog that the blocks show.
        next_ids: Of that moment, or read before it.
        taken: Outbox rows that they cover, or those that a page covers.
        staged: Blocks of the page.
        ends: Whether nothing is staged any more: it is among the blocks that count, or not needed.
    """
    manifest = Manifest(
        number=found.number + 1,
        catalog_id=found.state.catalog_id,
        epoch=found.state.epoch,
        bundles=found.state.bundles,
        stamp=uuid4().hex,
        flushed_us=flushed_us,
        ceilings=ceilings,
        blocks=tuple(blocks),
        next_ids=next_ids,
    )
    if not ends and (staged or found.state.staged):
        manifest = replace(manifest, shows=found.moment, moment_epoch=found.rows_epoch)
    with effect("records.begin"):
        records.begin(manifest.stamp)
    try:
        log.put_manifest(manifest)
    except AlreadyExists:
        return None
    with effect("records.settle"):
        _settle(records, manifest, taken=taken, staged=staged)
    return manifest


def _settle(records: Records, manifest: Manifest, *, taken: Collection[int] = (), staged: Sequence[Block] = ()) -> None:
    records.settle(
        number=manifest.number,
        stamp=manifest.stamp,
        ceilings=manifest.ceilings,
        taken=taken,
        whole=manifest.shows is None,
        staged=staged,
    )


class BlockWriter:
    """Makes blocks of versions of one kind, and holds back those that do not fill one yet."""

    def __init__(self, log: RecordLog, kind: RecordKind) -> None:
        """Write to this log."""
        self._log, self._kind = log, kind
        self._parts: list[pa.Table] = []
        self.blocks: list[Block] = []  # what was stored, in the order of ids

    def add(self, versions: "pa.Table") -> None:
        """Add versions, ascending by id and sub, behind all that were added before."""
        self._parts.append(versions)
        rows = sum(part.num_rows for part in self._parts)
        if rows >= VERSIONS or sum(part.nbytes for part in self._parts) >= _HELD_BYTES:
            self._write(rows - rows % VERSIONS or rows)

    def close(self) -> list[Block]:
        """Store what is held back; all blocks."""
        rows = sum(part.num_rows for part in self._parts)
        if rows:
            self._write(rows)
        return self.blocks

    def _write(self, rows: int) -> None:
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        whole = pa.concat_tables(self._parts)
        self.blocks += self._log.put_blocks(self._kind, whole.slice(0, rows))
        self._parts = [whole.slice(rows)] if whole.num_rows > rows else []


def require_current(records: Records, objects: OwnedStore) -> None:
    """Refuse a database that does not know the newest manifest.

    If the known one is the newest, that takes one LIST, and one GET of the next number: a listing may lack it. If the
    listing lacks the known one, too, a newer one is looked for by name. A living log holds the known manifest or a
    newer one, so a listing without any proves nothing. A replica's database may be behind: every write to it is refused
    anyway.

    Args:
        records: The catalog.
        objects: The bucket of its record log.

    Raises:
        CatalogOutdated: There is a manifest that this catalog has not begun.
        CatalogMismatch: The newest manifest is another catalog's.
        CorruptData, Unsupported: It cannot be read.
        StoreUnavailable, ServiceRefused: The store did not answer, refuses us, or a listing lacks what HEAD finds, or
            lacks every manifest of a log that has begun.
    """
    known = records.known()
    if known.replica:  # behind its source, and read alone
        return
    log = RecordLog(objects)
    newest = log.manifest(known.manifest + 1)
    if newest is None:
        number = log.newest_number(known.manifest) or 0
        if number < known.manifest:
            raise StoreUnavailable(
                f"records bucket: expected manifest {known.manifest} or a newer one, found none by LIST and HEAD. If"
                " they were removed, and the database is no backup: sexton records rewrite"
            )
        if number > known.manifest:
            newest = log.newest(known.manifest)
    if newest is not None:
        require_known(records.known(), newest)  # read behind the manifest: what a live process has begun is in it
