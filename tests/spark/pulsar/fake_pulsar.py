"""Model of a Pulsar cluster: a tree of znodes, and brokers that change it in the order in which Pulsar does.

An operation is a generator: between its steps, anything else may happen, and a broker may die. A ledger that waits for
its reference longer than Pulsar lets it wait belongs to an operation that died.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from infra.pulsar.bookie_reads import BookieConnections, BookieEntry
from infra.pulsar.newest_entries import NewestEntries
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import LedgerMetadata
from logstore.pulsar.znode_names import format_ledger_path
from tests.logstore.pulsar import wire

Operation = Iterator[None]

NAMES: Final = ("a", "b", "c")
_NAMESPACE: Final = "t/ns/persistent"
_MAX_WAIT_MS: Final = 3_000_000  # for a reference, with retries
_MAX_COMPACTION_MS: Final = 7_000_000


@dataclass(slots=True)
class FakeTopic:
    """State in the memory of the topic's broker."""

    ledgers: list[int] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)  # cursor ledger by name; -1: state is in the znode
    buckets: dict[str, int] = field(default_factory=dict)  # of the cursor "sub"
    compacted: int | None = None


@dataclass(slots=True)
class _RunningOperation:
    steps: Operation
    ends_at_ms: int


class FakePulsar:
    """Cluster with some topics of one namespace. `now_ms` is the clock of its ZooKeeper."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.znodes: dict[str, Znode] = {}
        self.entries: dict[int, int | None] = {}  # compacted ledger in the last entry of a cursor ledger
        self.topics: dict[str, FakeTopic] = {}
        self.schemas: dict[str, list[int]] = {}
        self.running: list[_RunningOperation] = []
        self.steps = 0
        self._next_ledger, self._next_zxid = 1, 1
        for path in ("admin/policies/t/ns", f"managed-ledgers/{_NAMESPACE}/other"):
            self.write(path, b"")
        self.create_ledger("managed-ledger", "other")  # a leak that was there before

    def write(self, path: str, data: bytes) -> None:
        old = self.znodes.get(path)
        self._next_zxid += 1
        version, czxid, created_ms = (
            (old.version + 1, old.czxid, old.created_ms) if old else (0, self._next_zxid, self.now_ms)
        )
        self.znodes[path] = Znode(data, version, czxid, created_ms, self.now_ms, 0)

    def delete(self, path: str) -> None:
        self.znodes.pop(path, None)

    def report_load(self) -> None:
        self.write("loadbalance/brokers/b:8080", b"{}")

    def start(self, operation: Operation, max_wait_ms: int = _MAX_WAIT_MS) -> None:
        self.running.append(_RunningOperation(operation, self.now_ms + max_wait_ms))

    def step(self, number: int) -> None:
        if self.running:
            self.steps += 1
            operation = self.running[number % len(self.running)]
            if next(operation.steps, self) is self:
                self.running.remove(operation)

    def kill(self, number: int) -> None:
        """A broker dies in the middle of an operation."""
        if self.running:
            del self.running[number % len(self.running)]

    def wait(self, seconds: int) -> None:
        self.now_ms += seconds * 1_000
        self.running = [operation for operation in self.running if operation.ends_at_ms > self.now_ms]

    def fill(self) -> None:
        """Make topics with everything that may refer to a ledger."""
        for name in NAMES[:2]:
            for operation in (
                self.roll_over(name),
                self.roll_over(name),
                self.switch_cursor_ledger(name, "sub"),
                self.add_bucket(name),
                self.switch_cursor_ledger(name, "__compaction"),
                self.compact(name),
                self.put_schema(name),
            ):
                self.start(operation)
                self.finish()

    def finish(self) -> None:
        while self.running:
            self.step(0)

    def list_referenced_ledgers(self) -> set[int]:
        """Return what brokers refer to, whether or not their metadata show it."""
        ids = {ledger_id for schema in self.schemas.values() for ledger_id in schema}
        for topic in self.topics.values():
            ids |= {*topic.ledgers, *topic.cursors.values(), *topic.buckets.values(), topic.compacted or -1}
        return ids - {-1}

    def create_ledger(self, component: str, name: str, cursor: str = "") -> int:
        ledger_id, self._next_ledger = self._next_ledger, self._next_ledger + 1
        topic = f"persistent://t/ns/{name}"
        keys = {
            "managed-ledger": {"managed-ledger": f"{_NAMESPACE}/{name}"} | ({"cursor": cursor} if cursor else {}),
            "compacted-ledger": {"compactedTopic": topic},
            "delayed-index-bucket": {"delayedIndexTopic": topic, "delayedIndexCursor": "sub"},
            "schema": {"schemaId": f"t/ns/{name}"},
        }[component]
        self._custom = {"application": "pulsar", "component": component} | {
            f"pulsar/{key}": value for key, value in keys.items()
        }
        self.write(_ledger_path(ledger_id), wire.ledger_metadata(state=1, custom=self._custom))
        return ledger_id

    def close_ledger(self, ledger_id: int) -> None:
        path = _ledger_path(ledger_id)
        if path in self.znodes:
            self.write(path, self.znodes[path].data.replace(b"\x28\x01\x32", b"\x28\x03\x32"))

    def delete_ledger(self, ledger_id: int) -> None:
        self.delete(_ledger_path(ledger_id))
        self.entries.pop(ledger_id, None)

    def _write_topic(self, name: str) -> None:
        self.write(_topic_path(name), wire.managed_ledger(self.topics[name].ledgers))

    def _write_cursor(self, name: str, cursor: str) -> None:
        topic = self.topics[name]
        ledger_id = topic.cursors[cursor]
        is_compaction = cursor == "__compaction"
        if is_compaction and ledger_id != -1:
            self.entries[ledger_id] = topic.compacted
        value = wire.cursor(
            ledger_id,
            compacted=topic.compacted if is_compaction and ledger_id == -1 else None,
            buckets={} if is_compaction else {key: str(bucket) for key, bucket in topic.buckets.items()},
        )
        self.write(f"{_topic_path(name)}/{cursor}", value)

    def roll_over(self, name: str) -> Operation:
        """Create the topic, or its next ledger."""
        if name not in self.topics:
            self.write(_topic_path(name), b"")
            self.topics[name] = FakeTopic()
        topic = self.topics[name]
        ledger_id = self.create_ledger("managed-ledger", name)
        yield
        if self.topics.get(name) is topic:
            for old in topic.ledgers[-1:]:
                self.close_ledger(old)
            topic.ledgers.append(ledger_id)
            self._write_topic(name)

    def trim(self, name: str) -> Operation:
        topic = self.topics.get(name)
        if topic and topic.ledgers:
            ledger_id = topic.ledgers.pop(0)
            self._write_topic(name)
            yield
            self.delete_ledger(ledger_id)

    def delete_topic(self, name: str) -> Operation:
        """Ledgers go first, and then znodes."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        for ledger_id in (*topic.cursors.values(), *topic.buckets.values(), topic.compacted or -1, *topic.ledgers):
            self.delete_ledger(ledger_id)
            yield
        for cursor in topic.cursors:
            self.delete(f"{_topic_path(name)}/{cursor}")
            yield
        if name not in self.topics:
            self.delete(_topic_path(name))

    def switch_cursor_ledger(self, name: str, cursor: str) -> Operation:
        """Open a cursor, or move its state to a new ledger. The old ledger goes last."""
        topic = self.topics.get(name)
        if topic is None:
            return
        ledger_id = self.create_ledger("managed-ledger", name, cursor)
        self.entries[ledger_id] = topic.compacted
        yield
        if self.topics.get(name) is topic:
            old, topic.cursors[cursor] = topic.cursors.get(cursor, -1), ledger_id
            self._write_cursor(name, cursor)
            yield
            self.delete_ledger(old)

    def close_cursor(self, name: str, cursor: str) -> Operation:
        """Move the state of a cursor to its znode."""
        topic = self.topics.get(name)
        if topic and topic.cursors.get(cursor, -1) != -1:
            old, topic.cursors[cursor] = topic.cursors[cursor], -1
            self._write_cursor(name, cursor)
            yield
            self.delete_ledger(old)

    def unsubscribe(self, name: str) -> Operation:
        topic = self.topics.get(name)
        if topic and "sub" in topic.cursors:
            ledger_id = topic.cursors.pop("sub")
            buckets, topic.buckets = list(topic.buckets.values()), {}
            self.delete(f"{_topic_path(name)}/sub")
            yield
            for each in (ledger_id, *buckets):
                self.delete_ledger(each)
                yield

    def add_bucket(self, name: str) -> Operation:
        topic = self.topics.get(name)
        if topic and "sub" in topic.cursors:
            ledger_id = self.create_ledger("delayed-index-bucket", name)
            yield
            if self.topics.get(name) is topic and "sub" in topic.cursors:
                topic.buckets[f"{ledger_id}_{ledger_id}"] = ledger_id
                self._write_cursor(name, "sub")

    def drop_bucket(self, name: str) -> Operation:
        """The ledger goes before its reference."""
        topic = self.topics.get(name)
        if topic and topic.buckets:
            key, ledger_id = next(iter(topic.buckets.items()))
            self.delete_ledger(ledger_id)
            yield
            if topic.buckets.pop(key, None) is not None and self.topics.get(name) is topic:
                self._write_cursor(name, "sub")

    def compact(self, name: str) -> Operation:
        """The new ledger has no reference for a long time. Its id is in the cursor before the old ledger goes."""
        topic = self.topics.get(name)
        if topic is None or "__compaction" not in topic.cursors:
            return
        ledger_id = self.create_ledger("compacted-ledger", name)
        yield
        self.close_ledger(ledger_id)
        yield
        if self.topics.get(name) is topic:
            old, topic.compacted = topic.compacted, ledger_id
            cursor_ledger = topic.cursors["__compaction"]
            if cursor_ledger == -1:
                self._write_cursor(name, "__compaction")
            else:
                self.entries[cursor_ledger] = ledger_id
            yield
            self.delete_ledger(old or -1)

    def put_schema(self, name: str) -> Operation:
        ledger_id = self.create_ledger("schema", name)
        yield
        self.schemas.setdefault(name, []).append(ledger_id)
        self.write(f"schemas/t/ns/{name}", wire.schema_locator(self.schemas[name]))

    def delete_schema(self, name: str) -> Operation:
        for ledger_id in self.schemas.pop(name, []):
            self.delete_ledger(ledger_id)
            yield
        if name not in self.schemas:
            self.delete(f"schemas/t/ns/{name}")

    def move_compacted_ledger(self, name: str) -> Operation:
        """Move the reference to the compacted ledger between the cursor's znode and its ledger."""
        topic = self.topics.get(name)
        if topic and topic.cursors.get("__compaction", -1) != -1:
            yield from self.close_cursor(name, "__compaction")
        else:
            yield from self.switch_cursor_ledger(name, "__compaction")

    def list_operations(self, name: str) -> list[tuple[Callable[[], Operation], int]]:
        """Return the operations on a topic, each with the longest time that it may take, in milliseconds."""
        operations: list[Callable[[str], Operation]] = [
            self.roll_over, self.trim, self.delete_topic, self.unsubscribe, self.add_bucket, self.drop_bucket,
            self.put_schema, self.delete_schema, self.move_compacted_ledger,
            lambda name: self.switch_cursor_ledger(name, "sub"), lambda name: self.close_cursor(name, "sub"),
        ]  # fmt: skip
        return [
            *((lambda operation=operation: operation(name), _MAX_WAIT_MS) for operation in operations),
            (lambda: self.compact(name), _MAX_COMPACTION_MS),
        ]

    def read_newest_entries(
        self, connections: BookieConnections, metadata_by_ledger_id: Mapping[int, LedgerMetadata]
    ) -> dict[int, NewestEntries]:
        """Stand in for the function that asks bookies."""
        del connections
        return {ledger_id: self._read_newest_entries(ledger_id) for ledger_id in metadata_by_ledger_id}

    def _read_newest_entries(self, ledger_id: int) -> NewestEntries:
        if ledger_id not in self.entries:
            return StoreUnavailable("no bookie has the ledger")
        return [BookieEntry(0, -1, wire.cursor_position(compacted=self.entries[ledger_id]))]


class FakeReader(ZnodeReader):
    """Reader of the tree. Something may happen before each request."""

    def __init__(self, pulsar: FakePulsar, happen: Callable[[], None]) -> None:
        self._pulsar, self._happen, self.newest_change_ms = pulsar, happen, 0

    def read(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode | None]]:
        for path in paths:
            self._happen()
            yield path, self._read_one(path)

    def _read_one(self, path: str) -> Znode | None:
        children, znode = len(self._names(path)), self._pulsar.znodes.get(path)
        if znode is None:
            return Znode(b"", 0, 1, 0, 0, children) if children else None
        self.newest_change_ms = max(self.newest_change_ms, znode.modified_ms)
        return Znode(znode.data, znode.version, znode.czxid, znode.created_ms, znode.modified_ms, children)

    def list_children(self, paths: Iterable[str]) -> Iterator[tuple[str, list[str] | None]]:
        for path in paths:
            self._happen()
            names = self._names(path)
            yield path, sorted(names) if names or path in self._pulsar.znodes else None

    def _names(self, path: str) -> set[str]:
        prefix = f"{path}/"
        return {each[len(prefix) :].split("/")[0] for each in self._pulsar.znodes if each.startswith(prefix)}


def _ledger_path(ledger_id: int) -> str:
    return f"ledgers/{format_ledger_path(ledger_id)}"


def _topic_path(name: str) -> str:
    return f"managed-ledgers/{_NAMESPACE}/{name}"
