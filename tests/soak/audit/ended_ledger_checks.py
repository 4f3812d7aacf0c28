"""Topics that were made for one job each: requested ledgers have ended, and no others."""

from collections.abc import Iterator

from tests.soak.audit.evidence import ClientOperation, Evidence
from tests.soak.soak_setup import CONSUMING_SUBSCRIPTION

_OFFERED = "spare-offered-"
"""Prefix of topics of which `records end` ends ledgers with an even id that no subscription needs."""


def ledgers_answered_as_ended(evidence: Evidence) -> dict[int, bool]:
    """Return the ledgers that were answered as ended, and whether durably."""
    ended: dict[int, bool] = {}
    for op in evidence.operations_of_kind("delete-ledgers", "operate", "end-records"):
        if op.end == "done" and not op.answer.get("refused") and not op.answer.get("stopped"):
            ended |= dict.fromkeys(_endable_ledgers(evidence, op), op.asked["durable"])
    return ended


def topics_that_may_return(evidence: Evidence) -> set[int]:
    """Return topics that a rebuild may bring back, because they were deleted without tombstones."""
    deletions = evidence.operations_of_kind("delete-topic") if evidence.is_rebuilt else ()
    return {op.asked["topic_id"] for op in deletions if not op.asked["durable"]}


def check_ended_ledgers(evidence: Evidence) -> Iterator[str]:
    """Promise 1: ledgers that nobody asked to end, or that a subscription needs, hold what was answered."""
    deleted = {op.asked["topic"] for op in evidence.operations_of_kind("delete-topic")}
    requests = evidence.operations_of_kind("delete-ledgers", "operate")
    endable = {ledger_id for request in requests for ledger_id in _endable_ledgers(evidence, request)}
    endable |= {ledger_id for op in evidence.operations_of_kind("spare") for ledger_id in _offered_ledgers(op)}
    for op in evidence.operations_of_kind("spare"):
        if op.end != "done" or not op.asked["kept"] or op.asked["topic"] in deleted:
            continue
        entries = evidence.entries.get(op.answer["topic_id"], {})
        for ledger_id, entry_id, payload in op.answer["entries"]:
            entry_found = entries.get((ledger_id, entry_id))
            if ledger_id not in endable and (entry_found is None or entry_found.payload != payload):
                change = f"{entry_found} is in the place of {payload!r}"
                yield f"{op.asked['topic']}: ledger {ledger_id} was to stay, and {change}"
    for op in evidence.operations_of_kind("operate"):
        if op.end != "done":
            continue
        ledger_id, is_refused = op.asked["ledger"], bool(op.answer.get("refused"))
        if _ends_all(op) and not is_refused and CONSUMING_SUBSCRIPTION not in op.asked["pass_over"]:
            yield f"ledger {ledger_id} is needed by {CONSUMING_SUBSCRIPTION}, and its end was not refused"
        if not _ends_all(op) and not is_refused and (ledger_id, "OFFLOADED_LEDGER") in evidence.copies:
            yield f"ledger {ledger_id}: its tiered copy was taken away, and is listed"


def _ends_all(op: ClientOperation) -> bool:
    return {*op.asked["remove"]} == {"LEDGER", "OFFLOADED_LEDGER"}


def _endable_ledgers(evidence: Evidence, op: ClientOperation) -> Iterator[int]:
    """Yield the ledgers that a job was asked to end and that nothing keeps."""
    if op.kind == "delete-ledgers":
        yield from op.asked["ledgers"]
    elif op.kind == "operate":
        yield from [op.asked["ledger"]] if _ends_all(op) and CONSUMING_SUBSCRIPTION in op.asked["pass_over"] else []
    else:
        for spare in evidence.operations_of_kind("spare"):
            if spare.asked["topic"] == op.asked["topic"]:
                yield from _offered_ledgers(spare)


def _offered_ledgers(spare: ClientOperation) -> Iterator[int]:
    """Yield the consumed ledgers of a topic that the function of `records end` ends."""
    if spare.end == "done" and _OFFERED in spare.asked["topic"]:
        consumed = spare.answer["entries"][: spare.asked["consumed"]]
        yield from (ledger_id for ledger_id, _, _ in consumed if ledger_id % 2 == 0)
