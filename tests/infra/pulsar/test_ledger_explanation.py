"""An explanation names the owner, every reference, and the verdict with its reason."""

from collections.abc import Mapping

import pytest
from kazoo.client import KazooClient

from infra.pulsar.ledger_explanation import LedgerExplanation, explain_ledger
from infra.pulsar.scan_facts import LedgerReference
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import UnknownObject
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.znode_names import format_ledger_path
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_NAME = "t/ns/persistent/a"
_TOPIC = f"managed-ledgers/{_NAME}"
_OWNED = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": _NAME}
_OTHER = "managed-ledgers/t/ns/persistent/never-loaded"
_LATER_MS = 4_000_000_000_000


def explain(
    cluster: KazooClient, reader: ZnodeReader, *, custom: Mapping[str, str], now_ms: int = _LATER_MS
) -> LedgerExplanation:
    cluster.create(f"/ledgers/{format_ledger_path(7)}", wire.ledger_metadata(custom=custom), makepath=True)
    return explain_ledger(reader, "ledgers", 7, now_ms=now_ms)


def test_every_reference_is_named(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_TOPIC}", wire.managed_ledger([6, 7, 8]), makepath=True)
    shadow = "managed-ledgers/t/ns/persistent/shadow"
    cluster.create(f"/{shadow}", wire.managed_ledger([7], shadow="persistent://t/ns/a"))
    told = explain(cluster, reader, custom=_OWNED)
    assert told.owner == StatedOwner(PulsarComponent.MANAGED_LEDGER, _TOPIC)
    assert set(told.references) == {
        LedgerReference(7, _TOPIC, "ledgers"),
        LedgerReference(7, shadow, "ledgers", is_owner=False, can_be_absent=True),
    }
    assert (told.verdict, told.problems) == ("referenced", ())


def test_an_orphan_is_explained(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    told = explain(cluster, reader, custom=_OWNED)
    assert (told.verdict, told.reason) == ("orphan", "nothing refers to it, and its owner does not exist")


def test_a_young_ledger_is_explained(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    told = explain(cluster, reader, custom=_OWNED, now_ms=0)
    assert told.verdict == "young"


def test_a_replicated_ledger_is_explained(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    cluster.create("/ledgers/underreplication/locks/urL0000000007", b"", makepath=True)
    assert explain(cluster, reader, custom=_OWNED).verdict == "replicated"


@pytest.mark.parametrize("path", ["managed-ledgers/t/ns/persistent/other", "schemas/t/ns/other"])
def test_anything_unreadable_leaves_a_doubt(cluster: KazooClient, reader: ZnodeReader, path: str) -> None:
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    cluster.create(f"/{path}", b"\xff", makepath=True)
    told = explain(cluster, reader, custom=_OWNED)
    assert (told.verdict, [problem.path for problem in told.problems]) == ("doubtful", [path])


def test_a_cluster_without_managed_ledgers_leaves_a_doubt(cluster: KazooClient, reader: ZnodeReader) -> None:
    assert explain(cluster, reader, custom=_OWNED).verdict == "doubtful"


def test_a_ledger_of_another_application_is_explained(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    told = explain(cluster, reader, custom={"application": "bk-stream-storage-service"})
    assert (told.owner, told.verdict) == (None, "unattributed")


def test_what_cannot_be_read_is_named(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_TOPIC}", b"\xff", makepath=True)
    told = explain(cluster, reader, custom=_OWNED)
    assert told.verdict == "doubtful"
    assert [problem.path for problem in told.problems] == [_TOPIC]


def test_an_unknown_ledger_is_refused(reader: ZnodeReader) -> None:
    with pytest.raises(UnknownObject, match="ledger_id"):
        explain_ledger(reader, "ledgers", 7, now_ms=_LATER_MS)
