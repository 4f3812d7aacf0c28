"""A verification after an apply reads every reference again, and says what bookies gave back."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from infra.pulsar import apply_verification
from infra.pulsar.apply_verification import (
    MAX_SAMPLES,
    ApplyVerification,
    ApplyVerifier,
    CountedSamples,
    DeletedLedgerState,
    SpaceState,
)
from infra.pulsar.cluster_references import scan_references_again
from infra.pulsar.scan_facts import ScanFact
from infra.pulsar.znode_reads import ZnodeReader
from logstore.ports.catalog.reconciliation import JournaledLedger
from logstore.pulsar.znode_names import format_ledger_path
from logstore.rate_limiter import RateLimiter
from tests.infra.pulsar.fake_bookie import FakeBookie, answer_with, answer_with_code, run_bookie, seal_entry
from tests.logstore.pulsar import wire

pytestmark = pytest.mark.external_service

_NAME = "t/ns/persistent/a"
_TOPIC = f"managed-ledgers/{_NAME}"
_OWNED = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": _NAME}
_DEAD_BOOKIE = "127.0.0.1:1"


def journaled(ledger_id: int, **metadata: Any) -> JournaledLedger:
    data = wire.ledger_metadata(**({"custom": _OWNED} | metadata))
    return JournaledLedger(ledger_id=ledger_id, path=format_ledger_path(ledger_id), version=0, czxid=1, data=data)


@pytest.fixture
def live(cluster: KazooClient) -> KazooClient:
    """A cluster whose topic has two ledgers. The apply has deleted the ledgers 101 and 102."""
    write(cluster, _TOPIC, wire.managed_ledger([1, 2]))
    for ledger_id in (1, 2):
        write_ledger(cluster, journaled(ledger_id))
    return cluster


def write(cluster: KazooClient, path: str, value: bytes) -> None:
    cluster.create(f"/{path}", value, makepath=True)


def write_ledger(cluster: KazooClient, ledger: JournaledLedger) -> None:
    write(cluster, f"ledgers/{ledger.path}", ledger.data)


def make_verifier(reader: ZnodeReader, limiter: RateLimiter | None = None) -> ApplyVerifier:
    return ApplyVerifier(reader, "ledgers", limiter or RateLimiter(1_000_000))


def check_references(reader: ZnodeReader, *planned_dangling: tuple[str, int]) -> ApplyVerification:
    journal = {ledger_id: journaled(ledger_id) for ledger_id in (101, 102)}

    def find_journaled(ledger_ids: Any) -> Mapping[int, JournaledLedger]:
        return {ledger_id: ledger for ledger_id, ledger in journal.items() if ledger_id in ledger_ids}

    verifier = make_verifier(reader)
    verifier.check_references(find_journaled, planned_dangling)
    return verifier.result


def test_nothing_is_missing_after_a_good_apply(live: KazooClient, reader: ZnodeReader) -> None:
    result = check_references(reader)
    assert (result.references, result.missing.count, result.new_dangling.count, result.problems.count) == (2, 0, 0, 0)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("managed-ledgers/t/ns/persistent/b", wire.managed_ledger([101, 2]), "ledgers"),
        ("managed-ledgers/t/ns/persistent/b", wire.managed_ledger([2, 101]), "ledgers"),
        (f"{_TOPIC}/billing", wire.cursor(101), "cursor_ledger_id"),
        (f"{_TOPIC}/billing", wire.cursor(2, buckets={"1_2": "101"}), "cursor_properties"),
        (f"{_TOPIC}/__compaction", wire.cursor(-1, compacted=101), "compacted_ledger"),
        ("schemas/t/ns/a", wire.schema_locator([101]), "versions"),
        ("pulsar/functions/f/<default>/ledgers/logrecs_1", b"5;101;1", "log_segment"),
        ("pulsar/functions/f/<default>/allocation", b"101", "log_allocation"),
        ("pulsar/functions/.allocation_pool/p/A1", b"101", "log_allocation"),
    ],
)
def test_deleted_ledger_that_something_refers_to_is_missing(
    path: str, value: bytes, field: str, live: KazooClient, reader: ZnodeReader
) -> None:
    """Also as the last ledger of a topic, whose absence Pulsar forgives: it may have messages."""
    write(live, path, value)
    missing = check_references(reader).missing
    assert [(each.ledger_id, each.path, each.source) for each in missing.samples] == [(101, path, field)]
    assert missing.count == 1


def test_ledger_that_is_back_is_not_missing(live: KazooClient, reader: ZnodeReader) -> None:
    live.set(f"/{_TOPIC}", wire.managed_ledger([1, 101, 2]))
    write_ledger(live, journaled(101))
    assert check_references(reader).missing.count == 0


@pytest.mark.parametrize(("topic", "count"), [(_TOPIC, 0), ("managed-ledgers/t/ns/persistent/b", 1)])
def test_only_its_owner_may_give_a_ledger_up(topic: str, count: int, live: KazooClient, reader: ZnodeReader) -> None:
    context = wire.offload_context(UUID(int=5), complete=True, bookkeeper_deleted=True)
    live.delete(f"/{_TOPIC}")
    write(live, topic, wire.managed_ledger([101, 2], offloads={101: context}))
    assert check_references(reader).missing.count == count


def test_nobody_may_give_up_a_ledger_without_an_owner(live: KazooClient, reader: ZnodeReader) -> None:
    context = wire.offload_context(UUID(int=5), complete=True, bookkeeper_deleted=True)
    live.set(f"/{_TOPIC}", wire.managed_ledger([101, 2], offloads={101: context}))
    verifier = make_verifier(reader)
    verifier.check_references(lambda _: {101: journaled(101, custom={})}, ())
    assert verifier.result.missing.count == 1


def test_other_dangling_references_are_told_apart(live: KazooClient, reader: ZnodeReader) -> None:
    """The absent last ledger of a topic is no loss, and was never a finding."""
    write(live, "managed-ledgers/t/ns/persistent/b", wire.managed_ledger([301, 302, 303]))
    result = check_references(reader, ("managed-ledgers/t/ns/persistent/b", 301))
    assert (result.missing.count, result.planned_dangling) == (0, 1)
    assert [each.ledger_id for each in result.new_dangling.samples] == [302]


@pytest.mark.parametrize(("ledgers", "count"), [([1, 2], 0), ([1, 101, 2, 3], 1), ([1, 2, 101], 1)])
def test_missing_reference_is_read_once_more(
    ledgers: list[int], count: int, live: KazooClient, reader: ZnodeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that removes a reference and then the ledger is no loss. A list that has grown changes nothing."""
    live.set(f"/{_TOPIC}", wire.managed_ledger([1, 2, 101]))

    def change_and_scan(*arguments: Any) -> Iterator[ScanFact]:
        live.set(f"/{_TOPIC}", wire.managed_ledger(ledgers))
        yield from scan_references_again(*arguments)

    monkeypatch.setattr(apply_verification, "scan_references_again", change_and_scan)
    assert check_references(reader).missing.count == count


def test_reference_that_moves_to_another_field_of_a_znode_is_missing(
    live: KazooClient, reader: ZnodeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(live, f"{_TOPIC}/billing", wire.cursor(2, buckets={"1_2": "101"}))

    def move_and_scan(*arguments: Any) -> Iterator[ScanFact]:
        live.set(f"/{_TOPIC}/billing", wire.cursor(101))
        yield from scan_references_again(*arguments)

    monkeypatch.setattr(apply_verification, "scan_references_again", move_and_scan)
    assert check_references(reader).missing.count == 1


@pytest.mark.parametrize("is_second_look", [False, True])
def test_unreadable_references_are_problems(
    is_second_look: bool, live: KazooClient, reader: ZnodeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.set(f"/{_TOPIC}", wire.managed_ledger([1, 101, 2]))

    def damage_and_scan(*arguments: Any) -> Iterator[ScanFact]:
        live.set(f"/{_TOPIC}", b"\xff")
        yield from scan_references_again(*arguments)

    if is_second_look:
        monkeypatch.setattr(apply_verification, "scan_references_again", damage_and_scan)
    else:
        live.set(f"/{_TOPIC}", b"\xff")
    result = check_references(reader)
    assert [problem.path for problem in result.problems.samples] == [_TOPIC]


def test_cluster_without_managed_ledgers_proves_nothing(cluster: KazooClient, reader: ZnodeReader) -> None:
    assert check_references(reader).problems.count == 1


@pytest.mark.parametrize("per_batch", [1, 2, 3])
def test_batches_do_not_change_the_result(
    per_batch: int, live: KazooClient, reader: ZnodeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_verification, "_PER_BATCH", per_batch)
    live.set(f"/{_TOPIC}", wire.managed_ledger([1, 101, 102, 2]))
    write(live, f"{_TOPIC}/billing", wire.cursor(101))
    result = check_references(reader)
    assert (result.references, result.missing.count) == (5, 3)


def answer_for(stored_ids: Sequence[int]) -> Callable[[int, int], bytes]:
    """Answer as a bookie that has only these ledgers."""

    def answer(ledger_id: int, entry_id: int) -> bytes:
        if ledger_id not in stored_ids:
            return answer_with_code(1)(ledger_id, entry_id)
        return answer_with(seal_entry(ledger_id, 9, b"message"))(ledger_id, entry_id)

    return answer


@pytest.fixture
def bookie(live: KazooClient) -> Iterator[FakeBookie]:
    """A bookie that still has ledger 101."""
    with run_bookie(answer_for([101])) as bookie:
        yield bookie


def bookie_id(bookie: FakeBookie) -> str:
    return f"127.0.0.1:{bookie.address.port}"


def test_space_is_what_bookies_say(live: KazooClient, reader: ZnodeReader, bookie: FakeBookie) -> None:
    """No read may fence a ledger. An empty ledger is on no bookie, and none is asked."""
    verifier, present = make_verifier(reader), [bookie_id(bookie)]
    verifier.check_journal(
        [
            journaled(101, bookies=present, length=10),
            journaled(102, bookies=present, length=200, quorum=3),
            journaled(103, bookies=[*present, _DEAD_BOOKIE], length=4_000),
            journaled(104, bookies=present, state=1),
            journaled(105, bookies=[_DEAD_BOOKIE], last_entry=2**64 - 1, length=0),
        ]
    )
    result = verifier.result
    assert result.ledgers == {DeletedLedgerState.ABSENT: 5}
    assert result.space_bytes[SpaceState.AWAITING] == 10
    assert result.space_bytes[SpaceState.RECLAIMED] == 600, "of three replicas"
    assert result.space_bytes[SpaceState.UNKNOWN] == 4_000
    assert result.space_ledgers == {SpaceState.AWAITING: 1, SpaceState.RECLAIMED: 3, SpaceState.UNKNOWN: 1}
    assert result.unstated_ledgers == 1, "nobody has closed it"
    assert {struct.unpack_from(">i", request)[0] for request in bookie.requests} == {(2 << 24) | (2 << 16)}


def test_one_bookie_that_has_a_ledger_is_enough(live: KazooClient, reader: ZnodeReader, bookie: FakeBookie) -> None:
    with run_bookie(answer_for([])) as other:
        verifier = make_verifier(reader)
        verifier.check_journal([journaled(101, bookies=[bookie_id(other), bookie_id(bookie), _DEAD_BOOKIE])])
    assert verifier.result.space_ledgers == {SpaceState.AWAITING: 1}


def test_reads_from_bookies_keep_the_rate(live: KazooClient, reader: ZnodeReader, bookie: FakeBookie) -> None:
    limiter = RateLimiter(1_000_000)
    present = bookie_id(bookie)
    make_verifier(reader, limiter).check_journal([journaled(101, bookies=[present, _DEAD_BOOKIE]), journaled(102)])
    assert limiter.used_units == 3


def test_ledgers_that_are_back_are_counted(live: KazooClient, reader: ZnodeReader) -> None:
    write_ledger(live, journaled(101))
    write_ledger(live, journaled(102, length=5))
    verifier = make_verifier(reader)
    verifier.check_journal([journaled(101), journaled(102)])
    assert verifier.result.ledgers == {DeletedLedgerState.RESTORED: 1, DeletedLedgerState.REPLACED: 1}
    assert not verifier.result.space_ledgers


def test_orphans_left_are_counted(live: KazooClient, reader: ZnodeReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_verification, "_PER_BATCH", 2)
    verifier = make_verifier(reader)
    verifier.count_orphans_left(iter([1, 101, 2, 102, 103]))
    assert verifier.result.orphans_left == 2


def test_samples_are_bounded_and_counts_are_not() -> None:
    samples = CountedSamples[int]()
    for number in range(MAX_SAMPLES + 5):
        samples.add(number)
    assert (samples.count, len(samples.samples)) == (MAX_SAMPLES + 5, MAX_SAMPLES)
