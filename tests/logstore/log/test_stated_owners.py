"""Whatever wrote an object wrote with it what its deletion, and any reconciliation, asks for."""

from logstore.deletion.intents import CopyVerdict
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import ledger_prefix, owner_digest_from_key
from logstore.log.ledgers import LedgerStatement
from tests.logstore.component_world import NAME, World, at
from tests.open_topic_logs import open_topic_logs


def _written() -> World:
    """A world in which every path that creates an object has been taken."""
    world = World()
    topic = world.topic
    with open_topic_logs(world.catalog, world.objects, clock=world.clock()) as topic_logs:
        for _ in range(3):
            topic_logs.append(topic, ProducedEntries(entries=[NewEntry(payload=b"x") for _ in range(4)]))
            topic_logs.roll(topic)
    world.registry().set(topic, b"schema")
    subscriptions = world.process(inline_bytes=40)
    subscriptions.subscribe(topic.topic_id, NAME, latest=False)
    listed = [ledger.ledger_id for ledger in world.catalog.ledgers.list_ledgers(topic.topic_id) if ledger.entries]
    subscriptions.acknowledge(topic.topic_id, NAME, positions=[at(one, 2) for one in listed])
    return world


def test_every_path_that_creates_an_object_writes_what_its_deletion_needs() -> None:
    """Roll, append, cursor snapshot and schema alike: phase two finds each its own (apache/pulsar#16687)."""
    with _written() as world:
        rows = list(world.catalog.ledger_rows)
        assert {world.catalog.ledger_rows[one].component.value for one in rows} == {
            "MANAGED_LEDGER",
            "MANAGED_CURSOR",
            "SCHEMA_STORAGE",
        }
        for ledger_id in rows:
            world.catalog.replace_ledger_by_intents(ledger_id, "b")
        for intent in world.catalog.deletions.list_intents(None, limit=99):
            copy = PrimaryCopyStorage(world.objects).inspect_copy(intent)
            assert copy.verdict is CopyVerdict.OWN, copy.detail
            assert len(copy.data_keys) == intent.segments


def test_every_object_names_its_owner_without_the_catalog() -> None:
    """Its own metadata, and the name of the statement beside it, say the same of each (apache/pulsar#1302)."""
    with _written() as world:
        for key in world.objects.keys:
            found = world.objects.get(key)
            assert found
            stated = LedgerStatement.from_metadata(found.metadata)
            assert key.startswith(ledger_prefix(stated.ledger_id))
            beside = [
                owner_digest_from_key(one)
                for one in world.objects.keys
                if one.startswith(ledger_prefix(stated.ledger_id))
            ]
            assert [one for one in beside if one] == [stated.owner.digest]
