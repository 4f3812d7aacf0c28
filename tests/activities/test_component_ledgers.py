"""Phase two over cursor and schema ledgers: what is listed stays, what was retired goes, each under its own owner."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from logstore.catalog import Catalog
from logstore.cursors.services.subscriptions import CursorSnapshots, Subscriptions
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import Component, LedgerOwner, LedgerStatement
from logstore.log.services.component_ledgers import ComponentLedgers, SchemaRegistry
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.positions import LedgerId, Position
from tests.activities.activity_world import (
    BATCH_ID,
    BATCH_WORKFLOW_ID,
    World,
    make_chunk_input,
    run_owner_routed_activity,
)

_NAME = "billing"


@pytest.fixture
def contents(world: World) -> ComponentLedgers:
    """What writes component ledgers into the world."""
    return ComponentLedgers(
        components=world.catalog.components,
        ledgers=world.catalog.ledgers,
        objects=world.objects,
        application="sexton",
    )


@pytest.fixture
def subscriptions(world: World, contents: ComponentLedgers) -> Iterator[Subscriptions]:
    """Subscriptions whose state never fits into a row."""
    cursors, ledgers = world.catalog.cursors, world.catalog.ledgers
    snapshots = CursorSnapshots(cursors=cursors, ledgers=ledgers, component_ledgers=contents, inline_bytes=1)
    with closing(GroupCommitter(world.catalog.commits.commit_writes)) as committer:
        yield Subscriptions(
            cursors=cursors, transactions=world.catalog.transactions, committer=committer, snapshots=snapshots
        )


def _cursor_ledgers(world: World, subscriptions: Subscriptions, count: int) -> list[LedgerId]:
    """So many cursor ledgers one after the other; the last one is the cursor's."""
    (data,) = world.fill(1, acknowledged=False)
    subscriptions.subscribe(world.topic.topic_id, _NAME, latest=False)
    found = []
    for entry in range(count):
        position = Position(data, 2 * entry + 1)
        subscriptions.acknowledge(world.topic.topic_id, _NAME, positions=[position])
        snapshot = world.catalog.cursors.get_cursor(world.topic.topic_id, _NAME).snapshot_ledger
        assert snapshot is not None
        found.append(snapshot)
    return found


def test_chunk_deletes_a_retired_cursor_ledger_and_leaves_the_one_in_use(
    world: World, subscriptions: Subscriptions
) -> None:
    """Old cursor ledgers do not leak, and the newest one is untouched (apache/pulsar#982)."""
    *old, newest = _cursor_ledgers(world, subscriptions, 3)
    kept = world.left_of(newest)
    assert len(kept) == 2
    assert world.detach().intents == 2
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {"DELETED": 2}
    assert [world.left_of(ledger) for ledger in old] == [[], []]
    assert world.left_of(newest) == kept


def test_chunk_refuses_a_cursor_or_schema_ledger_that_is_listed(
    world: World, subscriptions: Subscriptions, contents: ComponentLedgers
) -> None:
    """STILL_IN_USE: whatever an intent says, a ledger that its component needs stays (promise 1)."""
    old, newest = _cursor_ledgers(world, subscriptions, 2)
    schema = SchemaRegistry(schemas=world.catalog.schemas, component_ledgers=contents).set(world.topic, b"schema")
    before = world.left_of(newest), world.left_of(schema.ledger_id)
    world.detach()
    columns = [str(row.name) for row in world.sql("PRAGMA table_info(pending_deletion)")]
    for by, ledger_id in ((10, newest), (11, schema.ledger_id)):
        world.sql(_copied(columns), by=by, id=ledger_id, old=old)
    result = run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input())
    assert result.outcomes == {"DELETED": 1, "STILL_IN_USE": 2}
    assert (world.left_of(newest), world.left_of(schema.ledger_id)) == before


def _copied(columns: list[str]) -> str:
    """A statement that files the intent of one ledger for another one as well."""
    instead = {"row_id": "row_id + :by", "ledger_id": ":id"}
    return (
        f"INSERT INTO pending_deletion ({', '.join(columns)}) SELECT "
        f"{', '.join(instead.get(name, name) for name in columns)} FROM pending_deletion WHERE ledger_id = :old"
    )


def test_chunk_refuses_a_cursor_ledger_of_another_cursor(world: World, subscriptions: Subscriptions) -> None:
    """METADATA_MISMATCH: two cursors of one topic are two owners; one name alone tells them apart (promise 3)."""
    old, _ = _cursor_ledgers(world, subscriptions, 2)
    made = next(one for one in world.catalog.deletions.list_intents(None, limit=10) if one.ledger_id == old)
    other = LedgerOwner(
        application="sexton",
        component=Component.MANAGED_CURSOR,
        topic_id=world.topic.topic_id,
        topic=world.topic.name,
        keys={"cursor": "another"},
    )
    statement = LedgerStatement(owner=other, ledger_id=old, created_us=made.ledger_created_us, epoch=1)
    world.objects.delete([meta_key(old, made.owner), segment_key(old, 0)])
    for key in (meta_key(old, other), segment_key(old, 0)):
        world.objects.put_if_absent(key, statement.to_json(), metadata=statement.to_metadata())
    world.detach()
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {
        "METADATA_MISMATCH": 1
    }
    assert len(world.left_of(old)) == 2


def test_chunk_deletes_what_a_creator_left_before_it_could_list_it(world: World) -> None:
    """A newborn whose segment was never registered is judged by the segment's own metadata (apache/pulsar#350)."""
    world.fill(1)
    made = world.catalog.components.create_component_ledger(
        world.topic.topic_id, Component.SCHEMA_STORAGE, {"schema": world.topic.name}, application="sexton"
    )
    for key in (meta_key(made.ledger_id, made.owner), segment_key(made.ledger_id, 0)):
        world.objects.put_if_absent(key, b"x", metadata=made.to_metadata())
    catalog = Catalog(world.catalog.database, registration_timeout_s=-1)
    claim = Claim(workflow_id=BATCH_WORKFLOW_ID, run_id="run-1", ttl_s=60)
    cause = AuditCause(actor="tests", reason="a test", workflow_id="")
    detached = catalog.phase_one.detach_ledgers(
        world.topic.topic_id, None, force=False, batch_id=BATCH_ID, claim=claim, cause=cause
    )
    assert (detached.ledgers, detached.intents) == (1, 2)
    assert run_owner_routed_activity(world.deletion.delete_chunk, make_chunk_input()).outcomes == {"DELETED": 2}
    assert world.left_of(made.ledger_id) == []
