"""Ledgers of components in memory: listed while they are CLOSED, for they are written whole."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from logstore.failpoints import effect
from logstore.log.ledgers import Component, CopyKind, LedgerOwner, LedgerState, LedgerStatement
from logstore.ports.catalog.deletion import AuditCause
from logstore.ports.catalog.log import Ledger, Segment
from logstore.positions import LedgerId, TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog


class FakeComponents:
    """The `LedgersOfAllComponents` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def create_component_ledger(
        self, topic_id: TopicId, component: Component, keys: Mapping[str, str], *, application: str
    ) -> LedgerStatement:
        with effect("catalog.create_component_ledger"), self._catalog.lock:
            topic = self._catalog.topic(topic_id, must_be_active=True)
            owner = LedgerOwner(
                application=application, component=component, topic_id=topic_id, topic=topic.name, keys=dict(keys)
            )
            return self._catalog.bear(owner)

    def list_ledgers(self, topic_id: TopicId) -> list[Ledger]:
        with self._catalog.lock:
            rows = [row for row in self._catalog.ledger_rows.values() if row.topic_id == topic_id]
            data = [row for row in rows if row.ledger_id in self._catalog.lists.get(topic_id, [])]
            component_rows = [row for row in rows if _is_listed(row)]
        ordered_components = sorted(
            component_rows, key=lambda row: (row.component.value, sorted(row.keys.items()), row.ledger_id)
        )
        return [*sorted(data, key=lambda row: row.ledger_id), *ordered_components]

    def iterate_ledger_pages(
        self, topic_id: TopicId, *, component: Component | None = None
    ) -> Iterator[Sequence[Ledger]]:
        for row in self.list_ledgers(topic_id):
            if component in {None, row.component}:
                yield [row]

    def _find_newborn_or_reopen_intents(self, ledger_id: LedgerId) -> Ledger | None:
        """The newborn, or None when it was taken for abandoned, and is now looked at again."""
        row = self._catalog.ledger_rows.get(ledger_id)
        if row is None:
            self._catalog.reopen_intents(ledger_id)
        return row

    def _publish(self, row: Ledger, size_bytes: int, sha256: str | None) -> None:
        rows = self._catalog.ledger_rows
        rows[row.ledger_id] = replace(
            row,
            state=LedgerState.CLOSED,
            entries=1,
            size_bytes=size_bytes,
            last_segment=0,
            closed_us=self._catalog.now_us,
        )
        segment = Segment(
            ledger_id=row.ledger_id, number=0, first_entry=0, entries=1, size_bytes=size_bytes, sha256=sha256, delayed=0
        )
        self._catalog.segment_rows[row.ledger_id] = [segment]
        self._catalog.mark_copy_live(row.ledger_id, CopyKind.LEDGER)

    def _retire_ledger(self, ledger_id: LedgerId, reason: str) -> None:
        self._catalog.replace_ledger_by_intents(ledger_id, "")
        cause = AuditCause(actor="sexton", reason=reason, workflow_id="")
        self._catalog.audit("retire", cause, {"ledger": int(ledger_id)})


def _is_listed(row: Ledger) -> bool:
    return row.component is not Component.MANAGED_LEDGER and row.state is LedgerState.CLOSED
