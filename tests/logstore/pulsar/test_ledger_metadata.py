"""Metadata of ledgers in its three versions, and the owners that custom metadata states."""

import pytest

from logstore.pulsar.ledger_metadata import (
    BookKeeperLedgerState,
    EnsembleSegment,
    LedgerMetadata,
    PulsarComponent,
    StatedOwner,
    find_stated_owner,
    parse_ledger_metadata,
)
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from tests.logstore.pulsar.wire import encode_message, ledger_metadata

_OWNED = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": "t/ns/persistent/a%2Fb"}


def test_version_3_is_read() -> None:
    metadata = parse_ledger_metadata(ledger_metadata(custom=_OWNED, bookies=["bk0", "bk1"]))
    assert metadata == LedgerMetadata(
        state=BookKeeperLedgerState.CLOSED,
        size_bytes=100,
        last_entry=9,
        segments=(EnsembleSegment(0, ("bk0", "bk1")),),
        ack_quorum=1,
        digest="CRC32C",
        password=b"",
        custom={key: value.encode() for key, value in _OWNED.items()},
    )
    assert metadata.bookie_ids == {"bk0", "bk1"}


@pytest.mark.parametrize(("number", "state"), [(1, BookKeeperLedgerState.OPEN), (2, BookKeeperLedgerState.IN_RECOVERY)])
def test_a_ledger_that_is_not_closed_has_no_known_end(number: int, state: BookKeeperLedgerState) -> None:
    metadata = parse_ledger_metadata(ledger_metadata(state=number, length=55))
    assert (metadata.state, metadata.size_bytes, metadata.last_entry) == (state, 0, -1)


def test_version_2_is_read() -> None:
    text = (
        'quorumSize: 2\nensembleSize: 3\nlength: 700\nlastEntryId: 6\nstate: CLOSED\n'
        'segment {\n  ensembleMember: "bk0:3181"\n  ensembleMember: "bk1:3181"\n  firstEntryId: 0\n}\n'
        'segment {\n  ensembleMember: "bk2:3181"\n  firstEntryId: 4\n}\n'
        'digestType: CRC32\npassword: ""\nackQuorumSize: 2\nnewerField: 5\n'
        'customMetadata {\n  key: "application"\n  value: "pulsar"\n}\n'
    )  # fmt: skip
    metadata = parse_ledger_metadata(b"BookieMetadataFormatVersion\t2\n" + text.encode())
    assert (metadata.state, metadata.size_bytes, metadata.last_entry) == (BookKeeperLedgerState.CLOSED, 700, 6)
    assert metadata.segments == (EnsembleSegment(0, ("bk0:3181", "bk1:3181")), EnsembleSegment(4, ("bk2:3181",)))
    assert metadata.custom == {"application": b"pulsar"}


@pytest.mark.parametrize(
    ("end", "state", "size", "last"),
    [
        ("6\tCLOSED\n", BookKeeperLedgerState.CLOSED, 700, 6),
        ("-102\tCLOSED\n", BookKeeperLedgerState.IN_RECOVERY, 0, -1),
        ("", BookKeeperLedgerState.OPEN, 0, -1),
    ],
)
def test_version_1_is_read(end: str, state: BookKeeperLedgerState, size: int, last: int) -> None:
    body = f"2\n3\n700\n0\tbk0:3181\tbk1:3181\n4\tbk2:3181\n{end}"
    metadata = parse_ledger_metadata(b"BookieMetadataFormatVersion\t1\n" + body.encode())
    assert (metadata.state, metadata.size_bytes, metadata.last_entry) == (state, size, last)
    assert metadata.segments[1] == EnsembleSegment(4, ("bk2:3181",))
    assert metadata.ack_quorum == 2
    assert find_stated_owner(metadata) is None


_HEADER = b"BookieMetadataFormatVersion\t"


@pytest.mark.parametrize(
    "data",
    [
        b"",  # seen in production: apache/pulsar#13480
        b"{}",
        _HEADER + b"4\n" + b"\x00",
        _HEADER + b"3\n",
        _HEADER + b"3\n" + b"\xff" * 12,
        ledger_metadata()[:-1],
        ledger_metadata() + b"\x00",
        _HEADER + b"3\n\x02" + encode_message((1, 1)),  # required fields are missing
        ledger_metadata(state=7),
        _HEADER + b"2\nquorumSize: ",
        _HEADER + b"2\nquorumSize: 1\n",
        _HEADER + b"1\n1\n1\n",
        _HEADER + b"1\n1\n1\nx\n0\tbk0\n",
        _HEADER + b"1\n1\n1\n100\n0\n",
        _HEADER + b"1\n1\n1\n100\n",
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableMetadata):
        parse_ledger_metadata(data)


def test_each_component_states_its_owner() -> None:
    topic, name = "persistent://t/ns/a b", "t/ns/persistent/a+b"
    bucket = {"pulsar/delayedIndexTopic": topic, "pulsar/delayedIndexCursor": "one/two"}
    for component, keys, path in [
        ("managed-ledger", {"pulsar/managed-ledger": name}, f"managed-ledgers/{name}"),
        ("managed-ledger", {"pulsar/managed-ledger": name, "pulsar/cursor": "s%2F1"}, f"managed-ledgers/{name}/s%2F1"),
        ("compacted-ledger", {"pulsar/compactedTopic": topic}, f"managed-ledgers/{name}/__compaction"),
        ("schema", {"pulsar/schemaId": "t/ns/a+b"}, "schemas/t/ns/a+b"),
        ("delayed-index-bucket", bucket, f"managed-ledgers/{name}/one%2Ftwo"),
    ]:
        custom = {"application": "pulsar", "component": component, **keys}
        owner = find_stated_owner(parse_ledger_metadata(ledger_metadata(custom=custom)))
        assert owner == StatedOwner(PulsarComponent(component), path)


def test_a_topic_of_pulsar_1_has_a_cluster_in_its_name() -> None:
    custom = {"application": "pulsar", "component": "compacted-ledger"}
    metadata = ledger_metadata(custom=custom | {"pulsar/compactedTopic": "persistent://t/east/ns/a"})
    owner = find_stated_owner(parse_ledger_metadata(metadata))
    path = "managed-ledgers/t/east/ns/persistent/a/__compaction"
    assert owner == StatedOwner(PulsarComponent.COMPACTED_LEDGER, path)


@pytest.mark.parametrize(
    "custom",
    [
        {},
        {"application": "bk-stream-storage-service"},
        {"component": "managed-ledger", "pulsar/managed-ledger": "t/ns/persistent/a"},
        {"application": "pulsar"},
        {"application": "pulsar", "component": "ledger-of-tomorrow"},
        {"application": "pulsar", "component": "managed-ledger"},
        {"application": "pulsar", "component": "schema"},
        {"application": "pulsar", "component": "compacted-ledger", "pulsar/compactedTopic": "t/ns/a"},
        {"application": "pulsar", "component": "compacted-ledger", "pulsar/compactedTopic": "non-persistent://t/ns/a"},
        {"application": "pulsar", "component": "compacted-ledger", "pulsar/compactedTopic": "persistent://t/a"},
        {"application": "pulsar", "component": "delayed-index-bucket", "pulsar/delayedIndexBucketKey": "1_2"},
        {"application": "pulsar", "component": b"\xff"},
        {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": ""},
        {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": "t/ns"},
        {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": "t/ns/persistent/.."},
        {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": "t/ns/persistent/a/sub"},
        {"application": "pulsar", "component": "schema", "pulsar/schemaId": "t/ns"},
    ],
)
def test_a_ledger_whose_owner_is_not_fully_stated_has_none(custom: dict[str, str | bytes]) -> None:
    """Such a ledger may belong to anybody, so it is never a candidate."""
    assert find_stated_owner(parse_ledger_metadata(ledger_metadata(custom=custom))) is None
