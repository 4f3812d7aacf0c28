"""A small store in which every promise is kept, as evidence; tests break it in one place each."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from tests.soak.audit.evidence import PRIMARY, RECORDS, TIERED, ClientOperation, Evidence, LogEntry, ledger_prefix
from tests.soak.soak_setup import (
    CONSUMING_SUBSCRIPTION,
    DELAYED_TOPICS,
    HOLDING_SUBSCRIPTION,
    LIST_TOPICS,
    PLAIN_TOPICS,
    SOUGHT_SUBSCRIPTION,
    SOURCE_TOPIC,
    SPARE_TOPIC_PREFIX,
)

NOW_S = 1_000_000.0
Rows = dict[str, list[dict[str, Any]]]
_TOPIC_BY_SPARE_LEDGER = {31: 7, 33: 7, 35: 8, 36: 8}  # topic ids by ledger
_OFFERED_TOPIC = f"{SPARE_TOPIC_PREFIX}offered-1"


def ledger_row(ledger_id: int, list_id: int, entries: int) -> dict[str, Any]:
    """A row of a listed ledger."""
    return {"ledger_id": ledger_id, "list_id": list_id, "place": ledger_id, "state": "OPEN", "entries": entries}


def make_operation(
    kind: str, answer: Mapping[str, Any] | None = None, *, end: str = "done", at_s: float = NOW_S, **request: Any
) -> ClientOperation:
    """A question, and its answer a moment later."""
    ended_s = None if end == "unknown" else at_s + 0.1
    return ClientOperation(
        op=f"{kind} {request}",
        kind=kind,
        asked=request,
        requested_s=at_s,
        end=end,
        ended_s=ended_s,
        answer=answer or {},
    )


def make_flawless_evidence() -> Evidence:
    """What is left of a soak, and the same once more by a catalog that was rebuilt."""
    evidence = _make_evidence()
    evidence.rebuilt = replace(_make_evidence(), is_rebuilt=True)
    return evidence


def _make_evidence() -> Evidence:
    """Ledgers 1 (plain), 2 and 3 (lists), 4 (source), 5 (delayed, tiered only), 6 (a bucket); ledger 9 was deleted.

    Of topic 7 ledger 31 lost its tiered copy, 32 was ended and 33 is needed; of topic 8 ledger 34 was ended, 35 is
    not offered, and 36 is needed.
    """
    tables, entries = _catalog_tables(), _entries_by_topic()
    stored = {
        f"{ledger_prefix(row['ledger_id'])}{row['number']:08d}.parquet": row["size_bytes"]
        for row in tables["segment"]
        if row["ledger_id"] != 5
    }
    stored |= {f"{ledger_prefix(number)}aa.meta.json": 1 for number in (1, 2, 3, 4, 6, *_TOPIC_BY_SPARE_LEDGER)}
    recorded = {("ledger", number): True for number in (*range(1, 7), *_TOPIC_BY_SPARE_LEDGER)}
    recorded |= {("topic", number): True for number in (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 14)}
    return Evidence(
        tables=tables,
        objects={PRIMARY: {**stored, "theirs": 5}, TIERED: {"u-ledger-5": 9, "u-ledger-5-index": 9}, RECORDS: {}},
        planted={(PRIMARY, "theirs"): "digest"},
        foreign_digests_at_end={(PRIMARY, "theirs"): "digest"},
        uploads=[],
        entries=entries,
        buckets={6: [(5, 1)]},
        acknowledged={
            (1, CONSUMING_SUBSCRIPTION): ((1, 0), frozenset()),
            (4, CONSUMING_SUBSCRIPTION): ((4, 0), frozenset()),
            (5, CONSUMING_SUBSCRIPTION): ((5, 0), frozenset()),
            (5, SOUGHT_SUBSCRIPTION): ((5, 0), frozenset()),
            **{(topic_id, CONSUMING_SUBSCRIPTION): ((-1, -1), frozenset()) for topic_id in (2, 3, 11, 12, 13, 14)},
            **{(topic_id, HOLDING_SUBSCRIPTION): ((-1, -1), frozenset()) for topic_id in (2, 3, 4, 14)},
        },
        contents={},
        seen={1: [((1, 0), "a"), ((1, 1), "b")], 2: [((2, 0), "t")]},
        recorded={
            **recorded,
            **{("ledger", number): False for number in (9, 32, 34)},
        },
        shipped=dict(recorded),
        replica=deepcopy(tables),
        ops=_operations(),
        received=[
            _delivery(PLAIN_TOPICS[0], CONSUMING_SUBSCRIPTION, [1, 0], [1, 1]),
            _delivery(DELAYED_TOPICS[0], CONSUMING_SUBSCRIPTION, [5, 0]),
            _delivery(DELAYED_TOPICS[0], SOUGHT_SUBSCRIPTION, [5, 0]),
        ],
        reads=[_list_read(LIST_TOPICS[0], [[2, 0, "t"]]), _list_read(LIST_TOPICS[1], [[3, 0, "t"]])],
        faults=[],
        steps=[],
        fences=[(NOW_S, 0, 1, "w"), (NOW_S + 1, 0, 2, "v")],
        owners={0: "v"},
        failed_workflows=[],
        waits=[],
        exits={"worker 0": 0},
        ended_s=NOW_S + 10,
    )


def _delivery(topic: str, subscription: str, *positions: list[int]) -> dict[str, Any]:
    delivery = {"topic": topic, "subscription": subscription, "positions": positions}
    return {**delivery, "wall": NOW_S, "clock_ms": NOW_S * 1e3, "client": 0}


def _list_read(topic: str, elements: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {"topic": topic, "begins": [-1, -1], "began": NOW_S, "ended": NOW_S + 0.1, "elements": elements}


def _transaction_times(decided_s: float) -> dict[str, float]:
    return {"decided_us": decided_s * 1e6, "finished_us": (decided_s + 1) * 1e6}


def _catalog_tables() -> Rows:
    names = {1: PLAIN_TOPICS[0], 2: LIST_TOPICS[0], 3: LIST_TOPICS[1], 4: SOURCE_TOPIC, 5: DELAYED_TOPICS[0]}
    names |= {
        7: f"{SPARE_TOPIC_PREFIX}1",
        8: _OFFERED_TOPIC,
        11: PLAIN_TOPICS[1],
        12: PLAIN_TOPICS[2],
        13: DELAYED_TOPICS[1],
        14: LIST_TOPICS[2],
    }
    tables: Rows = {
        "topic": [{"topic_id": number, "name": name} for number, name in names.items()],
        "ledger_list": [
            {"list_id": number, "topic_id": number, "component": "MANAGED_LEDGER"} for number in range(1, 6)
        ]
        + [{"list_id": 6, "topic_id": 5, "component": "DELAYED_INDEX"}]
        + [{"list_id": number, "topic_id": number, "component": "MANAGED_LEDGER"} for number in (7, 8)],
        "ledger": [
            ledger_row(1, 1, 2),
            ledger_row(2, 2, 3),
            ledger_row(3, 3, 3),
            ledger_row(4, 4, 2),
            ledger_row(5, 5, 2),
            ledger_row(6, 6, 1),
            *(ledger_row(ledger_id, topic_id, 1) for ledger_id, topic_id in _TOPIC_BY_SPARE_LEDGER.items()),
        ],
        "segment": [
            {"ledger_id": ledger_id, "number": 0, "first_entry": 0, "entries": count, "size_bytes": 100 + ledger_id}
            for ledger_id, count in (
                (1, 2),
                (2, 3),
                (3, 3),
                (4, 2),
                (5, 2),
                (6, 1),
                *((ledger_id, 1) for ledger_id in _TOPIC_BY_SPARE_LEDGER),
            )
        ],
        "ledger_copy": [
            {"ledger_id": ledger_id, "kind": "LEDGER", "state": "LIVE", "context": "{}"}
            for ledger_id in (1, 2, 3, 4, 6, *_TOPIC_BY_SPARE_LEDGER)
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
            {"tc_id": 0, "sequence": 1, "state": "COMMITTED", **_transaction_times(NOW_S - 5)},
            {"tc_id": 0, "sequence": 2, "state": "ABORTED", **_transaction_times(NOW_S - 5)},
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


def _entries_by_topic() -> dict[int, dict[tuple[int, int], LogEntry]]:
    committed, aborted = "0:1", "0:2"
    list_entries = {
        ledger_id: {
            (ledger_id, 0): LogEntry(payload="t", txn=committed),
            (ledger_id, 1): LogEntry(payload="", txn=committed, marker="COMMIT"),
            (ledger_id, 2): LogEntry(payload="", txn=aborted, marker="ABORT"),
        }
        for ledger_id in (2, 3)
    }
    return {
        1: {(1, 0): LogEntry(payload="a"), (1, 1): LogEntry(payload="b")},
        **list_entries,
        4: {(4, 0): LogEntry(payload="c"), (4, 1): LogEntry(payload="d")},
        7: {(31, 0): LogEntry(payload="g"), (33, 0): LogEntry(payload="i")},
        8: {(35, 0): LogEntry(payload="k"), (36, 0): LogEntry(payload="l")},
        5: {(5, 0): LogEntry(payload="e"), (5, 1): LogEntry(payload="f", deliver_at_ms=round((NOW_S + 3_600) * 1e3))},
    }


def _spare_operation(name: str, consumed: int, topic_id: int, payloads: Mapping[int, str]) -> ClientOperation:
    entries = [[ledger_id, 0, payload] for ledger_id, payload in payloads.items()]
    return make_operation("spare", {"topic_id": topic_id, "entries": entries}, topic=name, consumed=consumed, kept=True)


def _operations() -> list[ClientOperation]:
    both_copies = ["LEDGER", "OFFLOADED_LEDGER"]
    operate_request: dict[str, Any] = {"topic": f"{SPARE_TOPIC_PREFIX}1", "durable": True}
    far_ms = round((NOW_S + 3_600) * 1e3)
    return [
        make_operation("append", {"first": [1, 0], "duplicates": 0}, topic=PLAIN_TOPICS[0], payloads=["a", "b"]),
        make_operation(
            "append", {"error": "StoreUnavailable"}, end="failed", topic=PLAIN_TOPICS[0], payloads=["refused"]
        ),
        make_operation("acknowledge", topic=PLAIN_TOPICS[0], positions=[[1, 0]]),
        make_operation("append", {"first": [4, 0], "duplicates": 0}, topic=SOURCE_TOPIC, payloads=["c", "d"]),
        make_operation("append", {"first": [2, 0], "duplicates": 0}, topic=LIST_TOPICS[0], payloads=["t"], txn="0:1"),
        make_operation("append", {"first": [3, 0], "duplicates": 0}, topic=LIST_TOPICS[1], payloads=["t"], txn="0:1"),
        make_operation("acknowledge", topic=SOURCE_TOPIC, positions=[[4, 0]], txn="0:1"),
        make_operation("acknowledge", topic=SOURCE_TOPIC, positions=[[4, 1]], txn="0:2"),
        make_operation("commit", {"state": "COMMITTED"}, txn="0:1"),
        make_operation("abort", {"state": "ABORTED"}, txn="0:2"),
        make_operation(
            "append",
            {"first": [5, 0], "duplicates": 0},
            topic=DELAYED_TOPICS[0],
            payloads=["e", "f"],
            deliver_at_ms=[None, far_ms],
        ),
        make_operation("seek", topic=DELAYED_TOPICS[0], subscription=SOUGHT_SUBSCRIPTION, to=[5, 0]),
        make_operation("acknowledge", topic=DELAYED_TOPICS[0], subscription=CONSUMING_SUBSCRIPTION, positions=[[5, 0]]),
        make_operation("acknowledge", topic=DELAYED_TOPICS[0], subscription=SOUGHT_SUBSCRIPTION, positions=[[5, 0]]),
        _spare_operation(f"{SPARE_TOPIC_PREFIX}1", 0, 7, {31: "g", 32: "h", 33: "i"}),
        *(
            make_operation(
                "operate",
                {"refused": ledger_id == 33},
                **operate_request,
                ledger=ledger_id,
                remove=remove,
                pass_over=passed,
            )
            for ledger_id, remove, passed in (
                (31, both_copies[1:], []),
                (32, both_copies, [CONSUMING_SUBSCRIPTION]),
                (33, both_copies, []),
            )
        ),
        _spare_operation(_OFFERED_TOPIC, 2, 8, {34: "j", 35: "k", 36: "l"}),
        make_operation("end-records", {"refused": False, "stopped": False}, topic=_OFFERED_TOPIC, durable=True),
        make_operation("delete-ledgers", {"refused": False}, topic="x", ledgers=[9], durable=True),
        make_operation("delete-topic", {"refused": False}, topic="y", topic_id=77, durable=True),
    ]
