"""Comparison of two scans: what is unreferenced in both is a candidate, and what is referenced in the end is none."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import PreconditionFailed
from logstore.pulsar.cluster_findings import Hazard
from logstore.pulsar.ledger_verdicts import AgeFloors
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.reconciliation.findings import FindingKind
from spark.pulsar.cluster_facts import LEDGERS, REFERENCES, require_all_rows
from spark.pulsar.compare_scans import (
    HazardCount,
    ScanComparison,
    ScanGroup,
    compare_scan_groups,
    make_problems_of_references,
    require_comparable_scans,
)

_NOW_MS = 1_000 * 86_400_000
_TOPIC = "managed-ledgers/t/ns/persistent/a"


def ledger(ledger_id: int, **changes: Any) -> dict[str, Any]:
    row = {
        "ledger_id": ledger_id,
        "version": 1,
        "czxid": 1_000 + ledger_id,
        "created_ms": _NOW_MS - 20 * 86_400_000,
        "modified_ms": _NOW_MS - 10 * 86_400_000,
        "state": "CLOSED",
        "size_bytes": 500,
        "application": "pulsar",
        "component": "managed-ledger",
        "owner": _TOPIC,
    }
    return row | changes


def reference(ledger_id: int, *, can_be_absent: bool = False, given_up: bool = False) -> dict[str, Any]:
    return {
        "ledger_id": ledger_id,
        "path": _TOPIC,
        "source": "ledgers",
        "is_owner": True,
        "can_be_absent": can_be_absent or given_up,
        "given_up": given_up,
    }


def scan(ledgers: Sequence[dict[str, Any]], references: Sequence[dict[str, Any]] = ()) -> ScanGroup:
    return ScanGroup(
        pa.Table.from_pylist(list(ledgers), schema=LEDGERS), pa.Table.from_pylist(list(references), schema=REFERENCES)
    )


def compare(first: ScanGroup, second: ScanGroup, locked: Sequence[int] = ()) -> ScanComparison:
    return compare_scan_groups(
        first, second, np.array(locked, np.int64), root="ledgers", now_ms=_NOW_MS, floors=AgeFloors()
    )


def orphans(comparison: ScanComparison) -> list[int | None]:
    return [found.ledger_id for found in comparison.findings if found.kind is FindingKind.ORPHAN_LEDGER]


def test_a_ledger_that_neither_scan_refers_to_is_a_candidate() -> None:
    both = scan([ledger(3), ledger(1), ledger(2)], [reference(2)])
    comparison = compare(both, both)
    assert orphans(comparison) == [1, 3]
    found = comparison.findings[0]
    assert (found.key, found.size_bytes, found.statement["owner"]) == ("/ledgers/00/0000/L0001", 500, _TOPIC)
    assert (found.statement["version"], found.statement["czxid"]) == ("1", "1001")


@pytest.mark.parametrize("number", [0, 1])
def test_a_reference_in_either_scan_keeps_the_ledger(number: int) -> None:
    first, second = (scan([ledger(1)], [reference(1)] if number == each else []) for each in (0, 1))
    comparison = compare(first, second)
    assert not comparison.findings
    assert comparison.counts["transient"] == 0


def test_a_ledger_that_its_owner_gave_up_is_a_candidate_unless_another_reference_or_scan_needs_it() -> None:
    ledgers = [ledger(1), ledger(2), ledger(3)]
    first = scan(ledgers, [reference(1, given_up=True), reference(2, given_up=True), reference(3)])
    second = scan(ledgers, [reference(1, given_up=True), reference(2), reference(2, given_up=True)])
    comparison = compare(first, scan(ledgers, [*second.references.to_pylist(), reference(3, given_up=True)]))
    assert orphans(comparison) == [1]
    copied = scan([ledger(1, owner=f"{_TOPIC}-before")], [reference(1, given_up=True)])
    assert compare(copied, copied).findings == [], "a topic that is not the owner gave it up"
    absent = scan([], [reference(1, given_up=True)])
    assert compare(absent, absent).findings == [], "a broker has deleted it"


@pytest.mark.parametrize("number", [0, 1])
def test_a_ledger_in_one_scan_only_is_counted_as_transient(number: int) -> None:
    first, second = (scan([ledger(1)] if number == each else []) for each in (0, 1))
    comparison = compare(first, second)
    assert (comparison.findings, comparison.counts["transient"]) == ([], 1)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"version": 2}, "changed"),
        ({"czxid": 7}, "changed"),
        ({"modified_ms": _NOW_MS - 3_000_000}, "young"),
        ({"state": "OPEN", "modified_ms": _NOW_MS - 7_200_000}, "young"),
    ],
)
def test_a_ledger_that_is_young_or_changed_is_counted_only(change: dict[str, Any], verdict: str) -> None:
    comparison = compare(scan([ledger(1)]), scan([ledger(1, **change)]))
    assert (comparison.findings, comparison.counts[verdict]) == ([], 1)


def test_a_locked_ledger_is_counted_only() -> None:
    comparison = compare(scan([ledger(1), ledger(2)]), scan([ledger(1), ledger(2)]), locked=[2])
    assert (orphans(comparison), comparison.counts["replicated"]) == ([1], 1)


def test_a_ledger_of_an_unknown_owner_is_reported_and_no_candidate() -> None:
    foreign = ledger(1, component="", owner="", application="bk-stream-storage-service")
    unreadable = ledger(2, component="", owner="", application="", state="")
    both = scan([foreign, unreadable])
    comparison = compare(both, both)
    assert [found.kind for found in comparison.findings] == [FindingKind.UNATTRIBUTED_LEDGER] * 2
    assert comparison.findings[0].statement["application"] == "bk-stream-storage-service"


def test_a_reference_to_nothing_is_told_unless_it_is_harmless() -> None:
    both = scan([ledger(1)], [reference(1), reference(2), reference(3, can_be_absent=True)])
    comparison = compare(both, both)
    (found,) = comparison.findings
    assert (found.kind, found.ledger_id, found.key) == (FindingKind.DANGLING_REFERENCE, 2, f"/{_TOPIC}")
    assert comparison.counts["harmless"] == 1
    assert not compare(scan([], []), both).counts["dangling_reference"], (
        "a reference of one scan only may be one of a moment"
    )
    elsewhere = scan([ledger(1)], [reference(1), reference(2) | {"path": "schemas/t/ns/a"}])
    assert not compare(elsewhere, both).counts["dangling_reference"], "and so may the same ledger in another znode"


def test_ledgers_of_others_are_hazards() -> None:
    """Each application is counted, and so are ledgers of logs. Those of a topic without metadata are usual."""
    others = [
        ledger(number, application=name, component="", owner="")
        for number, name in enumerate(("table", "", "", "table", "pulsar"), start=1)
    ]
    log = reference(2) | {"path": "pulsar/functions/a/<default>/ledgers/logrecs_1", "source": "log_segment"}
    both = scan([*others, ledger(6)], [log, reference(3), reference(6)])
    assert compare(both, both).hazards == {
        (Hazard.FOREIGN_APPLICATION, "table"): HazardCount(2, 1_000),
        (Hazard.LOG_LEDGERS, ""): HazardCount(1, 500),
    }


def test_files_with_other_rows_than_were_counted_are_refused() -> None:
    """A late attempt of a task replaced one, or an executor does not see it: references would be missing."""
    counts = {"ledgers": 9, "references": 7, "groups": 2}
    require_all_rows("scan 1", {"ledgers": 9, "references": 7}, counts)
    for kind in ("ledgers", "references"):
        with pytest.raises(PreconditionFailed, match=f"scan 1: expected . {kind} in its files, found 6"):
            require_all_rows("scan 1", {"ledgers": 9, "references": 7} | {kind: 6}, counts)


def summary(begun_s: int, ended_s: int, *, identity: str = "a/1/2", root: str = "ledgers") -> BulkJobSummary:
    counts = {"begun_ms": begun_s * 1_000, "ended_ms": ended_s * 1_000}
    return BulkJobSummary(counts=counts, facts={"identity": identity, "ledgers_root": root})


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (summary(699, 800), "between the scans, found 599 s"),
        (summary(50, 800), "between the scans, found -50 s"),
        (summary(700, 800, identity="a/1/3"), "scan 2: expected the cluster a/1/2 of scan 1, found a/1/3"),
        (summary(700, 800, root="other"), 'scan 2: expected a scan of the ledgers below "/ledgers"'),
    ],
)
def test_scans_that_cannot_be_compared_are_refused(second: BulkJobSummary, words: str) -> None:
    first = summary(0, 100)
    require_comparable_scans(first, summary(700, 800), between_s=600, ledgers_root="ledgers")
    with pytest.raises(PreconditionFailed, match=words):
        require_comparable_scans(first, second, between_s=600, ledgers_root="ledgers")


_EVENTS = st.lists(st.tuples(st.sampled_from(["create", "attach", "detach", "delete", "leak"]), st.integers(0, 9)))


@settings(max_examples=300, deadline=None)
@given(st.lists(_EVENTS, min_size=4, max_size=4))
def test_churn_makes_no_candidate_of_what_is_referenced_in_the_end(pieces: list[list[tuple[str, int]]]) -> None:
    """A ledger exists before its reference, and loses the reference before it goes; each scan reads ledgers first.

    Whatever happens before each of the four reads, a candidate is not referenced at the last of them, and what was
    leaked before the first one is a candidate.
    """
    existing, referenced, leaked = set[int](), set[int](), set[int]()
    ids = iter(range(1, 1_000))
    by_slot: dict[int, int] = {}

    def play(events: list[tuple[str, int]]) -> None:
        for verb, slot in events:
            ledger_id = by_slot.get(slot)
            if verb == "create" and ledger_id is None:
                by_slot[slot] = next(ids)
                existing.add(by_slot[slot])
            elif verb == "attach" and ledger_id in existing - leaked:
                referenced.add(ledger_id)
            elif verb == "detach" and ledger_id in referenced:
                referenced.discard(ledger_id)
                leaked.add(ledger_id)  # a crash before the deletion, unless that follows
            elif verb == "delete" and ledger_id in leaked:
                existing.discard(ledger_id)
                leaked.discard(ledger_id)
                del by_slot[slot]

    scans, leaked_before = [], set[int]()
    for number in (0, 1):
        play(pieces[2 * number])
        leaked_before = leaked_before if number else set(leaked)
        seen = [ledger(each) for each in sorted(existing)]
        play(pieces[2 * number + 1])
        scans.append(scan(seen, [reference(each) for each in sorted(referenced)]))
    candidates = set(orphans(compare(scans[0], scans[1])))
    assert not candidates & referenced
    assert leaked_before & existing <= candidates


@pytest.mark.parametrize(
    ("dangling", "existing", "is_problem"), [(11, 100, True), (10, 0, False), (11, 209, False), (11, 208, True)]
)
def test_many_missing_ledgers_are_a_problem(dangling: int, existing: int, is_problem: bool) -> None:
    """Ledgers that may be absent do not count: they are absent in a healthy cluster, too."""
    ids = range(dangling + existing)
    both = scan(
        [ledger(each) for each in ids[dangling:]],
        [*map(reference, ids), *(reference(1_000 + each, can_be_absent=True) for each in ids)],
    )
    problems = make_problems_of_references(compare(both, both).counts)
    assert bool(problems) is is_problem
    assert all("pulsar_ledgers_root" in reason for reason in problems.values())
