"""What a bucket is to a catalog, as a table, and what is said where it is refused."""

import pytest

from logstore.errors import CatalogMismatch
from logstore.identity.bucket_markers import (
    MARKER_KEY,
    BucketRole,
    MarkerState,
    NamedBucket,
    compare_marker,
    describe_named_catalog,
    marker_content,
    mismatch_error,
)
from logstore.log.ledger_object_keys import owner_digest_from_key, segment_number_from_key

OURS, THEIRS = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
PRIMARY = NamedBucket(role=BucketRole.PRIMARY, bucket="logs", address="http://127.0.0.1:8333")
TIERED = NamedBucket(role=BucketRole.TIERED, bucket="cold", address="")
RECORDS = NamedBucket(role=BucketRole.RECORDS, bucket="records", address="")

_NOTHING: frozenset[tuple[BucketRole, str]] = frozenset()
_LOGS, _OLD = frozenset({(BucketRole.PRIMARY, "logs")}), frozenset({(BucketRole.PRIMARY, "old-logs")})


@pytest.mark.parametrize(
    ("found", "named", "marked", "standing"),
    [
        (OURS, PRIMARY, _NOTHING, MarkerState.OURS),  # a process died before it recorded the marker
        (OURS, PRIMARY, _LOGS, MarkerState.OURS),
        (OURS, PRIMARY, _OLD, MarkerState.OURS),  # moved, marker and all
        (
            OURS,
            PRIMARY,
            frozenset({(BucketRole.TIERED, "logs")}),
            MarkerState.OURS,
        ),  # one bucket for both, from the beginning
        (OURS, PRIMARY, _OLD | {(BucketRole.TIERED, "logs")}, MarkerState.ELSEWHERE),  # it was marked, and not for this
        (
            OURS,
            RECORDS,
            frozenset({(BucketRole.RECORDS, "old"), (BucketRole.PRIMARY, "records")}),
            MarkerState.ELSEWHERE,
        ),
        (OURS, TIERED, frozenset({(BucketRole.TIERED, "old"), (BucketRole.PRIMARY, "cold")}), MarkerState.OURS),
        (THEIRS, PRIMARY, _NOTHING, MarkerState.FOREIGN),
        (THEIRS, PRIMARY, _LOGS, MarkerState.FOREIGN),
        (THEIRS, TIERED, _NOTHING, MarkerState.FOREIGN),
        (None, PRIMARY, _LOGS, MarkerState.LOST),
        (None, PRIMARY, _LOGS | _OLD, MarkerState.LOST),
        (None, PRIMARY, _OLD, MarkerState.ELSEWHERE),
        (None, PRIMARY, frozenset({(BucketRole.TIERED, "logs")}), MarkerState.UNMARKED),
        (None, PRIMARY, _NOTHING, MarkerState.UNMARKED),
        (None, TIERED, frozenset({(BucketRole.TIERED, "cold")}), MarkerState.LOST),
        (
            None,
            TIERED,
            frozenset({(BucketRole.TIERED, "older")}),
            MarkerState.UNMARKED,
        ),  # tiered copies stand in several
        (None, RECORDS, frozenset({(BucketRole.RECORDS, "other")}), MarkerState.ELSEWHERE),
    ],
)
def test_judge_compares_the_marker_with_what_was_recorded(
    found: str | None, named: NamedBucket, marked: frozenset[tuple[BucketRole, str]], standing: MarkerState
) -> None:
    """The whole rule; only a bucket that carries our id, or of whose role none was ever marked, may be used."""
    assert compare_marker(found, catalog_id=OURS, bucket=named, marked_buckets=marked) is standing
    refused = mismatch_error(standing, found, catalog_id=OURS, bucket=named, marked_buckets=marked)
    assert isinstance(refused, CatalogMismatch) is (standing not in {MarkerState.OURS, MarkerState.UNMARKED})


@pytest.mark.parametrize(
    ("standing", "found", "marked", "words"),
    [
        (MarkerState.FOREIGN, THEIRS, _LOGS, ["primary bucket logs at http://127.0.0.1:8333", OURS, THEIRS]),
        (MarkerState.LOST, None, _LOGS, ["logs at http://127.0.0.1:8333", OURS, "no marker", "another store answers"]),
        (MarkerState.ELSEWHERE, None, _OLD, ["bucket logs", OURS, "this catalog's primary bucket is old-logs"]),
        (
            MarkerState.ELSEWHERE,
            OURS,
            _OLD | {(BucketRole.TIERED, "logs")},
            ["found the marker of its tiered bucket", "this catalog's primary bucket is old-logs"],
        ),
    ],
)
def test_refusal_names_bucket_endpoint_expected_and_found(
    standing: MarkerState, found: str | None, marked: frozenset[tuple[BucketRole, str]], words: list[str]
) -> None:
    """An operator can tell which setting is wrong."""
    told = str(mismatch_error(standing, found, catalog_id=OURS, bucket=PRIMARY, marked_buckets=marked))
    assert [word for word in words if word not in told] == []


def test_refusal_of_a_tiered_bucket_says_that_two_need_two_names() -> None:
    """Markers are kept by name: a second bucket of one name, at another endpoint, looks like one that lost its own."""
    marked = frozenset({(BucketRole.TIERED, "cold")})
    told = str(mismatch_error(MarkerState.LOST, None, catalog_id=OURS, bucket=TIERED, marked_buckets=marked))
    assert "two tiered buckets need two names, also where they are at two endpoints" in told
    assert "two names" not in str(
        mismatch_error(MarkerState.LOST, None, catalog_id=OURS, bucket=PRIMARY, marked_buckets=_LOGS)
    )


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (marker_content(OURS), OURS),
        (b'{"catalog_id": "x", "more": 1}', "x"),  # later releases may say more
        (b'{"catalog": "x"}', 'unreadable (\'{"catalog": "x"}\')'),
        (b"[]", "unreadable ('[]')"),
        (b"[" * 100_000, f"unreadable ('{'[' * 80}')"),
        (b"\xff", "unreadable ('\N{REPLACEMENT CHARACTER}')"),
    ],
)
def test_marker_is_read_back_and_a_damaged_one_is_nobodys(content: bytes, found: str) -> None:
    """What cannot be read is never this catalog's, and never absent."""
    assert describe_named_catalog(content) == found


def test_marker_key_is_no_ledgers() -> None:
    """No listing of ledgers meets it."""
    assert not [role for role in BucketRole if role.matches_key(MARKER_KEY)]
    assert owner_digest_from_key(MARKER_KEY) is None
    assert segment_number_from_key(MARKER_KEY) is None


@pytest.mark.parametrize(
    ("role", "key", "holds"),
    [
        (BucketRole.PRIMARY, "ledgers/00/0000000000000000/00000000.parquet", True),
        (BucketRole.PRIMARY, "another-application/ledgers/00/x", False),
        (BucketRole.TIERED, "01234567-89ab-4cde-8f01-23456789abcd-ledger-7", True),
        (BucketRole.TIERED, "01234567-89ab-4cde-8f01-23456789abcd-ledger-7-index", True),
        (BucketRole.TIERED, "readme-ledger-x", False),
        (BucketRole.RECORDS, "records/blocks/1.parquet", True),
        (BucketRole.REPLICA, "records/blocks/1.parquet", True),
    ],
)
def test_role_knows_the_keys_that_a_catalog_writes(role: BucketRole, key: str, holds: bool) -> None:
    """These make a bucket without a marker somebody's."""
    assert role.matches_key(key) is holds


def test_a_catalog_may_have_several_tiered_buckets_and_replicas() -> None:
    """Of the others it has one for ever."""
    assert [role for role in BucketRole if not role.is_single] == [BucketRole.TIERED, BucketRole.REPLICA]
