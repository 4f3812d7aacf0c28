"""Comparison of a listing of offloads with two scans: a uuid in any offload of either scan is in use."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.reconciliation.findings import Finding, FindingKind
from spark.pulsar.cluster_facts import OFFLOADS
from spark.pulsar.compare_offloads import OffloadGroup, find_candidates
from spark.reconciliation.fact_files import TIERED_OBJECTS, YOUNG

_BEFORE_US = 1_000_000
_TOPIC = "t/ns/persistent/a"


def listed(uuid: str, part: str = "data", **changes: Any) -> dict[str, Any]:
    row = {"ledger_id": 7, "bucket": "tiered", "uuid": uuid, "part": part, "size_bytes": 100, "modified_us": 5}
    return row | changes


def pair(uuid: str, **changes: Any) -> list[dict[str, Any]]:
    return [listed(uuid, part, **changes) for part in ("data", "index")]


def offload(uuid: str, **changes: Any) -> dict[str, Any]:
    row = {
        "ledger_id": 7,
        "managed_ledger": _TOPIC,
        "uuid": uuid,
        "complete": True,
        "bookkeeper_deleted": True,
        "bucket": "tiered",
        "is_segment": False,
    }
    return row | changes


def compare(
    objects: Sequence[dict[str, Any]],
    first: Sequence[dict[str, Any]] = (),
    second: Sequence[dict[str, Any]] | None = None,
    uuids_elsewhere: Collection[str] = (),
) -> tuple[list[Finding], Counter[str]]:
    """Compare; without `second` both scans are the same."""
    group = OffloadGroup(
        pa.Table.from_pylist(list(objects), schema=TIERED_OBJECTS),
        pa.Table.from_pylist(list(first), schema=OFFLOADS),
        pa.Table.from_pylist(list(first if second is None else second), schema=OFFLOADS),
    )
    counts = Counter[str]()

    def find_in_use(uuids: pa.ChunkedArray) -> pa.ChunkedArray:
        return pa.chunked_array([[uuid for uuid in uuids.to_pylist() if uuid in uuids_elsewhere]], pa.string())

    return list(find_candidates(group, "tiered", _BEFORE_US, find_in_use, counts)), counts


def test_an_old_pair_that_nothing_names_is_a_candidate_with_the_size_of_both_objects() -> None:
    (candidate,), _ = compare([*pair("a"), *pair("b")], [offload("b")])
    assert (candidate.kind, candidate.uuid, candidate.ledger_id) == (FindingKind.ORPHAN_OFFLOAD, "a", 7)
    assert (candidate.key, candidate.objects, candidate.size_bytes) == ("a-ledger-7", 2, 200)
    assert (candidate.newest_us, candidate.bucket) == (5, "tiered")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("changes", [{"complete": False}, {"bucket": "other"}, {"is_segment": True}, {"ledger_id": 9}])
def test_any_offload_of_either_scan_keeps_the_objects(number: int, changes: dict[str, Any]) -> None:
    scans = [[offload("a", **changes)] if number == each else [] for each in (0, 1)]
    candidates, _ = compare(pair("a"), scans[0], scans[1])
    assert not [each for each in candidates if each.kind is FindingKind.ORPHAN_OFFLOAD]


def test_an_offload_of_a_ledger_in_another_group_keeps_the_objects() -> None:
    assert compare(pair("a"), uuids_elsewhere={"a"})[0] == []


@pytest.mark.parametrize("modified_us", [_BEFORE_US, YOUNG])
def test_a_pair_with_a_young_object_is_counted_only(modified_us: int) -> None:
    candidates, counts = compare([listed("a"), listed("a", "index", modified_us=modified_us)])
    assert (candidates, counts["young"]) == ([], 1)


def test_an_upload_is_a_candidate_of_its_own_whose_owner_is_known_by_its_ledger() -> None:
    retried = [offload("b", complete=False, bookkeeper_deleted=False)]
    (orphan, upload), _ = compare([listed("a"), listed("a", "upload", size_bytes=0)], retried)
    assert (orphan.kind, upload.kind) == (FindingKind.ORPHAN_OFFLOAD, FindingKind.ABANDONED_UPLOAD)
    assert upload.statement == {"owner": f"managed-ledgers/{_TOPIC}"}
    assert not orphan.statement, "the object itself states its owner"
    shadow = offload("b", managed_ledger="t/ns/persistent/shadow")
    (upload,), _ = compare([listed("a", "upload"), *pair("b")], [*retried, shadow])
    assert upload.statement == {}, "two managed ledgers list the ledger"


@pytest.mark.parametrize("objects", [[], [listed("a")], [listed("a", "index")], [listed("a", "upload")]])
def test_a_complete_offload_of_both_scans_that_lacks_an_object_is_a_candidate(objects: list[dict[str, Any]]) -> None:
    (candidate,), _ = compare(objects, [offload("a")])
    assert (candidate.kind, candidate.key) == (FindingKind.DANGLING_REFERENCE, f"/managed-ledgers/{_TOPIC}")
    (candidate,), _ = compare(objects, [offload("a", bookkeeper_deleted=False)])
    assert candidate.kind is FindingKind.HAZARD


@pytest.mark.parametrize("changes", [{"complete": False}, {"bucket": "other"}, {"bucket": ""}, {"is_segment": True}])
def test_an_offload_that_is_not_complete_or_elsewhere_needs_no_objects(changes: dict[str, Any]) -> None:
    candidates, counts = compare([], [offload("a", **changes)])
    assert (candidates, counts["elsewhere"]) == ([], int("bucket" in changes))


def test_an_offload_that_was_complete_in_one_scan_only_needs_no_objects() -> None:
    assert compare([], [offload("a", complete=False)], [offload("a")])[0] == []


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["data", "index", "upload"]))), st.data())
def test_no_uuid_of_a_scan_is_ever_unreferenced(objects: list[tuple[str, str]], data: st.DataObject) -> None:
    scans = [data.draw(st.sets(st.sampled_from("abcdef"))) for _ in range(2)]
    first, second = ([offload(uuid, complete=False) for uuid in sorted(scan)] for scan in scans)
    candidates, _ = compare([listed(*each) for each in objects], first, second)
    assert {each.uuid for each in candidates} == {uuid for uuid, _ in objects} - scans[0] - scans[1]
