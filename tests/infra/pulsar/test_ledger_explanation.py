"""An explanation names the owner, every reference, and the verdict with its reason."""

from collections.abc import Callable, Mapping
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from infra.pulsar.ledger_explanation import LedgerExplanation, explain_ledger
from infra.pulsar.scan_facts import ScannedReference
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import UnknownObject
from logstore.pulsar.ledger_metadata import PulsarComponent, StatedOwner
from logstore.pulsar.znode_names import format_ledger_path
from tests.infra.pulsar.owner_directories import make_owner_directory
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_NAME = "t/ns/persistent/a"
_TOPIC = f"managed-ledgers/{_NAME}"
_OWNED = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": _NAME}
_OTHER = "managed-ledgers/t/ns/persistent/never-loaded"
_DAY_MS = 86_400_000


@pytest.fixture
def ages(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let a time pass on the clocks of ZooKeeper and of this machine."""

    def pass_time(passed_ms: int) -> None:
        def read_clock_ms(reader: ZnodeReader) -> int:
            return reader.newest_change_ms + passed_ms

        monkeypatch.setattr("infra.pulsar.ledger_explanation.read_cluster_clock_ms", read_clock_ms)

    return pass_time


def explain(cluster: KazooClient, reader: ZnodeReader, *, custom: Mapping[str, str]) -> LedgerExplanation:
    cluster.create(f"/ledgers/{format_ledger_path(7)}", wire.ledger_metadata(custom=custom), makepath=True)
    cluster.create("/admin/policies/t", b"{}", makepath=True)
    return explain_ledger(reader, make_owner_directory(reader), "ledgers", 7)


def test_every_reference_is_named(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_TOPIC}", wire.managed_ledger([6, 7, 8]), makepath=True)
    shadow = "managed-ledgers/t/ns/persistent/shadow"
    cluster.create(f"/{shadow}", wire.managed_ledger([7], shadow="persistent://t/ns/a"))
    told = explain(cluster, reader, custom=_OWNED)
    assert told.owner == StatedOwner(PulsarComponent.MANAGED_LEDGER, _TOPIC)
    assert set(told.references) == {
        ScannedReference(7, _TOPIC, "ledgers"),
        ScannedReference(7, shadow, "ledgers", is_owner=False, can_be_absent=True),
    }
    assert (told.verdict, told.problems) == ("referenced", ())


def test_an_orphan_is_explained(cluster: KazooClient, reader: ZnodeReader, ages: Callable[[int], None]) -> None:
    ages(_DAY_MS)
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    told = explain(cluster, reader, custom=_OWNED)
    assert (told.verdict, told.reason) == (
        "owner_absent",
        "nothing refers to it, and its owner /managed-ledgers/t/ns/persistent/a does not exist",
    )


def test_a_ledger_that_was_given_up_is_explained(
    cluster: KazooClient, reader: ZnodeReader, ages: Callable[[int], None]
) -> None:
    ages(_DAY_MS)
    context = wire.offload_context(UUID(int=5), complete=True, bookkeeper_deleted=True)
    cluster.create(f"/{_TOPIC}", wire.managed_ledger([7, 8], offloads={7: context}), makepath=True)
    told = explain(cluster, reader, custom=_OWNED)
    assert (told.verdict, [each.source for each in told.references]) == ("owner_gave_up", ["ledgers"])
    assert told.reason.endswith("its owner /managed-ledgers/t/ns/persistent/a lists it as given up after its offload")


def test_a_young_ledger_is_explained(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    told = explain(cluster, reader, custom=_OWNED)
    assert told.verdict == "young"
    assert told.reason.startswith("nothing refers to it, and it changed 0 s ago")


def test_a_replicated_ledger_is_explained(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    cluster.create("/ledgers/underreplication/locks/urL0000000007", b"", makepath=True)
    assert explain(cluster, reader, custom=_OWNED).verdict == "replicated"


@pytest.mark.parametrize(
    "path",
    ["managed-ledgers/t/ns/persistent/other", "schemas/t/ns/other", "ledgers/underreplication/locks/unknown"],
)
def test_anything_unreadable_leaves_a_doubt(cluster: KazooClient, reader: ZnodeReader, path: str) -> None:
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    cluster.create(f"/{path}", b"\xff", makepath=True)
    told = explain(cluster, reader, custom=_OWNED)
    assert (told.verdict, [problem.path for problem in told.problems]) == ("doubtful", [path])


def test_a_cluster_without_managed_ledgers_leaves_a_doubt(cluster: KazooClient, reader: ZnodeReader) -> None:
    assert explain(cluster, reader, custom=_OWNED).verdict == "doubtful"


def test_a_ledger_of_another_application_is_explained(
    cluster: KazooClient, reader: ZnodeReader, ages: Callable[[int], None]
) -> None:
    ages(_DAY_MS)
    cluster.create(f"/{_OTHER}", b"", makepath=True)
    told = explain(cluster, reader, custom={"application": "bk-stream-storage-service"})
    assert (told.owner, told.verdict) == (None, "owner_unstated")


def test_what_cannot_be_read_is_named(cluster: KazooClient, reader: ZnodeReader) -> None:
    cluster.create(f"/{_TOPIC}", b"\xff", makepath=True)
    told = explain(cluster, reader, custom=_OWNED)
    assert told.verdict == "doubtful"
    assert [problem.path for problem in told.problems] == [_TOPIC]


def test_an_unknown_ledger_is_refused(reader: ZnodeReader) -> None:
    with pytest.raises(UnknownObject, match="ledger_id"):
        explain_ledger(
            reader,
            make_owner_directory(reader),
            "ledgers",
            7,
        )
