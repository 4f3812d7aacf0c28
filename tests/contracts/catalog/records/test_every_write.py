"""Every write path leaves its change in the outbox: what was flushed after each step is what the catalog holds."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from logstore.deletion.intents import Outcome
from logstore.log.ledgers import Component
from logstore.ports.catalog.delayed import IndexBucketSwitch
from logstore.ports.catalog.deletion import IntentResult
from logstore.ports.catalog.log import Topic
from logstore.ports.catalog.transactions import BufferSnapshotReplacement
from logstore.positions import LedgerId, TopicId
from logstore.records.record_kinds import RecordKind
from tests.contracts.catalog.delayed.steps import delay, merge, seal
from tests.contracts.catalog.delayed.steps import newborn as bucket_newborn
from tests.contracts.catalog.log.component_steps import CURSOR, publish
from tests.contracts.catalog.offload.test_offloads import begin as begin_offload
from tests.contracts.catalog.offload.test_offloads import remove
from tests.contracts.catalog.records.steps import Key, Version, drawn, flush
from tests.contracts.catalog.steps import NAME, acknowledge, append, at, filled, new_topic, newborn, roll, segment
from tests.contracts.catalog.transactions.steps import begin, end, hold, produce, settle
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, claim
from tests.full_outbox import put_all_records_into_outbox

pytestmark = pytest.mark.postgres

_AT_LEAST = {
    RecordKind.LEDGER: {"last_segment"},  # an append writes its segment, and not its ledger; segments say more
    RecordKind.DELETION: {"attempts", "last_error", "batch_id"},  # of attempts in hand; a rebuilt catalog begins anew
}
"""Fields that may be older in the record log than in the catalog."""
_LATER = {"version", "at_us"}


class _Log:
    """The record log, as flushes after each step have left it."""

    def __init__(self, world: SqlWorld) -> None:
        self.world = world
        self.versions: dict[Key, Version] = {}

    def follows(self, step: Callable[[], object]) -> None:
        """Take the step, flush, and compare with the catalog as a whole."""
        step()
        for key, row in flush(self.world).items():
            assert key not in self.versions or row["version"] > self.versions[key]["version"], key
            self.versions[key] = row
        self.world.database.write(put_all_records_into_outbox)
        held, taken = drawn(self.world)
        state = self.world.catalog.records.read_state()
        self.world.catalog.records.settle_manifest(
            number=state.manifest, stamp="", ceilings=state.ceilings, outbox_rows=taken
        )
        for key, row in held.items():
            if _matters(key, row):
                assert key in self.versions, f"{key}: the log has no version of it"
                assert _told(key, self.versions[key]) == _told(key, row), key


def _matters(key: Key, row: Version) -> bool:
    """An open transaction without entries is not recorded: one that nobody knows of aborts. Nor is an empty index."""
    if key[0] == RecordKind.INDEX:
        return bool(row["list_version"])
    return key[0] != RecordKind.TRANSACTION or row["state"] != "OPEN" or row["ranges"] != "[]"


def _told(key: Key, row: Version) -> Mapping[str, Any]:
    left_out = _LATER | _AT_LEAST.get(RecordKind(key[0]), set())
    if key[0] == RecordKind.TRANSACTION and row["state"] != "COMMITTED":
        left_out = left_out | {"participants"}  # those that are told meanwhile: a rebuilt catalog tells them again
    return {name: value for name, value in row.items() if name not in left_out}


@pytest.fixture
def log(sql_world: SqlWorld) -> _Log:
    """Of an empty catalog."""
    return _Log(sql_world)


def _topic(log: _Log) -> Topic:
    made: list[Topic] = []
    log.follows(lambda: made.append(new_topic(log.world)))
    return made[0]


def test_topics_ledgers_and_appends(log: _Log) -> None:
    """Created, rolled, appended to with producers, closed."""
    topic, world = _topic(log), log.world
    ids: list[LedgerId] = []
    log.follows(lambda: ids.append(newborn(world, topic.topic_id)))
    log.follows(lambda: world.catalog.ledgers.attach_ledger(ids[0], after=None))
    for number in range(2):
        write = segment(topic.topic_id, ids[0], number, producers=(("p", number * 10, number * 10 + 9),))
        log.follows(partial(world.catalog.commits.commit_writes, [write]))
    log.follows(lambda: ids.append(roll(world, topic.topic_id)))
    log.follows(lambda: append(world, topic.topic_id, ids[1]))


def test_cursors_and_their_ledgers(log: _Log) -> None:
    """Subscribed, acknowledged, moved, their state in a ledger of its own, and that replaced."""
    topic, world = _topic(log), log.world
    ledger = filled(world, topic.topic_id, 1)[0]
    cursors = world.catalog.cursors
    log.follows(lambda: cursors.create_subscription(topic.topic_id, CURSOR, latest=False))
    log.follows(lambda: acknowledge(world, topic.topic_id, CURSOR, (ledger, 3)))
    log.follows(lambda: publish(world, topic.topic_id, (ledger, 3)))
    log.follows(lambda: publish(world, topic.topic_id, (ledger, 3), (ledger, 5)))
    log.follows(lambda: cursors.seek_cursor(topic.topic_id, CURSOR, at(ledger, 2)))


def test_schemas(log: _Log) -> None:
    """A version, and the ledger that holds it."""
    topic, world = _topic(log), log.world
    made = world.catalog.components.create_component_ledger(
        topic.topic_id, Component.SCHEMA_STORAGE, {"schema": topic.name}, application="sexton"
    )
    schemas = world.catalog.schemas
    log.follows(
        lambda: schemas.publish_schema_version(
            topic.topic_id, made.ledger_id, digest="d", content_bytes=7, size_bytes=900
        )
    )


def test_offloads_and_removals_of_primary_copies(log: _Log) -> None:
    """Begun, abandoned, begun again, published, and the primary copy gone."""
    topic, world = _topic(log), log.world
    first = filled(world, topic.topic_id, 2)[0]
    log.follows(lambda: begin_offload(world, first, "u-0"))
    log.follows(lambda: world.catalog.offloads.abandon_offload(first, "u-0"))
    log.follows(lambda: begin_offload(world, first, "u-1"))
    log.follows(lambda: world.catalog.offloads.publish_tiered_copy(first, "u-1"))
    log.follows(lambda: remove(world, topic))


@pytest.mark.parametrize("durable", [True, False])
def test_deletions(log: _Log, durable: bool) -> None:
    """Detached by retention, by name and by force; ended, dead-lettered, and tried again."""
    topic, world = _topic(log), log.world
    ledgers = filled(world, topic.topic_id, 5)

    def detach(ids: list[LedgerId] | None, batch: str) -> None:
        world.catalog.phase_one.detach_ledgers(
            topic.topic_id, ids, force=ids is not None, batch_id=batch, claim=claim(), cause=CAUSE, durable=durable
        )

    log.follows(lambda: detach([ledgers[1]], "one"))
    log.follows(lambda: detach([ledgers[2]], "two"))
    log.follows(lambda: detach(None, "rest"))
    rows = {one.ledger_id: one for one in world.catalog.deletions.list_intents(None, limit=10)}
    ended = IntentResult(row_id=rows[ledgers[1]].row_id, outcome=Outcome.DELETED, objects=2)
    log.follows(lambda: world.catalog.deletions.record_outcomes([ended], holder="one"))
    dead = IntentResult(row_id=rows[ledgers[2]].row_id, outcome=Outcome.METADATA_MISMATCH, error="e")
    log.follows(lambda: world.catalog.deletions.record_outcomes([dead], holder="two"))
    log.follows(lambda: world.catalog.upkeep.redrive_dead_letters(None, batch_id="again", claim=claim(), cause=CAUSE))


def test_deletion_of_a_topic(log: _Log) -> None:
    """Its own record ends last."""
    topic, world = _topic(log), log.world
    filled(world, topic.topic_id, 2)
    phase_one = world.catalog.phase_one
    log.follows(lambda: phase_one.begin_topic_deletion(topic.topic_id, NAME, CAUSE))
    log.follows(lambda: phase_one.detach_whole_topic(topic.topic_id, batch_id="all", claim=claim(), cause=CAUSE))
    log.follows(lambda: phase_one.remove_topic(topic.topic_id, CAUSE))
    assert log.versions["topic", topic.topic_id, ""]["tombstone"]


@pytest.mark.parametrize("commit", [True, False])
def test_transactions(log: _Log, commit: bool) -> None:
    """Begun, with messages and an acknowledgement, decided, told, and over."""
    topic, world = _topic(log), log.world
    first = produce(world, topic, (None, 10))
    world.catalog.cursors.create_subscription(topic.topic_id, "s", latest=False)
    txn = begin(world)
    log.follows(lambda: produce(world, topic, (txn, 5), (None, 2)))
    log.follows(lambda: hold(world, topic, "s", txn, first))
    log.follows(lambda: end(world, txn, commit=commit))
    log.follows(lambda: produce(world, topic, (None, 1), markers=(0,)))
    log.follows(lambda: settle(world, txn, topic))
    log.follows(lambda: settle(world, txn, topic, "s"))
    assert log.versions["transaction", txn.sequence, "0"]["state"] == ("COMMITTED" if commit else "ABORTED")


def test_snapshots_of_transaction_buffers(log: _Log) -> None:
    """Published, and replaced."""
    topic, world = _topic(log), log.world
    last = produce(world, topic, (None, 3))
    before: LedgerId | None = None
    for _ in range(2):
        made = world.catalog.components.create_component_ledger(
            topic.topic_id, Component.TXN_SNAPSHOT, {}, application="sexton"
        )
        switch = BufferSnapshotReplacement(topic_id=topic.topic_id, expected=before, read_to=last)
        put = partial(world.catalog.transaction_snapshots.publish_snapshot, switch, size_bytes=50, sha256="ab")
        log.follows(partial(put, made.ledger_id))
        before = made.ledger_id


def test_indexes_of_delayed_messages(log: _Log) -> None:
    """Sealed, merged, and cleared."""
    topic_id, world = _topic(log).topic_id, log.world
    ledger = roll(world, topic_id)
    log.follows(lambda: delay(world, topic_id, ledger, 3))
    log.follows(lambda: seal(world, topic_id, at(ledger, 0), at(ledger, 4)))
    log.follows(lambda: seal(world, topic_id, at(ledger, 5), at(ledger, 9)))
    found, delayed = world.catalog.delayed.get_bucket_list(topic_id), world.catalog.delayed
    both = (found.buckets[0], found.buckets[1])
    into = bucket_newborn(world, topic_id)
    log.follows(lambda: delayed.switch_buckets(merge(found, both, into, topic_id)))
    log.follows(lambda: delayed.switch_buckets(_cleared(world, topic_id)))


def _cleared(world: SqlWorld, topic_id: TopicId) -> IndexBucketSwitch:
    listed = world.catalog.delayed.get_bucket_list(topic_id)
    gone = tuple(one.bucket_id for one in listed.buckets)
    return IndexBucketSwitch(topic_id=topic_id, expected=listed.version, removed=gone, reason="cleared")
