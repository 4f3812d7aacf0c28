"""Reads of entries over sockets: without fencing, from enough bookies, and with their digest checked."""

import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from infra.pulsar.bookie_reads import BookieAddress, BookieDirectory, BookieEntry, read_first_entry, read_last_entry
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, EnsembleSegment, LedgerMetadata
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from tests.infra.pulsar.fake_bookie import Answer, answer_with, answer_with_code, run_bookie, seal_entry
from tests.logstore.pulsar.wire import encode_message

_CLOSED = BookieAddress("127.0.0.1", 1)  # a port that nobody listens on


def metadata_of(
    bookies: int, *, ack_quorum: int = 1, last_entry: int = -1, digest: str = "CRC32C", first: int = 0
) -> LedgerMetadata:
    return LedgerMetadata(
        state=BookKeeperLedgerState.OPEN if last_entry < 0 else BookKeeperLedgerState.CLOSED,
        size_bytes=0,
        last_entry=last_entry,
        segments=(EnsembleSegment(0, ("gone",)), EnsembleSegment(first, tuple(f"bk{each}" for each in range(bookies)))),
        ack_quorum=ack_quorum,
        digest=digest,
    )


def read(answers: Sequence[Answer | None], metadata: LedgerMetadata) -> BookieEntry:
    """Read ledger 7 from bookies that answer so; `None` is a bookie that nobody reaches."""
    with ExitStack() as stack:
        bookies = [answer and stack.enter_context(run_bookie(answer)) for answer in answers]
        addresses = {f"bk{each}": bookie.address if bookie else _CLOSED for each, bookie in enumerate(bookies)}
        entry = read_last_entry(7, metadata, addresses.__getitem__, timeout_s=5)
        for bookie in filter(None, bookies):
            assert bookie.requests == [struct.pack(">iqq", 0x02020000, 7, -1)], "no flag: a read that fences has one"
        return entry


@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "DUMMY"])
def test_the_last_entry_is_read_with_each_digest(digest: str) -> None:
    envelope = seal_entry(7, 12, b"state", digest=digest)
    assert read([answer_with(envelope)], metadata_of(1, digest=digest)) == BookieEntry(12, b"state")


def test_the_newest_entry_of_all_members_counts() -> None:
    answers = [answer_with(seal_entry(7, entry, b"%d" % entry)) for entry in (3, 9, 6)]
    assert read(answers, metadata_of(3)) == BookieEntry(9, b"9")


@pytest.mark.parametrize("code", [1, 2])
def test_a_bookie_without_the_ledger_has_not_answered(code: int) -> None:
    """A bookie that lost its disk answers so. The others may have every entry, or too few may be left to say so."""
    with pytest.raises(StoreUnavailable, match="no entry of the ledger"):
        read([answer_with_code(code)], metadata_of(1))
    answers = [answer_with_code(code), answer_with(seal_entry(7, 9, b"x"))]
    assert read(answers, metadata_of(2, ack_quorum=2)) == BookieEntry(9, b"x")
    with pytest.raises(StoreUnavailable, match="too few"):
        read([*answers, None], metadata_of(3, ack_quorum=2))


def test_an_entry_before_the_last_segment_is_not_the_last_one() -> None:
    """After a change of bookies without another entry, the newest entry is on bookies of an earlier segment."""
    answers = [answer_with(seal_entry(7, 9, b"x"))]
    assert read(answers, metadata_of(1, first=10)) == BookieEntry(9, b"x")
    with pytest.raises(StoreUnavailable, match="expected entry 10 or a later one"):
        read(answers, metadata_of(1, first=11))


def test_a_member_may_be_away_if_another_one_must_have_every_entry() -> None:
    answers = [None, answer_with(seal_entry(7, 9, b"x"))]
    assert read(answers, metadata_of(2, ack_quorum=2)) == BookieEntry(9, b"x")
    with pytest.raises(StoreUnavailable, match="too few"):
        read(answers, metadata_of(2, ack_quorum=1))


def test_the_last_entry_of_a_closed_ledger_must_be_found() -> None:
    answers = [None, answer_with(seal_entry(7, 9, b"x"))]
    assert read(answers, metadata_of(2, ack_quorum=2, last_entry=9)) == BookieEntry(9, b"x")
    with pytest.raises(StoreUnavailable, match="entry 10"):
        read(answers, metadata_of(2, ack_quorum=2, last_entry=10))


@pytest.mark.parametrize(
    "answer",
    [
        answer_with_code(101),
        lambda _: b"",
        lambda _: b"short",
        lambda _: struct.pack(">iiqq", 0x02020000, 0, 8, 0) + seal_entry(8, 0, b"of another ledger"),
    ],
)
def test_a_bookie_that_answers_anything_else_has_not_answered(answer: Answer) -> None:
    with pytest.raises(StoreUnavailable):
        read([answer], metadata_of(1))


@pytest.mark.parametrize(
    ("envelope", "digest"),
    [
        (seal_entry(7, 1, b"state")[:-1], "CRC32C"),
        (seal_entry(7, 1, b"state")[:33], "CRC32C"),
        (seal_entry(8, 1, b"state"), "CRC32C"),
        (seal_entry(7, 1, b"state", digest="CRC32"), "CRC32C"),
        (seal_entry(7, 1, b"state"), "HMAC"),
        (seal_entry(7, 1, b"state"), ""),
    ],
)
def test_a_damaged_entry_is_refused(envelope: bytes, digest: str) -> None:
    with pytest.raises(UnreadableMetadata):
        read([answer_with(envelope)], metadata_of(1, digest=digest))


def test_the_first_entry_is_read_from_any_member_of_the_first_segment_that_has_it() -> None:
    """With a write quorum below the ensemble size, not every member has entry 0."""
    answers = [answer_with_code(2), answer_with(seal_entry(7, 3, b"3")), answer_with(seal_entry(7, 0, b"first"))]
    metadata = metadata_of(3, last_entry=3)
    members = EnsembleSegment(0, ("gone", "bk0", "bk1", "bk2"))
    metadata = replace(metadata, segments=(members, EnsembleSegment(2, ("later",))))
    with ExitStack() as stack:
        bookies = [stack.enter_context(run_bookie(answer)) for answer in answers]
        addresses = {f"bk{each}": bookie.address for each, bookie in enumerate(bookies)}
        assert read_first_entry(7, metadata, addresses.get, timeout_s=5) == BookieEntry(0, b"first")
        for bookie in bookies:
            assert bookie.requests == [struct.pack(">iqq", 0x02020000, 7, 0)], "no flag: a read that fences has one"
        del addresses["bk2"]
        with pytest.raises(
            StoreUnavailable, match=r"no bookie has entry 0: bookie gone: it is not registered; .*entry 3"
        ):
            read_first_entry(7, metadata, addresses.get, timeout_s=5)


@pytest.mark.external_service
def test_ids_of_bookies_lead_to_addresses(cluster: KazooClient, reader: ZnodeReader) -> None:
    rpc = encode_message((1, "bookie"), (2, 3181), (3, "10.0.0.1"), (4, "bookie-rpc"))
    http = encode_message((1, "httpserver"), (2, 8000), (3, "10.0.0.1"), (4, "http"))
    cluster.create("/ledgers/available/bk0", encode_message((6, http), (6, rpc)), makepath=True)
    cluster.create("/ledgers/available/readonly/bk1", encode_message((6, rpc)), makepath=True)
    cluster.create("/ledgers/available/10.0.0.2:3182", b"")
    directory = BookieDirectory(reader, "ledgers")
    assert directory.find_address("bk0") == BookieAddress("10.0.0.1", 3181)
    assert directory.find_address("bk1") == BookieAddress("10.0.0.1", 3181)
    assert directory.find_address("10.0.0.2:3182") == BookieAddress("10.0.0.2", 3182)
    assert directory.find_address("10.0.0.3:3183") == BookieAddress("10.0.0.3", 3183)
    assert directory.find_address("nobody") is None
