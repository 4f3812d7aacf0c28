"""The comparison against a slow one in sets: every finding of it, and none beside them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from logstore.positions import LedgerId
from logstore.reconciliation.plausibility_guards import CopyOverlap
from spark.reconciliation.compare_shard_group import (
    ComparisonLimits,
    GroupComparison,
    Ids,
    ShardGroup,
    compare_shard_group,
    find_foreign_objects,
)
from spark.reconciliation.fact_files import COPIES, INTENTS, LEDGERS, OBJECTS, STRANGE, TIERED_OBJECTS, YOUNG

_OLD, _NOW, _NEW = 100, 500, 900
_STORE = "http://here:8333"
_LIMITS = ComparisonLimits(
    before_us=_NOW,
    rows_before_us=_NOW,
    next_ledger_id=50,
    bucket="p",
    tiered_buckets=frozenset({"t"}),
    endpoints=frozenset({"", _STORE}),
)


@dataclass
class World:
    """Both sides, as rows."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    tiered: list[dict[str, Any]] = field(default_factory=list)
    ledgers: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    intents: list[dict[str, Any]] = field(default_factory=list)
    segments: dict[int, dict[int, int]] = field(default_factory=dict)  # ledger -> number -> size
    asked: list[int] = field(default_factory=list)

    def read_segments(self, ids: Ids) -> pa.Table:
        """As the catalog answers."""
        self.asked += ids.tolist()
        rows = [(one, n, size) for one in ids.tolist() for n, size in self.segments.get(one, {}).items()]
        names = ("ledger_id", "number", "size_bytes")
        return pa.table({name: _int64([row[at] for row in rows]) for at, name in enumerate(names)})

    def compared(self) -> GroupComparison:
        """By the code under test."""
        sides = {
            "objects": (self.objects, OBJECTS),
            "tiered": (self.tiered, TIERED_OBJECTS),
            "ledgers": (self.ledgers, LEDGERS),
            "copies": (self.copies, COPIES),
            "intents": (self.intents, INTENTS),
        }
        tables = {name: pa.Table.from_pylist(rows, schema=schema) for name, (rows, schema) in sides.items()}
        return compare_shard_group(ShardGroup(**tables, read_segments=self.read_segments), _LIMITS)

    def found(self) -> set[tuple[str, int, str]]:
        """Kinds, ledgers and keys of the candidates."""
        return {(row["kind"], row["ledger_id"], row["key"]) for row in self.compared().candidates.to_pylist()}


def _int64(values: Any) -> pa.Array:
    return pa.array(np.array(values, np.int64))


def _object(ledger_id: int, number: int, *, digest: int = 0, size: int = 10, at: int = _OLD) -> dict[str, Any]:
    return {"ledger_id": ledger_id, "number": number, "digest": digest, "size_bytes": size, "modified_us": at}


def _ledger(ledger_id: int, segments: dict[int, int], **more: Any) -> dict[str, Any]:
    row = {
        "ledger_id": ledger_id, "list_id": 1, "digest": 7, "creating": False, "primary": 2, "referenced": True,
        "segments": len(segments), "last_segment": max(segments, default=-1), "size_bytes": sum(segments.values()),
        "created_us": _OLD, "differs_from_segments": False, "moment": _moment(segments) if len(segments) > 1 else -1,
    }  # fmt: skip
    return row | more


def _moment(sizes: dict[int, int]) -> int:
    return sum((number + 1) ** 2 * size for number, size in sizes.items())


def _whole(world: World, ledger_id: int, segments: dict[int, int], **more: Any) -> None:
    world.ledgers.append(_ledger(ledger_id, segments, **more))
    world.segments[ledger_id] = segments
    world.objects += [_object(ledger_id, -1, digest=7), *(_object(ledger_id, n, size=s) for n, s in segments.items())]


def _meta(ledger_id: int, digest: int) -> str:
    return f"{ledger_prefix(LedgerId(ledger_id))}{digest:016x}.meta.json"


@st.composite
def _worlds(draw: st.DrawFn) -> World:
    """Small ones, in which nearly everything may be wrong with a ledger."""
    world = World()
    for ledger_id in draw(st.lists(st.integers(0, 60), max_size=5, unique=True)):
        segments = draw(st.dictionaries(st.integers(0, 4), st.integers(1, 3), max_size=4))
        stored = draw(st.dictionaries(st.integers(0, 4), st.integers(1, 3), max_size=4) | st.just(segments))
        times = st.sampled_from([_OLD, _OLD, _NEW, YOUNG])
        world.objects += [_object(ledger_id, n, size=size, at=draw(times)) for n, size in stored.items()]
        digests = draw(st.sets(st.sampled_from([7, 8]), max_size=2))
        world.objects += [_object(ledger_id, -1, digest=digest, at=draw(times)) for digest in digests]
        if draw(st.booleans()):
            row = {
                "creating": draw(st.booleans()),
                "primary": draw(st.sampled_from([0, 1, 2, 2])),
                "referenced": draw(st.booleans()),
                "created_us": draw(st.sampled_from([_OLD, _NEW])),
                "differs_from_segments": draw(st.booleans()),
            }
            world.ledgers.append(_ledger(ledger_id, segments, **row))
            world.segments[ledger_id] = segments
        if draw(st.booleans()):
            state, created = draw(st.sampled_from(["PENDING", "DEAD_LETTERED"])), draw(st.sampled_from([_OLD, _NEW]))
            world.intents.append(_intent(ledger_id, state, stalled=draw(st.booleans()), created_us=created))
    draw(st.randoms()).shuffle(world.objects)
    return world


def _intent(ledger_id: int, state: str, *, copy: str = "LEDGER", uuid: str = "", **more: Any) -> dict[str, Any]:
    row = {"ledger_id": ledger_id, "row_id": ledger_id, "copy": copy, "uuid": uuid, "state": state}
    return {**row, "stalled": False, "topic": "", "size_bytes": 0, "created_us": _OLD, **more}


def _expected(world: World) -> set[tuple[str, int, str]]:  # noqa: C901 - each rule once
    """The rules of DESIGN section 6, a ledger at a time."""
    found: set[tuple[str, int, str]] = set()
    intents = {one["ledger_id"]: one for one in world.intents}
    rows = {one["ledger_id"]: one for one in world.ledgers}
    for row_id, one in intents.items():
        if one["stalled"] and one["created_us"] < _NOW:
            found.add(("stalled_deletion", row_id, ""))
    for ledger_id in {one["ledger_id"] for one in world.objects} | set(rows):
        objects = [one for one in world.objects if one["ledger_id"] == ledger_id]
        row, intent, prefix = rows.get(ledger_id), intents.get(ledger_id), ledger_prefix(LedgerId(ledger_id))
        lonely = row is not None and not row["referenced"] and not row["creating"] and row["created_us"] < _NOW
        if lonely:
            found.add(("unreferenced_ledger", ledger_id, ""))
        if row and row["differs_from_segments"] and not lonely and not row["creating"] and row["created_us"] < _NOW:
            found.add(("missing_data", ledger_id, ""))
        if row and row["primary"]:
            found |= _of_held(ledger_id, objects, row, world.segments[ledger_id], skipped=lonely)
            continue
        if row and not lonely and not row["creating"] and row["created_us"] < _NOW:
            found.add(("missing_data", ledger_id, ""))
        if objects and all(one["modified_us"] < _NOW for one in objects):
            if intent and intent["state"] == "PENDING":
                continue
            is_contradicted = intent or ledger_id >= _LIMITS.next_ledger_id
            if is_contradicted or not row:  # what a row names is damaged, and no orphan
                found.add(("mismatch" if is_contradicted else "orphan_ledger", ledger_id, prefix))
    return found


def _of_held(  # noqa: C901 - each rule once
    ledger_id: int, objects: list[dict[str, Any]], row: dict[str, Any], segments: dict[int, int], *, skipped: bool
) -> set[tuple[str, int, str]]:
    found: set[tuple[str, int, str]] = set()
    old_row = row["created_us"] < _NOW and not row["creating"] and row["primary"] == 2
    if not objects:
        return {("missing_data", ledger_id, ledger_prefix(LedgerId(ledger_id)))} if old_row and not skipped else set()
    held = {one["number"]: one["size_bytes"] for one in objects if one["number"] >= 0}
    agree = (
        not row["differs_from_segments"]
        and _sums(held) == _sums(segments)
        and len(segments) == max(segments, default=-1) + 1
    )  # then it is not read closer
    for one in objects:
        key = segment_key(LedgerId(ledger_id), max(one["number"], 0))
        if one["number"] == -1:
            if one["digest"] != 7 and one["modified_us"] < _NOW:
                found.add(("mismatch", ledger_id, _meta(ledger_id, one["digest"])))
        elif skipped or agree:
            continue
        elif one["number"] not in segments:
            if one["modified_us"] < _NOW:
                found.add(("orphan_segment", ledger_id, key))
        elif one["size_bytes"] < segments[one["number"]] and row["created_us"] < _NOW:
            found.add(("missing_data", ledger_id, key))
        elif one["size_bytes"] > segments[one["number"]] and one["modified_us"] < _NOW:
            found.add(("mismatch", ledger_id, key))
    if old_row and not any(one["digest"] == 7 for one in objects):
        found.add(("missing_data", ledger_id, _meta(ledger_id, 7)))
    stored = {one["number"] for one in objects}
    if row["created_us"] < _NOW and not skipped and not agree:
        lost = set(segments) - stored
        found |= {("missing_data", ledger_id, segment_key(LedgerId(ledger_id), n)) for n in lost}
    return found


def _sums(sizes: dict[int, int]) -> tuple[int, int, int, int]:
    return len(sizes), max(sizes, default=-1), sum(sizes.values()), _moment(sizes)


@settings(max_examples=300)
@given(_worlds())
def test_comparison_finds_what_the_rules_say_and_nothing_else(world: World) -> None:
    known = {one["ledger_id"] for one in world.objects} & {one["ledger_id"] for one in world.ledgers}
    assert (world.found(), world.compared().primary.matched) == (_expected(world), len(known))


def test_ledgers_that_are_too_young_are_counted() -> None:
    """Whatever is missing of them: a plan must be able to say of how many it says nothing."""
    world = World()
    world.ledgers += [_ledger(at, {0: 1}, created_us=created) for at, created in ((1, _OLD), (2, _NOW), (3, _NEW))]
    assert world.compared().young == 2


def test_ledgers_whose_objects_a_listing_must_show_are_counted() -> None:
    """Published ones that are old: neither newborns nor what lives in tiered storage alone."""
    world = World()
    world.ledgers += [_ledger(at, {0: 1}, created_us=created) for at, created in ((1, _OLD), (2, _NOW))]
    world.ledgers += [_ledger(3, {}, creating=True, primary=1), _ledger(4, {0: 1}, primary=0), _ledger(5, {0: 1})]
    assert world.compared().expected == 2


def test_ledger_whose_sums_agree_is_not_read_segment_by_segment() -> None:
    world = World()
    _whole(world, 3, {0: 5, 1: 6})
    _whole(world, 4, {})
    assert (world.found(), world.asked) == (set(), [])


@pytest.mark.parametrize(("stored", "short", "long"), [({0: 6, 1: 5}, 1, 0), ({0: 4, 1: 7}, 0, 1)])
def test_segments_of_which_one_is_longer_by_what_another_lacks_are_found(
    stored: dict[int, int], short: int, long: int
) -> None:
    """Two that changed places, and one that lost bytes to its neighbour: number, last and sum of sizes agree."""
    world = World()
    _whole(world, 3, {0: 5, 1: 6})
    world.objects = [_object(3, -1, digest=7), *(_object(3, n, size=size) for n, size in stored.items())]
    key = {number: segment_key(LedgerId(3), number) for number in stored}
    assert world.found() == {("missing_data", 3, key[short]), ("mismatch", 3, key[long])}


def test_ledger_with_a_gap_in_its_numbers_is_read_closer() -> None:
    world = World()
    _whole(world, 3, {0: 5, 2: 6})
    assert (world.found(), world.asked) == (set(), [3])


@pytest.mark.parametrize(
    ("state", "kinds"), [("PENDING", set()), ("DEAD_LETTERED", {"mismatch"}), (None, {"orphan_offload"})]
)
def test_tiered_objects_of_no_context(state: str | None, kinds: set[str]) -> None:
    world = World(tiered=[_tiered("u1", part) for part in ("data", "index")])
    if state:
        world.intents.append(_intent(3, state, copy="OFFLOADED_LEDGER", uuid="u1"))
    rows = world.compared().candidates.to_pylist()
    assert {(row["kind"], row["key"], row["objects"]) for row in rows} == {(kind, "u1-ledger-3", 2) for kind in kinds}


def _tiered(uuid: str, part: str, at: int = _OLD) -> dict[str, Any]:
    return {"ledger_id": 3, "bucket": "t", "uuid": uuid, "part": part, "size_bytes": 4, "modified_us": at}


def _copy(**more: Any) -> dict[str, Any]:
    row = {"ledger_id": 3, "bucket": "t", "endpoint": "", "uuid": "u1", "state": "LIVE"}
    return row | {"created_us": _OLD, "size_bytes": 4, "data_bytes": 4, "index_bytes": 4} | more


@pytest.mark.parametrize(
    ("tiered", "copy", "keys"),
    [
        ([_tiered("u1", "data"), _tiered("u1", "index")], {}, set()),
        ([_tiered("u1", "data")], {}, {"u1-ledger-3-index"}),
        ([], {}, {"u1-ledger-3", "u1-ledger-3-index"}),
        ([], {"state": "WRITING"}, set()),
        ([], {"bucket": "elsewhere"}, set()),
        ([], {"endpoint": "http://elsewhere"}, set()),
        ([_tiered("u1", "index")], {"endpoint": f"{_STORE}/"}, {"u1-ledger-3"}),
        ([], {"uuid": ""}, set()),
        ([], {"created_us": _NEW}, set()),
    ],
)
def test_tiered_copy_that_is_named_and_absent(tiered: list[Any], copy: dict[str, Any], keys: set[str]) -> None:
    world = World(tiered=tiered, copies=[_copy(**copy)])
    assert world.found() == {("missing_data", 3, key) for key in keys}


@pytest.mark.parametrize(
    ("copy", "found", "unmeasured"),
    [
        ({}, set(), 0),
        ({"data_bytes": 5}, {("missing_data", "u1-ledger-3", 1, 4)}, 0),
        ({"index_bytes": 5}, {("missing_data", "u1-ledger-3-index", 1, 4)}, 0),
        (
            {"data_bytes": 3, "index_bytes": 9},
            {("mismatch", "u1-ledger-3", 1, 4), ("missing_data", "u1-ledger-3-index", 1, 4)},
            0,
        ),
        ({"data_bytes": None, "index_bytes": None}, set(), 1),
        ({"data_bytes": 5, "state": "WRITING"}, set(), 0),
        ({"data_bytes": 5, "created_us": _NEW}, set(), 0),
        ({"data_bytes": 5, "bucket": "elsewhere"}, set(), 0),
    ],
)
def test_tiered_object_of_another_length_than_its_context_states(
    copy: dict[str, Any], found: set[tuple[str, str, int, int]], unmeasured: int
) -> None:
    """The finding has the length that was found, which a HEAD has to confirm; a copy without lengths is counted."""
    compared = World(tiered=[_tiered("u1", "data"), _tiered("u1", "index")], copies=[_copy(**copy)]).compared()
    rows = compared.candidates.to_pylist()
    assert {(row["kind"], row["key"], row["objects"], row["size_bytes"]) for row in rows} == found
    assert all("its offload context says: expected " in row["detail"] for row in rows)
    assert compared.unmeasured == unmeasured


def test_upload_that_nobody_finished_is_an_orphan_without_objects() -> None:
    world = World(tiered=[_tiered("u9", "upload"), _tiered("u8", "upload", at=YOUNG)])
    rows = world.compared().candidates.to_pylist()
    assert [(row["kind"], row["uuid"], row["objects"], row["detail"]) for row in rows] == [
        ("orphan_offload", "u9", 0, "an unfinished upload: no context names it")
    ]


def test_strange_object_is_foreign_once_it_is_old() -> None:
    rows = [{"bucket": "p", "key": key, "size_bytes": 1, "modified_us": at} for key, at in (("x", _OLD), ("y", _NEW))]
    found = find_foreign_objects(pa.Table.from_pylist(rows, schema=STRANGE), _LIMITS).to_pylist()
    assert [(row["kind"], row["key"]) for row in found] == [("foreign", "x")]


@pytest.mark.parametrize(
    ("place", "elsewhere"), [({}, 0), ({"bucket": "old"}, 1), ({"endpoint": "https://s3.example"}, 1)]
)
def test_copy_that_stands_where_nothing_was_listed_is_counted(place: dict[str, str], elsewhere: int) -> None:
    found = World(tiered=[_tiered("u1", "data"), _tiered("u1", "index")], copies=[_copy(**place)]).compared()
    assert (found.candidates.num_rows, found.elsewhere) == (0, elsewhere)


@pytest.mark.parametrize(
    ("sides", "kind"),
    [
        ({"copies": [_copy(uuid="")]}, "mismatch"),
        ({"intents": [_intent(3, "PENDING", copy="OFFLOADED_LEDGER")]}, "mismatch"),
        ({"copies": [_copy(uuid="", ledger_id=4)]}, "orphan_offload"),
    ],
)
def test_tiered_object_that_an_unreadable_context_may_name_is_no_orphan(sides: dict[str, Any], kind: str) -> None:
    world = World(tiered=[_tiered("u1", "data"), _tiered("u1", "index")], **sides)
    assert world.found() == {(kind, 3, "u1-ledger-3")}


def test_ledger_whose_owner_the_catalog_cannot_tell_has_no_wrong_statement_and_lost_none() -> None:
    world = World()
    _whole(world, 3, {0: 5}, digest=0)
    assert world.found() == set()


def test_object_that_is_listed_twice_counts_once_and_is_as_young_as_it_may_be() -> None:
    world = World()
    _whole(world, 3, {0: 5, 1: 5})
    world.objects += [_object(3, 0, size=5), _object(4, 0), _object(4, 0, at=_NEW), _object(5, 1), _object(5, 1)]
    rows = world.compared().candidates.to_pylist()
    assert [(row["kind"], row["ledger_id"], row["objects"], row["size_bytes"]) for row in rows] == [
        ("orphan_ledger", 5, 1, 10)
    ]
    assert world.asked == []


def test_object_that_is_listed_twice_does_not_hide_one_that_is_absent() -> None:
    world = World()
    _whole(world, 3, {0: 5, 1: 5, 2: 5})
    world.objects = [one for one in world.objects if one["number"] != 1] + [_object(3, 0, size=5)]
    assert world.found() == {("missing_data", 3, segment_key(LedgerId(3), 1))}


@pytest.mark.parametrize("at", [_NEW, YOUNG])
def test_object_that_is_young_or_of_unknown_age_is_never_a_finding(at: int) -> None:
    """Whatever is wrong with it; a row that it falls short of is old, and tells of lost data."""
    world = World(tiered=[_tiered("u1", "data", at=at), _tiered("u1", "index"), _tiered("u2", "upload", at=at)])
    _whole(world, 4, {0: 5})
    world.objects += [_object(5, 0), _object(5, 1, at=at), _object(60, 0, at=at)]  # no ledger's; of no id yet
    world.objects += [_object(4, 7, at=at), _object(4, -1, digest=8, at=at)]  # no segment's; another's statement
    world.ledgers.append(_ledger(6, {0: 5}))
    world.segments[6] = {0: 5}
    world.objects += [_object(6, -1, digest=7), _object(6, 0, size=50, at=at)]  # longer than its row
    assert world.found() == set()


@pytest.mark.parametrize(
    ("copies", "kinds"), [([], {("missing_data", "")}), ([_copy()], {("orphan_ledger", ledger_prefix(LedgerId(3)))})]
)
def test_ledger_that_lost_the_rows_of_its_copies_is_damage_and_no_orphan(copies: list[Any], kinds: set[Any]) -> None:
    """One that lives in tiered storage may have strays in the primary bucket, which are asked about once more."""
    world = World(tiered=[_tiered("u1", "data"), _tiered("u1", "index")] if copies else [], copies=copies)
    world.ledgers.append(_ledger(3, {0: 5}, primary=0))
    world.objects += [_object(3, -1, digest=7), _object(3, 0, size=5)]
    rows = world.compared().candidates.to_pylist()
    assert {(row["kind"], row["key"]) for row in rows} == kinds
    assert [row["objects"] for row in rows] == [2]


@pytest.mark.parametrize(
    ("copies", "named", "matched"),
    [
        ([_copy()], 1, 1),
        ([_copy(uuid="U1")], 1, 0),  # a case is never folded
        ([_copy(uuid="")], 0, 0),
        ([_copy(state="WRITING")], 0, 1),
        ([_copy(bucket="elsewhere")], 0, 1),
    ],
)
def test_overlap_of_each_kind_of_copy_is_counted_apart(copies: list[Any], named: int, matched: int) -> None:
    """A ledger that is offloaded has no primary copy, and an upload alone is no copy."""
    world = World(tiered=[_tiered("u1", "data"), _tiered("u1", "index"), _tiered("u7", "upload")], copies=copies)
    world.ledgers.append(_ledger(3, {0: 5}, primary=0))
    found = world.compared()
    assert found.primary == CopyOverlap(stored=0, named=0, matched=0)
    assert found.tiered == CopyOverlap(stored=1, named=named, matched=matched)


def test_ledger_that_lacks_rows_of_segments_is_read_closer_though_its_sums_agree() -> None:
    """Its row counts what storage holds; the object whose row is lost is a candidate, and so is the ledger."""
    world = World()
    _whole(world, 3, {0: 5, 1: 6})
    world.ledgers[0]["differs_from_segments"] = True
    world.segments[3] = {0: 5}
    assert world.found() == {("missing_data", 3, ""), ("orphan_segment", 3, segment_key(LedgerId(3), 1))}
