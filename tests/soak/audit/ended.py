"""Topics that were made for one job each: what was asked to end has ended, and nothing else has."""

from collections.abc import Iterator

from tests.soak.audit.evidence import Evidence, Op
from tests.soak.scene import CONSUMED

_OFFERED = "spare-offered-"
"""Of their topics `records end` ends ledgers with an even id, where no subscription needs them."""


def ended(seen: Evidence) -> dict[int, bool]:
    """Ledgers that were answered as ended, and whether durably."""
    found: dict[int, bool] = {}
    for op in seen.of_kind("delete-ledgers", "operate", "end-records"):
        if op.end == "done" and not op.answer.get("refused") and not op.answer.get("stopped"):
            found |= dict.fromkeys(_may_end(seen, op), op.asked["durable"])
    return found


def may_return(seen: Evidence) -> set[int]:
    """Topics of which older versions may come back when the database is lost: they were deleted without tombstones."""
    asked = seen.of_kind("delete-topic") if seen.is_rebuilt else ()
    return {op.asked["topic_id"] for op in asked if not op.asked["durable"]}


def wrong_ended(seen: Evidence) -> Iterator[str]:
    """1: ledgers that nobody asked to end, or that a subscription needs, hold what was answered."""
    deleted = {op.asked["topic"] for op in seen.of_kind("delete-topic")}
    may = {one for op in seen.of_kind("delete-ledgers", "operate") for one in _may_end(seen, op)}
    may |= {one for op in seen.of_kind("spare") for one in _offered(op)}
    for op in seen.of_kind("spare"):
        if op.end != "done" or not op.asked["kept"] or op.asked["topic"] in deleted:
            continue
        entries = seen.entries.get(op.answer["topic_id"], {})
        for ledger_id, entry_id, payload in op.answer["entries"]:
            found = entries.get((ledger_id, entry_id))
            if ledger_id not in may and (found is None or found.payload != payload):
                yield f"{op.asked['topic']}: ledger {ledger_id} was to stay, and {found} is in the place of {payload!r}"
    for op in seen.of_kind("operate"):
        if op.end != "done":
            continue
        ledger_id, is_refused = op.asked["ledger"], bool(op.answer.get("refused"))
        if _ends_all(op) and not is_refused and CONSUMED not in op.asked["pass_over"]:
            yield f"ledger {ledger_id} is needed by {CONSUMED}, and its end was not refused"
        if not _ends_all(op) and not is_refused and (ledger_id, "OFFLOADED_LEDGER") in seen.copies:
            yield f"ledger {ledger_id}: its tiered copy was taken away, and is listed"


def _ends_all(op: Op) -> bool:
    return {*op.asked["remove"]} == {"LEDGER", "OFFLOADED_LEDGER"}


def _may_end(seen: Evidence, op: Op) -> Iterator[int]:
    """Ledgers that a job was asked to end, and that nothing keeps."""
    if op.kind == "delete-ledgers":
        yield from op.asked["ledgers"]
    elif op.kind == "operate":
        yield from [op.asked["ledger"]] if _ends_all(op) and CONSUMED in op.asked["pass_over"] else []
    else:
        for spare in seen.of_kind("spare"):
            if spare.asked["topic"] == op.asked["topic"]:
                yield from _offered(spare)


def _offered(spare: Op) -> Iterator[int]:
    """Of a topic that `records end` may end ledgers of: those that are consumed, and that the function ends."""
    if spare.end == "done" and _OFFERED in spare.asked["topic"]:
        consumed = spare.answer["entries"][: spare.asked["consumed"]]
        yield from (ledger_id for ledger_id, _, _ in consumed if ledger_id % 2 == 0)
