"""Promise 4: a committed transaction is seen on every participant, an aborted one on none, and nobody sees half."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.soak.audit.evidence import At, Evidence, Op
from tests.soak.scene import CONSUMED, LISTS, SOURCE

_CLOCKS_S = 0.05
"""By so much the database's clock may be read differently from the clients'; both are this machine's."""

_ENDS = {"commit": "COMMITTED", "abort": "ABORTED"}


@dataclass
class _Transaction:
    """What its client asked for and was told."""

    appends: list[Op] = field(default_factory=list)
    acknowledgements: list[Op] = field(default_factory=list)
    end: Op | None = None


def wrong_transacted(seen: Evidence) -> Iterator[str]:
    """All of it, or nothing; at the end, in the log, and at every read."""
    transactions = _transactions(seen)
    marks = _marks(seen)
    for txn, one in sorted(transactions.items()):
        yield from _of_one(seen, txn, one, marks)
    for txn, row in sorted(seen.states.items()):
        if row["state"] not in _ENDS.values():
            yield f"transaction {txn} is {row['state']} for ever"
    for row in seen.rows("transaction_participant"):
        if row["settled_us"] is None:
            yield f"transaction {row['tc_id']}:{row['sequence']} was never told to {row['topic']} {row['subscription']}"
    yield from _of_reads(seen)


def _transactions(seen: Evidence) -> dict[str, _Transaction]:
    found: dict[str, _Transaction] = defaultdict(_Transaction)
    for op in seen.of_kind("append", "acknowledge", "commit", "abort"):
        if "txn" not in op.asked:
            continue
        one = found[op.asked["txn"]]
        if op.kind == "append":
            one.appends.append(op)
        elif op.kind == "acknowledge":
            one.acknowledgements.append(op)
        else:
            one.end = op
    return found


def _marks(seen: Evidence) -> dict[tuple[str, int], set[str]]:
    """By transaction and topic: how each log says that it ended."""
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for topic_id, entries in seen.entries.items():
        for entry in entries.values():
            if entry.marker is not None and entry.txn is not None:
                found[entry.txn, topic_id].add(entry.marker)
    return found


def _of_one(seen: Evidence, txn: str, one: _Transaction, marks: Mapping[tuple[str, int], set[str]]) -> Iterator[str]:
    row = seen.states.get(txn)
    if row is None:
        yield f"transaction {txn} was begun, and there is none"
        return
    state = row["state"]
    if one.end and one.end.end == "done" and one.end.answer["state"] != state:
        yield f"transaction {txn} was answered as {one.end.answer['state']}, and is {state}"
    if one.end is None and state == "COMMITTED":
        yield f"transaction {txn} is COMMITTED, and nobody asked for that"
    for op in one.appends:
        topic_id = seen.topics.get(op.asked["topic"], -1)
        entries = seen.entries.get(topic_id, {})
        for at, payload in op.stored:
            if at not in entries or entries[at].payload != payload or entries[at].txn != txn:
                yield f"{op.asked['topic']}: {at} was answered for {txn}, and is not its"
            verb = "COMMIT" if state == "COMMITTED" else "ABORT"
            if marks.get((txn, topic_id), set()) != {verb}:
                told = sorted(marks.get((txn, topic_id), ()))
                yield f"{op.asked['topic']}: transaction {txn} is {state}, and the log says {told}"
    yield from _acknowledged(seen, txn, state, one)


def _acknowledged(seen: Evidence, txn: str, state: str, one: _Transaction) -> Iterator[str]:
    topic_id = seen.topics.get(SOURCE, -1)
    if (topic_id, CONSUMED) not in seen.acknowledged:
        return
    for op in one.acknowledgements:
        for first, second in op.asked["positions"]:
            there = seen.is_acknowledged(topic_id, CONSUMED, (first, second))
            if there and state == "ABORTED":
                yield f"{SOURCE}: {(first, second)} is acknowledged by transaction {txn}, which was aborted"
            if not there and state == "COMMITTED" and op.end == "done":
                yield f"{SOURCE}: {(first, second)} was acknowledged in transaction {txn}, and is not"


def _known(seen: Evidence) -> dict[str, float]:
    """From when on the end of each transaction was in force: it was answered, or its participants had been told.

    The time of the decision itself is that of its statement, before its commit.
    """
    found = {txn: row["finished_us"] / 1e6 for txn, row in seen.states.items() if row["finished_us"] is not None}
    for op in seen.of_kind("commit", "abort"):
        if op.end == "done" and op.ended_s is not None:
            found[op.asked["txn"]] = min(op.ended_s, found.get(op.asked["txn"], op.ended_s))
    return found


def _of_reads(seen: Evidence) -> Iterator[str]:
    """Every read, at its time: nothing undecided or aborted, and all that was decided before and stands before it."""
    decided = {txn: row["decided_us"] / 1e6 for txn, row in seen.states.items() if row["decided_us"] is not None}
    known = _known(seen)
    logs: dict[str, list[tuple[At, str]]] = {}  # of each list, its transactional entries in order
    for name in LISTS:
        entries = seen.entries.get(seen.topics.get(name, -1), {})
        logs[name] = [(at, e.txn) for at, e in sorted(entries.items()) if e.txn is not None and e.marker is None]
    for read in seen.reads:
        got = {(one[0], one[1]) for one in read["elements"]}
        blocked = False
        for at, txn in logs[read["topic"]]:
            told_s, known_s = (each.get(txn, float("inf")) for each in (decided, known))
            if at in got and (told_s > read["ended"] + _CLOCKS_S or not seen.is_committed(txn)):
                how = "not decided" if told_s > read["ended"] else "aborted"
                yield f"{read['topic']}: {at} of {txn} was read, and {how}"
            blocked = blocked or known_s > read["began"] - _CLOCKS_S
            behind = at >= (read["begins"][0], read["begins"][1])
            if behind and not blocked and at not in got and seen.is_committed(txn):
                yield f"{read['topic']}: {at} of {txn} was committed before a read that does not have it"
