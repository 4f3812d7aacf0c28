"""One catalog, one bucket, and as many processes that acknowledge and describe as a test wants."""

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from logstore.cursors.services.subscriptions import CursorSnapshots, Subscriptions
from logstore.deletion.retention import RetentionPolicy
from logstore.log.ledgers import Component
from logstore.log.services import Clock
from logstore.log.services.component_ledgers import ComponentLedgers, SchemaRegistry
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog.log import Ledger, RegisterSegmentWrite, Topic
from logstore.positions import LedgerId, Position
from tests.fakes.catalog import FakeCatalog
from tests.fakes.object_store import FakeObjectStore
from tests.logstore.builders import TOPIC

NAME = "billing"


@dataclass
class World:
    """Everything that processes share. Its clock moves only when somebody sleeps or a test says so."""

    catalog: FakeCatalog = field(default_factory=FakeCatalog)
    objects: FakeObjectStore = field(default_factory=FakeObjectStore)
    topic: Topic = field(init=False)
    _processes: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.topic = self.catalog.topics.create_topic(TOPIC, RetentionPolicy())

    def process(self, *, inline_bytes: int = 40) -> Subscriptions:
        """Another process, with a writer and a cache of its own."""
        committer = self._processes.enter_context(closing(GroupCommitter(self.catalog.commits.commit_writes)))
        snapshots = CursorSnapshots(
            cursors=self.catalog.cursors,
            ledgers=self.catalog.ledgers,
            component_ledgers=self.contents(),
            inline_bytes=inline_bytes,
            clock=self.clock(),
        )
        return Subscriptions(
            cursors=self.catalog.cursors,
            transactions=self.catalog.transactions,
            committer=committer,
            snapshots=snapshots,
        )

    def registry(self) -> SchemaRegistry:
        """Schemas, as a process has them."""
        return SchemaRegistry(schemas=self.catalog.schemas, component_ledgers=self.contents())

    def contents(self) -> ComponentLedgers:
        """Component ledgers, as a process writes them."""
        return ComponentLedgers(
            components=self.catalog.components,
            ledgers=self.catalog.ledgers,
            objects=self.objects,
            application="sexton",
            clock=self.clock(),
        )

    def clock(self) -> Clock:
        """The world's."""
        return Clock(
            now_us=lambda: self.catalog.now_us,
            monotonic_s=lambda: self.catalog.now_us / 1_000_000,
            sleep=lambda seconds: self.catalog.advance(seconds=seconds),
        )

    def fill(self, entries: int = 100) -> LedgerId:
        """One more data ledger at the end of the list, with entries and nothing in storage."""
        last = self.catalog.ledgers.last_ledger(self.topic.topic_id)
        made = self.catalog.ledgers.create_ledger(self.topic.topic_id, application="sexton")
        assert self.catalog.ledgers.attach_ledger(made.ledger_id, after=last.ledger_id if last else None)
        if entries:
            self.grow(made.ledger_id, entries)
        return made.ledger_id

    def grow(self, ledger_id: LedgerId, entries: int) -> None:
        """One more segment in the ledger."""
        row = self.catalog.ledger_rows[ledger_id]
        write = RegisterSegmentWrite(
            topic_id=self.topic.topic_id,
            ledger_id=ledger_id,
            epoch=1,
            number=row.last_segment + 1,
            entries=entries,
            size_bytes=1,
        )
        self.catalog.commits.commit_writes([write])

    def listed(self, component: Component = Component.MANAGED_CURSOR) -> list[Ledger]:
        """Listed ledgers of a component."""
        found = self.catalog.components.list_ledgers(self.topic.topic_id)
        return [one for one in found if one.component is component]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()


def at(ledger_id: int, entry_id: int) -> Position:
    """A position."""
    return Position(LedgerId(ledger_id), entry_id)
