"""Publication of blocks: a writer stores blocks, and then a manifest that names the blocks.

The manifest number is the lock:

1. A writer reads the newest manifest, and then the catalog.
2. The writer stores blocks and commits a random stamp to the catalog.
3. The writer stores the manifest with the next number. If several writers use this number, one writer succeeds, and the
   other writers start again.

So manifests show moments of the catalog in order. The manifest number is also the `version` of all record versions that
the flush writes, and orders the record versions of a record.

A crash before step 3 leaves a stamp and unnamed blocks, which are harmless. A crash after step 3 leaves a manifest that
is not settled. `read_settled_head` settles the manifest.

A database that was restored from a backup would give out positions and ids a second time. So a process calls
`require_current_catalog` before it uses the primary bucket.

Source: Apache Iceberg (compare-and-set of the metadata pointer); ADR 15.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import (
    AlreadyExists,
    CatalogAdopting,
    CatalogBusy,
    CatalogMismatch,
    CatalogOutdated,
    StoreUnavailable,
)
from logstore.failpoints import effect
from logstore.ports.catalog.records import KnownManifest, RecordLogState
from logstore.ports.object_storage import OwnedStore
from logstore.records.block_files import MAX_VERSIONS_PER_BLOCK
from logstore.records.manifest import Block, IdCeilings, Manifest
from logstore.records.record_kinds import RecordKind
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

MAX_PUBLISH_ATTEMPTS: Final = 10
"""Maximum attempts of a writer to publish. Each failed attempt means that another writer has published."""

_MAX_BUFFERED_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLogHead:
    """Newest manifest of the record log, and the state of a catalog that knows the manifest's stamp."""

    state: RecordLogState
    manifest: Manifest | None  # `None`: no flush has ever ended

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.manifest.blocks if self.manifest else ()

    @property
    def number(self) -> int:
        return self.manifest.number if self.manifest else 0

    @property
    def moment_number(self) -> int:
        """Number of the newest manifest that shows a moment of its own, or 0."""
        return self.manifest.moment_number if self.manifest else 0

    @property
    def rows_epoch(self) -> int:
        return self.manifest.rows_epoch if self.manifest else self.state.epoch

    @property
    def next_ids(self) -> IdCeilings | None:
        """Next ids at the shown moment. `None`: an earlier build wrote the manifest."""
        return self.manifest.next_ids if self.manifest else IdCeilings(ledger=0, topic=0, transaction=0)


def read_settled_head(records: RecordOutbox, log: RecordLog) -> RecordLogHead:
    """Read the catalog's state and the newest manifest. Settle this manifest if its writer died. Idempotent.

    If this call settles a manifest, the manifest's changes stay in the outbox. A later flush writes them again.

    Raises:
        CatalogMismatch: The bucket lacks the manifest that the catalog knows, or has a manifest of another catalog.
        CatalogOutdated: The catalog does not know the stamp of the newest manifest.
        CatalogBusy: Other writers published during every attempt.
        CorruptData: The manifest is unreadable.
        Unsupported: A newer build wrote the manifest.
    """
    for _ in range(MAX_PUBLISH_ATTEMPTS):
        state = records.read_state()
        newest = log.read_newest_manifest(from_number=state.manifest)
        if newest is None:
            require_known_manifest(state, None)
            return RecordLogHead(state=state, manifest=None)
        _require_same_catalog(state, newest)
        if newest.stamp == state.stamp:
            return RecordLogHead(state=state, manifest=newest)
        if newest.stamp in state.pending_stamps:
            with effect("records.settle"):
                _settle_stored_manifest(records, newest)
            continue
        require_known_manifest(records.read_known_manifest(), newest)
    raise CatalogBusy(
        f"record log: others published {MAX_PUBLISH_ATTEMPTS} manifests while this one looked for the newest"
    )


def _require_same_catalog(state: KnownManifest, newest: Manifest) -> None:
    if newest.catalog_id != state.catalog_id:
        raise CatalogMismatch(
            newest.key,
            expected=f"catalog {state.catalog_id}",
            found=f"catalog {newest.catalog_id}",
            advice="name the records bucket of this catalog",
        )


def require_known_manifest(state: KnownManifest, newest: Manifest | None) -> None:
    """Refuse a catalog that does not know the newest manifest. `newest` is `None` if the bucket has no manifest.

    `state` must be read after `newest`, so that the stamps of live writers are included.

    Raises:
        CatalogMismatch: The manifest belongs to another catalog, or the bucket lacks the manifest that the catalog
            knows.
        CatalogOutdated: The catalog does not know the stamp of the manifest.
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
    _require_same_catalog(state, newest)
    if state.manifest > newest.number or newest.stamp in {state.stamp, *state.pending_stamps}:
        return
    raise CatalogOutdated(
        f"{newest.key}: expected a stamp of this catalog, whose newest manifest is {state.manifest}, found "
        f"{newest.stamp} of epoch {newest.epoch}: the database is older than its record log. "
        f"{_REBUILT if newest.epoch > state.epoch else _RESTORED}"
    )


def require_no_adoption(state: RecordLogState) -> None:
    """Raise `CatalogAdopting` for a rebuilt catalog during adoption, and for a replica database."""
    if state.is_adopting:
        raise CatalogAdopting(
            "record log: expected a catalog that is complete, found one that adopts what storage holds"
        )


def publish_manifest(
    records: RecordOutbox,
    log: RecordLog,
    head: RecordLogHead,
    *,
    blocks: Sequence[Block],
    ceilings: IdCeilings,
    flushed_us: int,
    next_ids: IdCeilings | None,
    outbox_rows: Collection[int] = (),
    staged_blocks: Sequence[Block] = (),
    ends_flush: bool = False,
) -> Manifest | None:
    """Store and settle the manifest after `head`. Return `None` if the number of this manifest is taken.

    `head` must be read before the blocks are stored. `blocks` are all blocks that the manifest names. For a page of a
    flush, `blocks` are the blocks of the previous moment, and `staged_blocks` are the new blocks. `flushed_us` is the
    time of the moment that `blocks` show. `next_ids` must be read at this moment or before. `outbox_rows` are the
    changes in the new blocks. With `ends_flush`, no block stays staged, so `blocks` must have all staged blocks that
    are still needed.
    """
    manifest = Manifest(
        number=head.number + 1,
        catalog_id=head.state.catalog_id,
        epoch=head.state.epoch,
        bundles=head.state.bundles,
        stamp=uuid4().hex,
        flushed_us=flushed_us,
        ceilings=ceilings,
        blocks=tuple(blocks),
        next_ids=next_ids,
    )
    if not ends_flush and (staged_blocks or head.state.staged_blocks):
        manifest = replace(manifest, shows=head.moment_number, moment_epoch=head.rows_epoch)
    with effect("records.begin"):
        records.add_pending_stamp(manifest.stamp)
    try:
        log.put_manifest(manifest)
    except AlreadyExists:
        return None
    with effect("records.settle"):
        _settle_stored_manifest(records, manifest, outbox_rows=outbox_rows, staged_blocks=staged_blocks)
    return manifest


def _settle_stored_manifest(
    records: RecordOutbox, manifest: Manifest, *, outbox_rows: Collection[int] = (), staged_blocks: Sequence[Block] = ()
) -> None:
    records.settle_manifest(
        number=manifest.number,
        stamp=manifest.stamp,
        ceilings=manifest.ceilings,
        outbox_rows=outbox_rows,
        shows_own_moment=manifest.shows is None,
        staged_blocks=staged_blocks,
    )


class BlockWriter:
    """Writer of blocks of one kind. The writer buffers record versions until a block is full."""

    def __init__(self, log: RecordLog, kind: RecordKind) -> None:
        self._log, self._kind = log, kind
        self._tables: list[pa.Table] = []
        self.blocks: list[Block] = []  # stored blocks, ascending by ids

    def add_versions(self, versions: "pa.Table") -> None:
        """Add record versions. The record versions of all calls together must ascend by `id` and `sub`."""
        self._tables.append(versions)
        rows = sum(table.num_rows for table in self._tables)
        if rows >= MAX_VERSIONS_PER_BLOCK or sum(table.nbytes for table in self._tables) >= _MAX_BUFFERED_BYTES:
            self._store_buffered_rows(rows - rows % MAX_VERSIONS_PER_BLOCK or rows)

    def store_remaining(self) -> list[Block]:
        rows = sum(table.num_rows for table in self._tables)
        if rows:
            self._store_buffered_rows(rows)
        return self.blocks

    def _store_buffered_rows(self, rows: int) -> None:
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        buffered = pa.concat_tables(self._tables)
        self.blocks += self._log.put_blocks(self._kind, buffered.slice(0, rows))
        self._tables = [buffered.slice(rows)] if buffered.num_rows > rows else []


def require_current_catalog(records: RecordOutbox, objects: OwnedStore) -> None:
    """Refuse a database that does not know the newest manifest. `objects` is the bucket of the record log.

    If the catalog knows the newest manifest, this costs one LIST and one GET. The GET looks for the next manifest,
    which LIST may hide. A replica database is not refused, because only its follower can write to it.

    Raises:
        CatalogOutdated: The catalog does not know the stamp of the newest manifest.
        CatalogMismatch: The newest manifest belongs to another catalog.
        CorruptData: The manifest is unreadable.
        Unsupported: A newer build wrote the manifest.
        StoreUnavailable: The store did not answer, or a listing hides manifests that exist.
        ServiceRefused: The store refuses access.
    """
    known = records.read_known_manifest()
    if known.is_replica:
        return
    log = RecordLog(objects)
    newest = log.read_manifest(known.manifest + 1)
    if newest is None:
        number = log.find_newest_manifest_number(known.manifest) or 0
        if number < known.manifest:
            raise StoreUnavailable(
                f"records bucket: expected manifest {known.manifest} or a newer one, found none by LIST and HEAD. If"
                " they were removed, and the database is no backup: sexton records rewrite"
            )
        if number > known.manifest:
            newest = log.read_newest_manifest(known.manifest)
    if newest is not None:
        # Read after the manifest, so that the stamps of live writers are included.
        require_known_manifest(records.read_known_manifest(), newest)
