"""A ledger's owner, looked up by the name in its metadata: absent, not listing it, listing it, or unreadable."""

import pytest
from kazoo.client import KazooClient

from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import OwnerLookup
from logstore.pulsar.znode_names import format_ledger_path
from tests.infra.pulsar.fake_bookie import answer_with, run_bookie, seal_entry
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_TOPIC = "managed-ledgers/t/ns/persistent/a"
_CASES = {
    "messages": (PulsarComponent.MANAGED_LEDGER, _TOPIC, wire.managed_ledger([7, 8])),
    "cursor": (PulsarComponent.MANAGED_LEDGER, f"{_TOPIC}/billing", wire.cursor(7)),
    "bucket": (PulsarComponent.DELAYED_INDEX_BUCKET, f"{_TOPIC}/billing", wire.cursor(-1, buckets={"1_2": "7"})),
    "compacted": (PulsarComponent.COMPACTED_LEDGER, f"{_TOPIC}/__compaction", wire.cursor(-1, compacted=7)),
    "schema": (PulsarComponent.SCHEMA, "schemas/t/ns/a", wire.schema_locator([7])),
}


@pytest.mark.parametrize(("component", "path", "data"), _CASES.values(), ids=_CASES.keys())
def test_each_component_has_an_owner_that_lists_it_or_not(
    cluster: KazooClient, reader: ZnodeReader, component: PulsarComponent, path: str, data: bytes
) -> None:
    owners, owner = OwnerDirectory(reader, "ledgers"), StatedOwner(component, path)
    assert owners.look_up(7, owner) is OwnerLookup.ABSENT
    cluster.create(f"/{path}", data, makepath=True)
    assert owners.look_up(7, owner) is OwnerLookup.LISTING
    assert owners.look_up(99, owner) is OwnerLookup.NOT_LISTING
    cluster.set(f"/{path}", b"\xff")
    assert owners.look_up(7, owner) is OwnerLookup.UNREADABLE


def test_the_compacted_ledger_of_a_loaded_topic_is_read_from_its_cursor_ledger(
    cluster: KazooClient, reader: ZnodeReader
) -> None:
    """The znode of the cursor still names the compacted ledger of the last switch, 31."""
    owner = StatedOwner(PulsarComponent.COMPACTED_LEDGER, f"{_TOPIC}/__compaction")
    owners = OwnerDirectory(reader, "ledgers")
    cluster.create(f"/{owner.path}", wire.cursor(8, compacted=31), makepath=True)
    assert owners.look_up(32, owner) is OwnerLookup.UNREADABLE, "its cursor ledger is absent"
    with run_bookie(answer_with(seal_entry(8, 5, wire.cursor_position(compacted=32)))) as bookie:
        metadata = wire.ledger_metadata(state=1, bookies=[f"127.0.0.1:{bookie.address.port}"])
        cluster.create(f"/ledgers/{format_ledger_path(8)}", metadata, makepath=True)
        assert owners.look_up(32, owner) is OwnerLookup.LISTING
        assert owners.look_up(31, owner) is OwnerLookup.NOT_LISTING
    assert owners.look_up(32, owner) is OwnerLookup.UNREADABLE, "its bookie is away"
