"""A small store in which every promise is kept, as evidence; tests break it in one place each."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from tests.soak.audit.evidence import PRIMARY, RECORDS, TIERED, Entry, Evidence, Operation, ledger_prefix
from tests.soak.scene import CONSUMED, DELAYED, HELD, LISTS, PLAIN, SOUGHT, SOURCE, SPARE

NOW_S = 1_000_000.0
Rows = dict[str, list[dict[str, Any]]]
_SPARED = {31: 7, 33: 7, 35: 8, 36: 8}  # topic ids by ledger
_OFFERED = f"{SPARE}offered-1"


def ledger(ledger_id: int, list_id: int, entries: int) -> dict[str, Any]:
    """A row of a listed ledger."""
    return {"ledger_id": ledger_id, "list_id": list_id, "place": ledger_id, "state": "OPEN", "entries": entries}


def op(
    kind: str, answer: Mapping[str, Any] | None = None, *, end: str = "done", at_s: float = NOW_S, **asked: Any
) -> Operation:
    """A question, and its answer a moment later."""
    ended_s = None if end == "unknown" else at_s + 0.1
    return Operation(
        op=f"{kind} {asked}", kind=kind, asked=asked, asked_s=at_s, end=end, ended_s=ended_s, answer=answer or {}
    )


def honest() -> Evidence:
    """What is left of a soak, and the same once more by a catalog that was rebuilt."""
    seen = _found()
    seen.rebuilt = replace(_found(), is_rebuilt=True)
    return seen


def _found() -> Evidence:
    """Ledgers 1 (plain), 2 and 3 (lists), 4 (source), 5 (delayed, tiered only), 6 (a bucket); ledger 9 was deleted.

    Of topic 7 ledger 31 lost its tiered copy, 32 was ended and 33 is needed; of topic 8 ledger 34 was ended, 35 is
    not offered, and 36 is needed.
    """
    tables, entries = _tables(), _entries()
    stored = {
        f"{ledger_prefix(row['ledger_id'])}{row['number']:08d}.parquet": row["size_bytes"]
        for row in tables["segment"]
        if row["ledger_id"] != 5
    }
    stored |= {f"{ledger_prefix(one)}aa.meta.json": 1 for one in (1, 2, 3, 4, 6, *_SPARED)}
    recorded = {("ledger", one): True for one in (*range(1, 7), *_SPARED)}
    recorded |= {("topic", one): True for one in (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 14)}
    return Evidence(
        tables=tables,
        objects={PRIMARY: {**stored, "theirs": 5}, TIERED: {"u-ledger-5": 9, "u-ledger-5-index": 9}, RECORDS: {}},
        planted={(PRIMARY, "theirs"): "digest"},
        planted_now={(PRIMARY, "theirs"): "digest"},
        uploads=[],
        entries=entries,
        buckets={6: [(5, 1)]},
        acknowledged={
            (1, CONSUMED): ((1, 0), frozenset()),
            (4, CONSUMED): ((4, 0), frozenset()),
            (5, CONSUMED): ((5, 0), frozenset()),
            (5, SOUGHT): ((5, 0), frozenset()),
            **{(topic_id, CONSUMED): ((-1, -1), frozenset()) for topic_id in (2, 3, 11, 12, 13, 14)},
            **{(topic_id, HELD): ((-1, -1), frozenset()) for topic_id in (2, 3, 4, 14)},
        },
        contents={},
        seen={1: [((1, 0), "a"), ((1, 1), "b")], 2: [((2, 0), "t")]},
        recorded={
            **recorded,
            **{("ledger", one): False for one in (9, 32, 34)},
        },
        shipped=dict(recorded),
        replica=deepcopy(tables),
        ops=_ops(),
        received=[
            _received(PLAIN[0], CONSUMED, [1, 0], [1, 1]),
            _received(DELAYED[0], CONSUMED, [5, 0]),
            _received(DELAYED[0], SOUGHT, [5, 0]),
        ],
        reads=[_read(LISTS[0], [[2, 0, "t"]]), _read(LISTS[1], [[3, 0, "t"]])],
        faults=[],
        steps=[],
        fences=[(NOW_S, 0, 1, "w"), (NOW_S + 1, 0, 2, "v")],
        owners={0: "v"},
        failed_workflows=[],
        waits=[],
        exits={"worker 0": 0},
        ended_s=NOW_S + 10,
    )


def _received(topic: str, subscription: str, *positions: list[int]) -> dict[str, Any]:
    said = {"topic": topic, "subscription": subscription, "positions": positions}
    return {**said, "wall": NOW_S, "clock_ms": NOW_S * 1e3, "client": 0}


def _read(topic: str, elements: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {"topic": topic, "begins": [-1, -1], "began": NOW_S, "ended": NOW_S + 0.1, "elements": elements}


def _times(decided_s: float) -> dict[str, float]:
    return {"decided_us": decided_s * 1e6, "finished_us": (decided_s + 1) * 1e6}


def _tables() -> Rows:
    names = {1: PLAIN[0], 2: LISTS[0], 3: LISTS[1], 4: SOURCE, 5: DELAYED[0]}
    names |= {7: f"{SPARE}1", 8: _OFFERED, 11: PLAIN[1], 12: PLAIN[2], 13: DELAYED[1], 14: LISTS[2]}
    tables: Rows = {
        "topic": [{"topic_id": number, "name": name} for number, name in names.items()],
        "ledger_list": [
            {"list_id": number, "topic_id": number, "component": "MANAGED_LEDGER"} for number in range(1, 6)
        ]
        + [{"list_id": 6, "topic_id": 5, "component": "DELAYED_INDEX"}]
        + [{"list_id": number, "topic_id": number, "component": "MANAGED_LEDGER"} for number in (7, 8)],
        "ledger": [
            ledger(1, 1, 2),
            ledger(2, 2, 3),
            ledger(3, 3, 3),
            ledger(4, 4, 2),
            ledger(5, 5, 2),
            ledger(6, 6, 1),
            *(ledger(one, topic_id, 1) for one, topic_id in _SPARED.items()),
        ],
        "segment": [
            {"ledger_id": one, "number": 0, "first_entry": 0, "entries": count, "size_bytes": 100 + one}
            for one, count in ((1, 2), (2, 3), (3, 3), (4, 2), (5, 2), (6, 1), *((one, 1) for one in _SPARED))
        ],
        "ledger_copy": [
            {"ledger_id": one, "kind": "LEDGER", "state": "LIVE", "context": "{}"} for one in (1, 2, 3, 4, 6, *_SPARED)
        ],
        "pending_deletion": [
            {
                "ledger_id": 9,
                "copy": "LEDGER",
                "generation": 1,
                "state": "DELETED",
                "outcome": "DELETED",
                "last_error": None,
                "context": {},
                "durable": 1,
            }
        ],
        "tombstone": [
            {"kind": "ledger", "id": 9, "topic_id": 1, "list_id": 1, "component": "MANAGED_LEDGER", "generation": 1}
        ],
        "transaction": [
            {"tc_id": 0, "sequence": 1, "state": "COMMITTED", **_times(NOW_S - 5)},
            {"tc_id": 0, "sequence": 2, "state": "ABORTED", **_times(NOW_S - 5)},
        ],
        "delayed_index": [{"topic_id": 5, "version": 1, "sealed_ledger": 5, "sealed_entry": 1}],
        "delayed_bucket": [{"ledger_id": 6, "topic_id": 5}],
        "transaction_participant": [],
        "transaction_snapshot": [],
        "record_outbox": [],
        "schema_version": [],
        "cursor": [],
        "producer_sequence": [],
        "buffer_range": [],
        "buffer_hidden": [],
    }
    tables["ledger_copy"].append(
        {"ledger_id": 5, "kind": "OFFLOADED_LEDGER", "state": "LIVE", "context": {"uuid": "u"}}
    )
    return tables


def _entries() -> dict[int, dict[tuple[int, int], Entry]]:
    kept, gone = "0:1", "0:2"
    each = {
        at: {
            (at, 0): Entry(payload="t", txn=kept),
            (at, 1): Entry(payload="", txn=kept, marker="COMMIT"),
            (at, 2): Entry(payload="", txn=gone, marker="ABORT"),
        }
        for at in (2, 3)
    }
    return {
        1: {(1, 0): Entry(payload="a"), (1, 1): Entry(payload="b")},
        **each,
        4: {(4, 0): Entry(payload="c"), (4, 1): Entry(payload="d")},
        7: {(31, 0): Entry(payload="g"), (33, 0): Entry(payload="i")},
        8: {(35, 0): Entry(payload="k"), (36, 0): Entry(payload="l")},
        5: {(5, 0): Entry(payload="e"), (5, 1): Entry(payload="f", deliver_at_ms=round((NOW_S + 3_600) * 1e3))},
    }


def _spare(name: str, consumed: int, topic_id: int, payloads: Mapping[int, str]) -> Operation:
    entries = [[ledger_id, 0, payload] for ledger_id, payload in payloads.items()]
    return op("spare", {"topic_id": topic_id, "entries": entries}, topic=name, consumed=consumed, kept=True)


def _ops() -> list[Operation]:
    both = ["LEDGER", "OFFLOADED_LEDGER"]
    asked: dict[str, Any] = {"topic": f"{SPARE}1", "durable": True}
    far_ms = round((NOW_S + 3_600) * 1e3)
    return [
        op("append", {"first": [1, 0], "duplicates": 0}, topic=PLAIN[0], payloads=["a", "b"]),
        op("append", {"error": "StoreUnavailable"}, end="failed", topic=PLAIN[0], payloads=["refused"]),
        op("acknowledge", topic=PLAIN[0], positions=[[1, 0]]),
        op("append", {"first": [4, 0], "duplicates": 0}, topic=SOURCE, payloads=["c", "d"]),
        op("append", {"first": [2, 0], "duplicates": 0}, topic=LISTS[0], payloads=["t"], txn="0:1"),
        op("append", {"first": [3, 0], "duplicates": 0}, topic=LISTS[1], payloads=["t"], txn="0:1"),
        op("acknowledge", topic=SOURCE, positions=[[4, 0]], txn="0:1"),
        op("acknowledge", topic=SOURCE, positions=[[4, 1]], txn="0:2"),
        op("commit", {"state": "COMMITTED"}, txn="0:1"),
        op("abort", {"state": "ABORTED"}, txn="0:2"),
        op(
            "append",
            {"first": [5, 0], "duplicates": 0},
            topic=DELAYED[0],
            payloads=["e", "f"],
            deliver_at_ms=[None, far_ms],
        ),
        op("seek", topic=DELAYED[0], subscription=SOUGHT, to=[5, 0]),
        op("acknowledge", topic=DELAYED[0], subscription=CONSUMED, positions=[[5, 0]]),
        op("acknowledge", topic=DELAYED[0], subscription=SOUGHT, positions=[[5, 0]]),
        _spare(f"{SPARE}1", 0, 7, {31: "g", 32: "h", 33: "i"}),
        *(
            op("operate", {"refused": ledger_id == 33}, **asked, ledger=ledger_id, remove=remove, pass_over=passed)
            for ledger_id, remove, passed in ((31, both[1:], []), (32, both, [CONSUMED]), (33, both, []))
        ),
        _spare(_OFFERED, 2, 8, {34: "j", 35: "k", 36: "l"}),
        op("end-records", {"refused": False, "stopped": False}, topic=_OFFERED, durable=True),
        op("delete-ledgers", {"refused": False}, topic="x", ledgers=[9], durable=True),
        op("delete-topic", {"refused": False}, topic="y", topic_id=77, durable=True),
    ]
