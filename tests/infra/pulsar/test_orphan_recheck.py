"""What a plan did not expect stops a deletion: a version, a reference from anywhere, a value that cannot be read."""

from collections.abc import Callable
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from infra.pulsar.orphan_recheck import OrphanRecheck
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import UnexpectedClusterState
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.positions import LedgerId
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import Finding, FindingKind
from tests.infra.pulsar.owner_directories import make_owner_directory
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_NAME = "t/ns/persistent/a"
_TOPIC = f"managed-ledgers/{_NAME}"
_LEDGER = f"ledgers/{format_ledger_path(7)}"
_OWNED = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": _NAME}


def write(cluster: KazooClient, path: str, value: bytes) -> None:
    cluster.create(f"/{path}", value, makepath=True)


@pytest.fixture
def finding(cluster: KazooClient) -> Finding:
    """Finding about a ledger that its owner, which exists, does not list."""
    write(cluster, _LEDGER, wire.ledger_metadata(custom=_OWNED))
    write(cluster, _TOPIC, wire.managed_ledger([8]))
    write(cluster, "admin/policies/t", b"{}")
    stat = cluster.exists(f"/{_LEDGER}")
    statement = {"version": str(stat.version), "czxid": str(stat.czxid), "component": "managed-ledger", "owner": _TOPIC}
    return Finding(kind=FindingKind.ORPHAN_LEDGER, ledger_id=LedgerId(7), key=f"/{_LEDGER}", statement=statement)


def look(reader: ZnodeReader, finding: Finding, *shadow_topics: str) -> list[JournaledLedger]:
    """Look at the ledger, and at everything that may refer to it."""
    recheck = OrphanRecheck(reader, make_owner_directory(reader), "ledgers", shadow_topics)
    ledgers = recheck.read_planned([finding])
    recheck.require_no_reference(ledgers)
    return ledgers


def test_an_orphan_is_one_still(cluster: KazooClient, reader: ZnodeReader, finding: Finding) -> None:
    (orphan,) = look(reader, finding)
    assert (orphan.path, orphan.version, orphan.data) == ("00/0000/L0007", 0, cluster.get(f"/{_LEDGER}")[0])


def test_a_ledger_that_is_gone_is_no_surprise(cluster: KazooClient, reader: ZnodeReader, finding: Finding) -> None:
    cluster.delete(f"/{_LEDGER}")
    assert look(reader, finding) == []


def _change(cluster: KazooClient) -> None:
    cluster.set(f"/{_LEDGER}", wire.ledger_metadata(custom=_OWNED))


def _create_again(cluster: KazooClient) -> None:
    cluster.delete(f"/{_LEDGER}")
    write(cluster, _LEDGER, wire.ledger_metadata(custom=_OWNED))


def _list(cluster: KazooClient) -> None:
    cluster.set(f"/{_TOPIC}", wire.managed_ledger([7, 8]))


def _attach_to_cursor(cluster: KazooClient) -> None:
    write(cluster, f"{_TOPIC}/s", wire.cursor(7))


def _compact(cluster: KazooClient) -> None:
    write(cluster, f"{_TOPIC}/__compaction", wire.cursor(-1, compacted=7))


def _add_schema(cluster: KazooClient) -> None:
    write(cluster, "schemas/t/ns/a", wire.schema_locator([7]))


def _shadow(cluster: KazooClient) -> None:
    write(cluster, "managed-ledgers/u/ns/persistent/shadow", wire.managed_ledger([7], shadow="persistent://t/ns/a"))


def _damage(cluster: KazooClient) -> None:
    write(cluster, f"{_TOPIC}/s", b"\xff")


def _damage_schema(cluster: KazooClient) -> None:
    write(cluster, "schemas/t/ns/a", b"\xff")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change, "expected version 0 .* found version 1"),
        (_create_again, "expected version 0 of transaction"),
        (_list, "found one in /managed-ledgers/t/ns/persistent/a"),
        (_attach_to_cursor, "found one in /managed-ledgers/t/ns/persistent/a/s"),
        (_compact, "found one in /managed-ledgers/t/ns/persistent/a/__compaction"),
        (_add_schema, "found one in /schemas/t/ns/a"),
        (_shadow, "found one in /managed-ledgers/u/ns/persistent/shadow"),
        (_damage, "/managed-ledgers/t/ns/persistent/a/s: it may refer"),
        (_damage_schema, "/schemas/t/ns/a: it may refer"),
    ],
)
def test_a_surprise_stops_the_deletion(
    cluster: KazooClient,
    reader: ZnodeReader,
    finding: Finding,
    change: Callable[[KazooClient], None],
    message: str,
) -> None:
    change(cluster)
    with pytest.raises(UnexpectedClusterState, match=message):
        look(reader, finding, "u/ns/persistent/shadow")


def test_a_tenant_that_is_gone_stops_the_deletion(cluster: KazooClient, reader: ZnodeReader, finding: Finding) -> None:
    """The owner may be one of another cluster on the same BookKeeper."""
    cluster.delete("/admin/policies/t")
    with pytest.raises(UnexpectedClusterState, match="no tenant of its owner"):
        look(reader, finding)


def test_a_ledger_that_was_given_up_is_an_orphan(cluster: KazooClient, reader: ZnodeReader, finding: Finding) -> None:
    context = wire.offload_context(UUID(int=5), complete=True, bookkeeper_deleted=True)
    cluster.set(f"/{_TOPIC}", wire.managed_ledger([7, 8], offloads={7: context}))
    assert [orphan.ledger_id for orphan in look(reader, finding)] == [7]
