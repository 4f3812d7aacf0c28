"""Promise 4: every participant shows all of a committed transaction and nothing of an aborted one."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.soak.audit.evidence import ClientOperation, EntryPosition, Evidence
from tests.soak.soak_setup import CONSUMING_SUBSCRIPTION, LIST_TOPICS, SOURCE_TOPIC

_CLOCK_TOLERANCE_S = 0.05
"""Tolerance between readings of this machine's clock by the database and by clients."""

_STATE_BY_END = {"commit": "COMMITTED", "abort": "ABORTED"}


@dataclass
class _Transaction:
    """Operations of one transaction."""

    appends: list[ClientOperation] = field(default_factory=list)
    acknowledgements: list[ClientOperation] = field(default_factory=list)
    end: ClientOperation | None = None


def check_transactions(evidence: Evidence) -> Iterator[str]:
    """Check transactions at the end of the soak, in the log, and at every read."""
    transactions = _transactions(evidence)
    markers = _read_markers(evidence)
    for txn, transaction in sorted(transactions.items()):
        yield from _check_transaction(evidence, txn, transaction, markers)
    for txn, row in sorted(evidence.states.items()):
        if row["state"] not in _STATE_BY_END.values():
            yield f"transaction {txn} is {row['state']} for ever"
    for row in evidence.rows("transaction_participant"):
        if row["settled_us"] is None:
            yield f"transaction {row['tc_id']}:{row['sequence']} was never told to {row['topic']} {row['subscription']}"
    yield from _check_reads(evidence)


def _transactions(evidence: Evidence) -> dict[str, _Transaction]:
    transactions: dict[str, _Transaction] = defaultdict(_Transaction)
    for op in evidence.operations_of_kind("append", "acknowledge", "commit", "abort"):
        if "txn" not in op.asked:
            continue
        transaction = transactions[op.asked["txn"]]
        if op.kind == "append":
            transaction.appends.append(op)
        elif op.kind == "acknowledge":
            transaction.acknowledgements.append(op)
        else:
            transaction.end = op
    return transactions


def _read_markers(evidence: Evidence) -> dict[tuple[str, int], set[str]]:
    """Return the markers in each log, by transaction and topic."""
    markers: dict[tuple[str, int], set[str]] = defaultdict(set)
    for topic_id, entries in evidence.entries.items():
        for entry in entries.values():
            if entry.marker is not None and entry.txn is not None:
                markers[entry.txn, topic_id].add(entry.marker)
    return markers


def _check_transaction(
    evidence: Evidence, txn: str, transaction: _Transaction, markers: Mapping[tuple[str, int], set[str]]
) -> Iterator[str]:
    row = evidence.states.get(txn)
    if row is None:
        yield f"transaction {txn} was begun, and there is none"
        return
    state = row["state"]
    end = transaction.end
    if end and end.end == "done" and end.answer["state"] != state:
        yield f"transaction {txn} was answered as {end.answer['state']}, and is {state}"
    if end is None and state == "COMMITTED":
        yield f"transaction {txn} is COMMITTED, and nobody asked for that"
    for op in transaction.appends:
        topic_id = evidence.topics.get(op.asked["topic"], -1)
        entries = evidence.entries.get(topic_id, {})
        for position, payload in op.stored:
            if position not in entries or entries[position].payload != payload or entries[position].txn != txn:
                yield f"{op.asked['topic']}: {position} was answered for {txn}, and is not its"
            verb = "COMMIT" if state == "COMMITTED" else "ABORT"
            if markers.get((txn, topic_id), set()) != {verb}:
                marker_verbs = sorted(markers.get((txn, topic_id), ()))
                yield f"{op.asked['topic']}: transaction {txn} is {state}, and the log says {marker_verbs}"
    yield from _check_acknowledgements(evidence, txn, state, transaction)


def _check_acknowledgements(evidence: Evidence, txn: str, state: str, transaction: _Transaction) -> Iterator[str]:
    topic_id = evidence.topics.get(SOURCE_TOPIC, -1)
    if (topic_id, CONSUMING_SUBSCRIPTION) not in evidence.acknowledged:
        return
    for op in transaction.acknowledgements:
        for ledger_id, entry_id in op.asked["positions"]:
            is_acknowledged = evidence.is_acknowledged(topic_id, CONSUMING_SUBSCRIPTION, (ledger_id, entry_id))
            if is_acknowledged and state == "ABORTED":
                yield f"{SOURCE_TOPIC}: {(ledger_id, entry_id)} is acknowledged by transaction {txn}, which was aborted"
            if not is_acknowledged and state == "COMMITTED" and op.end == "done":
                yield f"{SOURCE_TOPIC}: {(ledger_id, entry_id)} was acknowledged in transaction {txn}, and is not"


def _effective_times_s(evidence: Evidence) -> dict[str, float]:
    """Return when the end of each transaction was in force: answered, or sent to its participants.

    The decision's own time is that of its statement, before the commit of SQL.
    """
    effect_s = {txn: row["finished_us"] / 1e6 for txn, row in evidence.states.items() if row["finished_us"] is not None}
    for op in evidence.operations_of_kind("commit", "abort"):
        if op.end == "done" and op.ended_s is not None:
            effect_s[op.asked["txn"]] = min(op.ended_s, effect_s.get(op.asked["txn"], op.ended_s))
    return effect_s


def _check_reads(evidence: Evidence) -> Iterator[str]:
    """Check each read: nothing undecided or aborted, and all that was committed before it began."""
    decided = {txn: row["decided_us"] / 1e6 for txn, row in evidence.states.items() if row["decided_us"] is not None}
    effective = _effective_times_s(evidence)
    logs: dict[str, list[tuple[EntryPosition, str]]] = {}  # of each list, its transactional entries in order
    for name in LIST_TOPICS:
        entries = evidence.entries.get(evidence.topics.get(name, -1), {})
        logs[name] = [
            (position, e.txn) for position, e in sorted(entries.items()) if e.txn is not None and e.marker is None
        ]
    for read in evidence.reads:
        read_positions = {(element[0], element[1]) for element in read["elements"]}
        is_blocked = False
        for position, txn in logs[read["topic"]]:
            decided_s, effective_s = (times_s.get(txn, float("inf")) for times_s in (decided, effective))
            if position in read_positions and (
                decided_s > read["ended"] + _CLOCK_TOLERANCE_S or not evidence.is_committed(txn)
            ):
                reason = "not decided" if decided_s > read["ended"] else "aborted"
                yield f"{read['topic']}: {position} of {txn} was read, and {reason}"
            is_blocked = is_blocked or effective_s > read["began"] - _CLOCK_TOLERANCE_S
            is_behind = position >= (read["begins"][0], read["begins"][1])
            if is_behind and not is_blocked and position not in read_positions and evidence.is_committed(txn):
                yield f"{read['topic']}: {position} of {txn} was committed before a read that does not have it"
