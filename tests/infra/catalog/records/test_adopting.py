"""A catalog that was lost is as it was answered: everything that was stored is readable where it was."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog import Topic
from logstore.positions import Position
from tests.faults.world import World
from tests.infra.catalog.records.adoption import Losing
from tests.migrated import migrated
from workers.assembly.log import LogStore

_NAME = "persistent://shop/main/orders"


@pytest.fixture
def losing(tmp_path: Path) -> Losing:
    """A new catalog."""
    template = tmp_path / "template.db"
    migrated(template)
    return Losing(World(tmp_path / "catalog.db", template))


@pytest.fixture
def open_processes() -> Iterator[ExitStack]:
    """Closed at the end."""
    with ExitStack() as stack:
        yield stack


def _plain(*payloads: str) -> ProducedEntries:
    return ProducedEntries(entries=[NewEntry(payload=one.encode()) for one in payloads])


def _topic(log: LogStore, name: str = _NAME) -> Topic:
    return log.catalog.topics.create(name, RetentionPolicy())


def _read(log: LogStore, topic: Topic) -> dict[Position, str]:
    return {one.position: (one.payload or b"").decode() for one in log.managed.scan(topic)}


def test_what_was_appended_since_the_flush_comes_back_where_it_was(losing: Losing) -> None:
    """In the ledger that was open, in ledgers that nobody had heard of, and in a topic that nobody had."""
    with losing.process() as log:
        topic = _topic(log)
        log.managed.append(topic, _plain("flushed"))
        losing.flush()
        log.managed.append(topic, _plain("tail", "tail too"))
        log.managed.roll(topic)
        log.managed.append(topic, _plain("in a new ledger"))
        young = _topic(log, "persistent://shop/main/young")
        log.managed.append(young, _plain("in a new topic"))
        before = {one.name: _read(log, one) for one in (topic, young)}
        given_out = max(position.ledger_id for found in before.values() for position in found)
    losing.lose()
    report = losing.adopt()
    assert (report.adopted_ledgers, report.adopted_segments, report.missing_data, report.revived) == (2, 3, 0, 0)
    with losing.process() as log:
        after = {name: _read(log, log.catalog.topics.get(name)) for name in before}
        assert after == before
        result = log.managed.append(log.catalog.topics.get(_NAME), _plain("goes on"))
        assert result.first is not None
        assert result.first > max(before[_NAME])
        assert log.managed.roll(topic).opened > given_out, "no id is given out twice"
