"""The catalog's own id and the buckets that carry it, in memory."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.identity.bucket_markers import BucketRole
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ports.catalog.inspection import InspectedCopy
from logstore.positions import LedgerId

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog

_KINDS = {BucketRole.PRIMARY: CopyKind.LEDGER, BucketRole.TIERED: CopyKind.OFFLOADED_LEDGER}


class FakeIdentities:
    """The `CatalogIdentity` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def catalog_id(self) -> str:
        return self._catalog.catalog_id

    def list_marked_buckets(self) -> frozenset[tuple[BucketRole, str]]:
        with self._catalog.lock:
            return frozenset(self._catalog.markers)

    def record_marker(self, role: BucketRole, bucket: str) -> None:
        with self._catalog.lock:
            self._catalog.markers.setdefault((role, bucket), self._catalog.now_us)

    def list_expected_copies(self, role: BucketRole, bucket: str, *, limit: int) -> Sequence[InspectedCopy]:
        kind = _KINDS.get(role)
        with self._catalog.lock:
            known_copies = [*self._live_copies(kind), *self._copies_with_intent(kind)] if kind else []
        copies_in_bucket = (
            one for one in known_copies if role is BucketRole.PRIMARY or one.intent.context.get("bucket") == bucket
        )
        return list(islice(copies_in_bucket, limit))

    def _live_copies(self, kind: CopyKind) -> Iterator[InspectedCopy]:
        for ledger_id, copies in sorted(self._catalog.copies.items(), reverse=True):
            if kind in copies and copies[kind].state is CopyState.LIVE:
                yield InspectedCopy(
                    state=CopyState.LIVE.value, intent=self._make_intent_for_inspection(ledger_id, kind)
                )

    def _copies_with_intent(self, kind: CopyKind) -> Iterator[InspectedCopy]:
        for _, intent in sorted(self._catalog.intent_rows.items(), reverse=True):
            if intent.copy is kind and intent.state is not DeletionState.DELETED and not intent.damage:
                yield InspectedCopy(state=intent.state.value, intent=intent)

    def _make_intent_for_inspection(self, ledger_id: LedgerId, kind: CopyKind) -> DeletionIntent:
        statement = self._catalog.statements[ledger_id]
        return DeletionIntent(
            row_id=0,
            batch_id="",
            ledger_id=ledger_id,
            copy=kind,
            generation=self._catalog.ledger_rows[ledger_id].generation + 1,
            application=statement.owner.application,
            component=statement.owner.component.value,
            topic_id=statement.owner.topic_id,
            topic=statement.owner.topic,
            keys=statement.owner.keys,
            context=self._catalog.copies[ledger_id][kind].context,
            ledger_created_us=statement.created_us,
            epoch=statement.epoch,
        )
