"""Addresses of bookies, and reads of first entries over sockets."""

import re
import struct
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient

from infra.pulsar.bookie_reads import (
    BookieAddress,
    BookieConnections,
    BookieDirectory,
    BookieEntry,
    read_stored_entries,
)
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable
from logstore.pulsar.ledger_metadata import BookKeeperLedgerState, EnsembleSegment, LedgerMetadata
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from tests.infra.pulsar.fake_bookie import KnownBookies, answer_with, answer_with_code, run_bookie, seal_entry
from tests.logstore.pulsar.wire import encode_message


def read_first_entry(metadata: LedgerMetadata, addresses: dict[str, BookieAddress]) -> object:
    """Read entry 0 of ledger 7."""
    with BookieConnections(KnownBookies(addresses), timeout_s=5) as connections:
        return read_stored_entries(connections, {7: metadata}, [(7, 0)])[7, 0]


def test_the_first_entry_is_read_from_any_member_of_the_first_segment_that_has_it() -> None:
    """With a write quorum below the ensemble size, not every member has entry 0."""
    answers = [answer_with_code(2), answer_with(seal_entry(7, 3, b"3")), answer_with(seal_entry(7, 0, b"first"))]
    members = EnsembleSegment(0, ("gone", "bk0", "bk1", "bk2"))
    metadata = LedgerMetadata(
        state=BookKeeperLedgerState.CLOSED,
        size_bytes=0,
        last_entry=3,
        segments=(members, EnsembleSegment(2, ("later",))),
        ack_quorum=1,
        digest="CRC32C",
    )
    with ExitStack() as stack:
        bookies = [stack.enter_context(run_bookie(answer)) for answer in answers]
        addresses = {f"bk{each}": bookie.address for each, bookie in enumerate(bookies)}
        assert read_first_entry(metadata, addresses) == BookieEntry(0, 0, b"first")
        for bookie in bookies:
            assert bookie.requests == [struct.pack(">iqq", 0x02020000, 7, 0)], "no flag: a read that fences has one"
        del addresses["bk2"]
        failure = read_first_entry(metadata, addresses)
    assert isinstance(failure, StoreUnavailable)
    assert re.search(r"no bookie returned entry 0: bookie gone: it is not registered; .*entry 3", str(failure))


def test_a_damaged_entry_is_told_apart_from_a_silent_bookie() -> None:
    metadata = LedgerMetadata(
        state=BookKeeperLedgerState.CLOSED,
        size_bytes=0,
        last_entry=0,
        segments=(EnsembleSegment(0, ("bk0",)),),
        ack_quorum=1,
        digest="CRC32C",
    )
    with run_bookie(answer_with(seal_entry(7, 0, b"first")[:-1] + b"x")) as bookie:
        assert isinstance(read_first_entry(metadata, {"bk0": bookie.address}), UnreadableMetadata)


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
