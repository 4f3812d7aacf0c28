"""Promise 4: every participant shows all of a committed transaction and nothing of an aborted one."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.soak.audit.evidence import At, Evidence, Operation
from tests.soak.scene import CONSUMED, LISTS, SOURCE

_CLOCK_TOLERANCE_S = 0.05
"""Tolerance between readings of this machine's clock by the database and by clients."""

_ENDS = {"commit": "COMMITTED", "abort": "ABORTED"}


@dataclass
class _Transaction:
    """Operations of one transaction."""

    appends: list[Operation] = field(default_factory=list)
    acknowledgements: list[Operation] = field(default_factory=list)
    end: Operation | None = None


def check_transactions(evidence: Evidence) -> Iterator[str]:
    """Check transactions at the end of the soak, in the log, and at every read."""
    transactions = _transactions(evidence)
    markers = _read_markers(evidence)
    for txn, transaction in sorted(transactions.items()):
        yield from _check_transaction(evidence, txn, transaction, markers)
    for txn, row in sorted(evidence.states.items()):
        if row["state"] not in _ENDS.values():
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
        for at, payload in op.stored:
            if at not in entries or entries[at].payload != payload or entries[at].txn != txn:
                yield f"{op.asked['topic']}: {at} was answered for {txn}, and is not its"
            verb = "COMMIT" if state == "COMMITTED" else "ABORT"
            if markers.get((txn, topic_id), set()) != {verb}:
                found = sorted(markers.get((txn, topic_id), ()))
                yield f"{op.asked['topic']}: transaction {txn} is {state}, and the log says {found}"
    yield from _check_acknowledgements(evidence, txn, state, transaction)


def _check_acknowledgements(evidence: Evidence, txn: str, state: str, transaction: _Transaction) -> Iterator[str]:
    topic_id = evidence.topics.get(SOURCE, -1)
    if (topic_id, CONSUMED) not in evidence.acknowledged:
        return
    for op in transaction.acknowledgements:
        for first, second in op.asked["positions"]:
            is_acknowledged = evidence.is_acknowledged(topic_id, CONSUMED, (first, second))
            if is_acknowledged and state == "ABORTED":
                yield f"{SOURCE}: {(first, second)} is acknowledged by transaction {txn}, which was aborted"
            if not is_acknowledged and state == "COMMITTED" and op.end == "done":
                yield f"{SOURCE}: {(first, second)} was acknowledged in transaction {txn}, and is not"


def _times_of_effect(evidence: Evidence) -> dict[str, float]:
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
    effective = _times_of_effect(evidence)
    logs: dict[str, list[tuple[At, str]]] = {}  # of each list, its transactional entries in order
    for name in LISTS:
        entries = evidence.entries.get(evidence.topics.get(name, -1), {})
        logs[name] = [(at, e.txn) for at, e in sorted(entries.items()) if e.txn is not None and e.marker is None]
    for read in evidence.reads:
        read_positions = {(element[0], element[1]) for element in read["elements"]}
        is_blocked = False
        for at, txn in logs[read["topic"]]:
            decided_s, effective_s = (times_s.get(txn, float("inf")) for times_s in (decided, effective))
            if at in read_positions and (
                decided_s > read["ended"] + _CLOCK_TOLERANCE_S or not evidence.is_committed(txn)
            ):
                how = "not decided" if decided_s > read["ended"] else "aborted"
                yield f"{read['topic']}: {at} of {txn} was read, and {how}"
            is_blocked = is_blocked or effective_s > read["began"] - _CLOCK_TOLERANCE_S
            is_behind = at >= (read["begins"][0], read["begins"][1])
            if is_behind and not is_blocked and at not in read_positions and evidence.is_committed(txn):
                yield f"{read['topic']}: {at} of {txn} was committed before a read that does not have it"
