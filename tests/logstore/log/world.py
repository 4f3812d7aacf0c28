"""A small world: one catalog, one bucket, and as many processes as a test wants."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import Entry, NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.log.services import Clock, RollPolicy, TopicLogs
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog.log import Topic
from logstore.ports.object_storage import ObjectStore
from tests.fakes.catalog import FakeCatalog
from tests.fakes.object_store import FakeObjectStore
from tests.logstore.builders import TOPIC

NEVER = RollPolicy(max_entries=10**9, max_size_bytes=10**15, max_age_s=10**9)


@dataclass
class World:
    """Everything that processes share. Its clock moves only when somebody sleeps or a test says so."""

    catalog: FakeCatalog = field(default_factory=FakeCatalog)
    objects: FakeObjectStore = field(default_factory=FakeObjectStore)
    slept: list[float] = field(default_factory=list)
    topic: Topic = field(init=False)
    _processes: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.topic = self.catalog.topics.create_topic(TOPIC, RetentionPolicy())

    def process(self, policy: RollPolicy = NEVER, *, objects: ObjectStore | None = None, **options: Any) -> TopicLogs:
        """Another process, with a writer and hints of its own."""
        commits = self.catalog.commits  # tests replace its method while a process runs
        committer = GroupCommitter(lambda writes: commits.commit_writes(writes))  # noqa: PLW0108
        self._processes.enter_context(closing(committer))
        clock = Clock(now_us=lambda: self.catalog.now_us, monotonic_s=self._monotonic_s, sleep=self._sleep)
        return self._processes.enter_context(
            closing(
                TopicLogs(
                    ledgers=self.catalog.ledgers,
                    transactions=self.catalog.transactions,
                    objects=objects or self.objects,
                    committer=committer,
                    application="sexton",
                    policy=policy,
                    clock=clock,
                    **options,
                )
            )
        )

    def payloads(self, process: TopicLogs | None = None) -> list[bytes]:
        """Everything in the topic, in order, as a process that knows nothing reads it."""
        return [entry.payload or b"" for entry in self.entries(process)]

    def entries(self, process: TopicLogs | None = None) -> list[Entry]:
        """The same with positions."""
        return list((process or self.process()).scan(self.topic))

    def segments(self) -> list[str]:
        """Keys of every registered segment."""
        return [segment_key(row.ledger_id, row.number) for rows in self.catalog.segment_rows.values() for row in rows]

    def _monotonic_s(self) -> float:
        return self.catalog.now_us / 1_000_000

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.catalog.advance(seconds=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()


def plain(*payloads: bytes) -> ProducedEntries:
    """Entries without a producer."""
    return ProducedEntries(entries=[NewEntry(payload=payload) for payload in payloads])


def numbered(ids: Iterable[int], producer: str = "p") -> ProducedEntries:
    """A producer's entries, each with its sequence id as payload."""
    entries = [NewEntry(payload=f"{producer}{number}".encode(), sequence_id=number) for number in ids]
    return ProducedEntries(entries=entries, producer=producer)


def once(action: Callable[[], object]) -> Callable[[], None]:
    """An action of a fault, whatever it returns."""

    def run() -> None:
        action()

    return run
