"""Reads of last entries over sockets: without fencing, from enough bookies, and with their digest checked."""

import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from infra.pulsar.bookie_reads import BookieAddress, BookieConnections
from infra.pulsar.newest_entries import read_newest_entries
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, EnsembleSegment, LedgerMetadata
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from tests.infra.pulsar.fake_bookie import (
    Answer,
    KnownBookies,
    answer_entries,
    answer_with,
    answer_with_code,
    run_bookie,
    seal_entry,
)

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


def read(answers: Sequence[Answer | None], metadata: LedgerMetadata) -> list[tuple[int, bytes]]:
    """Read ledger 7 from bookies that answer so; `None` is a bookie that nobody reaches."""
    with ExitStack() as stack:
        bookies = [answer and stack.enter_context(run_bookie(answer)) for answer in answers]
        addresses = {f"bk{each}": bookie.address if bookie else _CLOSED for each, bookie in enumerate(bookies)}
        with BookieConnections(KnownBookies(addresses), timeout_s=5) as connections:
            entries = read_newest_entries(connections, {7: metadata})[7]
        for bookie in filter(None, bookies):
            requests = [struct.unpack(">iqq", request) for request in bookie.requests]
            assert requests[0] == (0x02020000, 7, -1)
            assert {header for header, _, _ in requests} == {0x02020000}, "no flag: a read that fences has one"
        if isinstance(entries, Exception):
            raise entries
        return [(entry.entry_id, entry.payload) for entry in entries]


@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "DUMMY"])
def test_the_last_entry_is_read_with_each_digest(digest: str) -> None:
    envelope = seal_entry(7, 12, b"state", digest=digest)
    assert read([answer_with(envelope)], metadata_of(1, digest=digest)) == [(12, b"state")]


def test_the_last_entries_of_all_members_count() -> None:
    """Nobody but the broker knows which of them is acknowledged."""
    answers = [answer_with(seal_entry(7, entry, b"%d" % entry)) for entry in (3, 9, 6)]
    assert read(answers, metadata_of(3)) == [(3, b"3"), (6, b"6"), (9, b"9")]


def test_an_entry_that_only_one_member_has_leaves_the_confirmed_one_possible() -> None:
    """The broker sent entry 9 to one bookie only. If it fails now, a recovery may end the ledger at entry 8."""
    has_8, has_9 = answer_entries({7: b"7", 8: b"8"}), answer_entries({7: b"7", 8: b"8", 9: b"9"})
    assert read([has_8, has_9], metadata_of(2)) == [(8, b"8"), (9, b"9")]
    assert read([has_9, has_9], metadata_of(2)) == [(8, b"8"), (9, b"9")]


def test_all_entries_that_are_not_confirmed_are_possible() -> None:
    bookie = answer_entries({entry: b"%d" % entry for entry in range(10)}, in_flight=3)
    assert [entry for entry, _ in read([bookie], metadata_of(1))] == [6, 7, 8, 9]


def test_an_entry_that_was_not_confirmed_may_be_absent_but_not_the_confirmed_one() -> None:
    entries = {6: b"6", 8: b"8", 9: b"9"}
    assert [entry for entry, _ in read([answer_entries(entries, in_flight=3)], metadata_of(1))] == [6, 8, 9]
    with pytest.raises(StoreUnavailable, match="no bookie returned entry 7"):
        read([answer_entries(entries, in_flight=2)], metadata_of(1))


def test_a_confirmed_entry_is_read_from_the_bookies_of_its_segment() -> None:
    """The bookies changed behind entry 8. Those of the last segment never had it."""
    old, new = answer_entries({8: b"8"}), answer_entries({9: b"9"})
    metadata = replace(metadata_of(1), segments=(EnsembleSegment(0, ("bk0",)), EnsembleSegment(9, ("bk1",))))
    with run_bookie(old) as first, run_bookie(new) as second:
        directory = KnownBookies({"bk0": first.address, "bk1": second.address})
        with BookieConnections(directory, timeout_s=5) as connections:
            entries = read_newest_entries(connections, {7: metadata})[7]
    assert isinstance(entries, list)
    assert [entry.payload for entry in entries] == [b"8", b"9"]


def test_too_many_entries_that_are_not_confirmed_are_refused() -> None:
    with pytest.raises(StoreUnavailable, match="at most 100 entries"):
        read([answer_entries({500: b"x"}, in_flight=400)], metadata_of(1))


def test_only_the_stated_last_entry_of_a_closed_ledger_is_looked_for() -> None:
    """A recovery closed the ledger at entry 8, although a bookie has entry 9."""
    entries = {entry: b"%d" % entry for entry in range(10)}
    assert [entry for entry, _ in read([answer_entries(entries, in_flight=5)], metadata_of(1, last_entry=8))] == [8, 9]


def test_a_bookie_without_an_answer_is_waited_for_once() -> None:
    """Its port accepts connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent, run_bookie(answer_with(seal_entry(7, 9, b"x"))) as bookie:
        directory = KnownBookies({"bk0": BookieAddress("127.0.0.1", silent.getsockname()[1]), "bk1": bookie.address})
        metadata = metadata_of(2, ack_quorum=2)
        with BookieConnections(directory, timeout_s=0.5) as connections:
            for _ in range(20):
                assert isinstance(read_newest_entries(connections, {7: metadata})[7], list)
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # there was no second connection
            silent.accept()


def test_connections_are_used_again_and_made_again_if_a_bookie_closed_them() -> None:
    with (
        run_bookie(answer_with(seal_entry(7, 9, b"x"))) as bookie,
        BookieConnections(KnownBookies({"bk0": bookie.address}), timeout_s=5) as connections,
    ):
        for _ in range(3):
            assert isinstance(read_newest_entries(connections, {7: metadata_of(1)})[7], list)
        assert len(bookie.connections) == 1
        bookie.close_connections()
        assert isinstance(read_newest_entries(connections, {7: metadata_of(1)})[7], list)
        assert len(bookie.connections) == 2


@pytest.mark.parametrize("code", [1, 2])
def test_a_bookie_without_the_ledger_has_not_answered(code: int) -> None:
    """A bookie that lost its disk answers so. The others may have every entry, or too few may be left to say so."""
    with pytest.raises(StoreUnavailable, match="no entry of the ledger"):
        read([answer_with_code(code)], metadata_of(1))
    answers = [answer_with_code(code), answer_with(seal_entry(7, 9, b"x"))]
    assert read(answers, metadata_of(2, ack_quorum=2)) == [(9, b"x")]
    with pytest.raises(StoreUnavailable, match="too few"):
        read([*answers, None], metadata_of(3, ack_quorum=2))


def test_an_entry_before_the_last_segment_is_not_the_last_one() -> None:
    """After a change of bookies without another entry, the newest entry is on bookies of an earlier segment."""
    answers = [answer_with(seal_entry(7, 9, b"x"))]
    assert read(answers, metadata_of(1, first=10)) == [(9, b"x")]
    with pytest.raises(StoreUnavailable, match="expected entry 10 or a later one"):
        read(answers, metadata_of(1, first=11))


def test_a_member_may_be_away_if_another_one_must_have_every_entry() -> None:
    answers = [None, answer_with(seal_entry(7, 9, b"x"))]
    assert read(answers, metadata_of(2, ack_quorum=2)) == [(9, b"x")]
    with pytest.raises(StoreUnavailable, match="too few"):
        read(answers, metadata_of(2, ack_quorum=1))


def test_the_last_entry_of_a_closed_ledger_must_be_found() -> None:
    answers = [None, answer_with(seal_entry(7, 9, b"x"))]
    assert read(answers, metadata_of(2, ack_quorum=2, last_entry=9)) == [(9, b"x")]
    with pytest.raises(StoreUnavailable, match="entry 10"):
        read(answers, metadata_of(2, ack_quorum=2, last_entry=10))


@pytest.mark.parametrize(
    "answer",
    [
        answer_with_code(101),
        lambda *_: b"",
        lambda *_: b"short",
        lambda *_: struct.pack(">iiqq", 0x02020000, 0, 8, 0) + seal_entry(8, 0, b"of another ledger"),
        answer_with(seal_entry(8, 1, b"of another ledger")),
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
        (seal_entry(7, 1, b"state", digest="CRC32"), "CRC32C"),
        (seal_entry(7, 1, b"state"), "HMAC"),
        (seal_entry(7, 1, b"state"), ""),
    ],
)
def test_a_damaged_entry_is_refused(envelope: bytes, digest: str) -> None:
    with pytest.raises(UnreadableMetadata):
        read([answer_with(envelope)], metadata_of(1, digest=digest))
