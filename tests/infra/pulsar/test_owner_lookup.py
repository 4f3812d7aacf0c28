"""A ledger's owner, looked up by the name in its metadata: absent, not listing it, listing it, or unreadable."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.pulsar.owner_lookup import OwnerDirectory
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.ledger_verdicts import OwnerLookup
from logstore.pulsar.znode_names import format_ledger_path
from logstore.rate_limiter import RateLimiter
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.infra.pulsar.fake_bookie import answer_with, run_bookie, seal_entry
from tests.infra.pulsar.owner_directories import make_owner_directory
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_TOPIC = "managed-ledgers/t/ns/persistent/a"


@pytest.fixture
def owners(cluster: KazooClient, reader: ZnodeReader) -> OwnerDirectory:
    cluster.create("/admin/policies/t", b"{}", makepath=True)
    return make_owner_directory(reader)


def look_up(owners: OwnerDirectory, ledger_id: int, owner: StatedOwner) -> OwnerLookup:
    return owners.look_up({ledger_id: owner})[ledger_id]


_CASES = {
    "messages": (PulsarComponent.MANAGED_LEDGER, _TOPIC, wire.managed_ledger([7, 8])),
    "cursor": (PulsarComponent.MANAGED_LEDGER, f"{_TOPIC}/billing", wire.cursor(7)),
    "bucket": (PulsarComponent.DELAYED_INDEX_BUCKET, f"{_TOPIC}/billing", wire.cursor(-1, buckets={"1_2": "7"})),
    "compacted": (PulsarComponent.COMPACTED_LEDGER, f"{_TOPIC}/__compaction", wire.cursor(-1, compacted=7)),
    "schema": (PulsarComponent.SCHEMA, "schemas/t/ns/a", wire.schema_locator([7])),
}


@pytest.mark.parametrize(("component", "path", "data"), _CASES.values(), ids=_CASES.keys())
def test_each_component_has_an_owner_that_lists_it_or_not(
    cluster: KazooClient, owners: OwnerDirectory, component: PulsarComponent, path: str, data: bytes
) -> None:
    owner = StatedOwner(component, path)
    assert look_up(owners, 7, owner) is OwnerLookup.ABSENT
    cluster.create(f"/{path}", data, makepath=True)
    assert look_up(owners, 7, owner) is OwnerLookup.LISTING
    assert look_up(owners, 99, owner) is OwnerLookup.NOT_LISTING
    cluster.set(f"/{path}", b"\xff")
    assert look_up(owners, 7, owner) is OwnerLookup.UNREADABLE


def test_the_compacted_ledger_of_a_loaded_topic_is_read_from_its_cursor_ledger(
    cluster: KazooClient, owners: OwnerDirectory
) -> None:
    """The znode of the cursor still names the compacted ledger of the last switch, 31."""
    owner = StatedOwner(PulsarComponent.COMPACTED_LEDGER, f"{_TOPIC}/__compaction")
    cluster.create(f"/{owner.path}", wire.cursor(8, compacted=31), makepath=True)
    assert look_up(owners, 32, owner) is OwnerLookup.UNREADABLE, "its cursor ledger is absent"
    with run_bookie(answer_with(seal_entry(8, 5, wire.cursor_position(compacted=32)))) as bookie:
        metadata = wire.ledger_metadata(state=1, bookies=[f"127.0.0.1:{bookie.address.port}"])
        cluster.create(f"/ledgers/{format_ledger_path(8)}", metadata, makepath=True)
        assert look_up(owners, 32, owner) is OwnerLookup.LISTING
        assert look_up(owners, 31, owner) is OwnerLookup.NOT_LISTING
    assert look_up(owners, 32, owner) is OwnerLookup.UNREADABLE, "its bookie is away"


def test_each_owner_is_read_once(cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory) -> None:
    """1,000 candidates of two owners need two reads of owners and one of their tenant."""
    requests: list[str] = []

    class Counting(ZnodeReader):
        def read(self, paths: Iterable[str]) -> Iterator[tuple[str, Znode | None]]:
            read = list(paths)
            requests.extend(read)
            return super().read(read)

    cluster.create(f"/{_TOPIC}", wire.managed_ledger([1, 2]), makepath=True)
    counting = Counting(reader._session, RateLimiter(1_000_000))
    directory = make_owner_directory(counting)
    topics = [StatedOwner(PulsarComponent.MANAGED_LEDGER, f"{_TOPIC[:-1]}{name}") for name in "ab"]
    lookups = directory.look_up({ledger_id: topics[ledger_id % 2] for ledger_id in range(1_000)})
    assert requests == [topics[0].path, topics[1].path, "admin/policies/t"]
    assert Counter(lookups.values()) == {
        OwnerLookup.LISTING: 1, OwnerLookup.NOT_LISTING: 499, OwnerLookup.ABSENT: 500
    }  # fmt: skip


def test_an_owner_of_an_unknown_tenant_proves_nothing(cluster: KazooClient, owners: OwnerDirectory) -> None:
    """Several clusters may use one BookKeeper, or the metadata may have been moved."""
    owner = StatedOwner(PulsarComponent.MANAGED_LEDGER, "managed-ledgers/other/ns/persistent/a")
    assert look_up(owners, 7, owner) is OwnerLookup.UNKNOWN_TENANT
    cluster.create(f"/{owner.path}", wire.managed_ledger([8]), makepath=True)
    assert look_up(owners, 7, owner) is OwnerLookup.UNKNOWN_TENANT
    assert look_up(owners, 8, owner) is OwnerLookup.LISTING


def test_tenants_of_the_configuration_store_are_known(
    cluster: KazooClient, reader: ZnodeReader, zookeeper: ZooKeeper, ensemble: EnsembleOptions
) -> None:
    """The configuration store may be another ZooKeeper than that of the ledgers."""
    owner, hosts = StatedOwner(PulsarComponent.MANAGED_LEDGER, _TOPIC), f"{ensemble.hosts}/configuration"
    cluster.create("/configuration")
    with zookeeper.client(hosts) as store:
        store.create("/admin/policies/t", b"{}", makepath=True)
    options = EnsembleOptions(hosts=hosts)
    with closing(ZooKeeperSession(options, lambda _: None)) as session:
        configuration = ZnodeReader(session, RateLimiter(1_000))
        owners = make_owner_directory(reader, configuration=configuration)
        assert look_up(owners, 7, owner) is OwnerLookup.ABSENT
        alone = make_owner_directory(reader)
        assert look_up(alone, 7, owner) is OwnerLookup.UNKNOWN_TENANT


def test_an_owner_proves_nothing_if_clusters_share_the_bookkeeper(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    """Another cluster may have a tenant, and even a topic, of the same name."""
    shared = make_owner_directory(reader, shared_clusters=("east",))
    owner = StatedOwner(PulsarComponent.MANAGED_LEDGER, _TOPIC)
    assert look_up(shared, 7, owner) is OwnerLookup.SHARED_BOOKKEEPER
    cluster.create(f"/{_TOPIC}", wire.managed_ledger([8]), makepath=True)
    assert look_up(shared, 7, owner) is OwnerLookup.SHARED_BOOKKEEPER
    assert look_up(shared, 8, owner) is OwnerLookup.LISTING


def test_an_owner_may_list_a_ledger_as_given_up(
    cluster: KazooClient, reader: ZnodeReader, owners: OwnerDirectory
) -> None:
    """A shadow topic never gives up the ledgers of its source."""
    context = wire.offload_context(UUID(int=5), complete=True, bookkeeper_deleted=True)
    owner, shadow = (StatedOwner(PulsarComponent.MANAGED_LEDGER, path) for path in (_TOPIC, f"{_TOPIC}-shadow"))
    cluster.create(f"/{owner.path}", wire.managed_ledger([7, 8], offloads={7: context}), makepath=True)
    listed = wire.managed_ledger([7, 8], offloads={7: context}, shadow="persistent://t/ns/a")
    cluster.create(f"/{shadow.path}", listed, makepath=True)
    assert look_up(owners, 7, owner) is OwnerLookup.GIVEN_UP
    assert look_up(owners, 7, shadow) is OwnerLookup.LISTING
    shared = make_owner_directory(reader, shared_clusters=("east",))
    assert look_up(shared, 7, owner) is OwnerLookup.SHARED_BOOKKEEPER
