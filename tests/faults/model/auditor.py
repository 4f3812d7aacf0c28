"""An auditor that trusts no rule of Sexton's.

It looks after every step. `wrong_now` says what no moment may show (promises 1, 2, 3 and 8), `wrong_since` what no
step may do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from logstore.ports.catalog import Ledger
from logstore.positions import LedgerId
from tests.faults.model.house import FORGOTTEN_S
from tests.faults.model.moment import Moment, is_component, meta_name, prefix


def wrong_now(seen: Moment) -> Iterator[str]:
    """What no crash may leave behind, not even for a moment (apache/pulsar#13526)."""
    unfinished = seen.intended("PENDING", "DEAD_LETTERED")
    for ledger_id, names in seen.stored.items():
        if (ledger_id, "") not in seen.copies and ledger_id not in unfinished:
            yield f"ledger {ledger_id} is forgotten: nothing names it, and {names} are stored"
        if not any(name.endswith(".meta.json") for name in names):
            yield f"ledger {ledger_id}: {names} are stored without a meta.json"
    for objects, planted in ((seen.objects, seen.planted), (seen.cold, seen.cold_planted)):
        touched = [key for key, body in planted.items() if objects.get(key) != body]
        yield from (f"{key} belongs to another application and was touched" for key in touched)
    for ledger_id, row in sorted(seen.ledgers.items()):
        yield from _incomplete(seen, ledger_id, row)
    yield from _unnamed(seen)
    yield from _overslept(seen)
    yield from _contradicted(seen)
    yield from _cold(seen)
    yield from _half_deleted(seen)


def _cold(seen: Moment) -> Iterator[str]:
    """The same of tiered copies: referenced, intended, or not there (apache/pulsar#16687)."""
    unfinished = seen.intended_copies("PENDING", "DEAD_LETTERED")
    for copy, names in seen.cold_stored.items():
        if copy not in seen.copies | unfinished:
            yield f"tiered copy {copy} is forgotten: nothing names it, and {names} are stored"
    for copy in sorted(one for one in seen.live if one[1]):
        if sorted(seen.cold_stored.get(copy, ())) != ["-index", "data"]:
            yield f"tiered copy {copy} is LIVE, and {seen.cold_stored.get(copy)} are stored"


def _overslept(seen: Moment) -> Iterator[str]:
    """Said to be deleted, although who uploaded too late was answered, or gave up: phase two is to look again."""
    primaries = {int(row.ledger_id) for row in seen.intents.values() if not row.context}
    for ledger_id in sorted(seen.awaited & primaries - seen.intended("PENDING", "DEAD_LETTERED")):
        if (ledger_id, "") not in seen.copies:
            yield f"ledger {ledger_id} is forgotten: a segment came late, and nobody looks for it"


def _half_deleted(seen: Moment) -> Iterator[str]:
    """Data of a tiered copy that was published, without the index that vouches for it: that goes last."""
    for row in seen.intents.values():
        left = seen.cold_stored.get((row.ledger_id, row.context.get("uuid", "")))
        if left == ["data"] and "until_us" not in row.context:
            yield f"tiered copy {row.context['uuid']} of ledger {row.ledger_id} has lost its index before its data"


def _contradicted(seen: Moment) -> Iterator[str]:
    """What an intent says is not what is so."""
    for copy in sorted(seen.copies & seen.intended_copies("PENDING", "DELETED")):
        yield f"copy {copy} is in the catalog and has a deletion intent at once"
    stored = {(one, "") for one in seen.stored} | seen.cold_stored.keys()
    done = seen.intended_copies("DELETED") - seen.intended_copies("PENDING", "DEAD_LETTERED")
    for copy in sorted(done & stored):
        yield f"copy {copy} is said to be deleted, and objects of it are stored"
    for intent in seen.intents.values():
        if intent.state.value == "DEAD_LETTERED" and not intent.last_error:
            yield f"ledger {intent.ledger_id} is a dead letter without a reason"


def _incomplete(seen: Moment, ledger_id: int, row: Ledger) -> Iterator[str]:
    """Referenced, and not all there."""
    if ledger_id not in seen.listed:
        if row.state.value != "CREATING":
            yield f"ledger {ledger_id} is {row.state.value} and in no list"
        return
    if (ledger_id, "") in seen.copies:
        yield from _incomplete_primary(seen, ledger_id, row)
    elif seen.uuid_of(ledger_id) is None:
        yield f"ledger {ledger_id} is listed, and no copy of it may be read"
    elif len(seen.numbers(ledger_id)) != row.entries:
        yield f"ledger {ledger_id}: its row says {row.entries} entries, its tiered copy another number"


def _incomplete_primary(seen: Moment, ledger_id: int, row: Ledger) -> Iterator[str]:
    if f"{prefix(ledger_id)}{meta_name(seen.statements[ledger_id])}" not in seen.objects:
        yield f"ledger {ledger_id} is listed without its own statement in storage"
    reached = 0
    for segment in seen.segments.get(ledger_id, ()):
        body = seen.objects.get(f"{prefix(ledger_id)}{segment.number:08d}.parquet")
        if body is None or len(body) != segment.size_bytes:
            yield f"ledger {ledger_id}: segment {segment.number} is registered, and lost or of another size"
        if segment.first_entry != reached:
            yield f"ledger {ledger_id}: segment {segment.number} begins at {segment.first_entry}, expected {reached}"
        reached = segment.first_entry + segment.entries
    if reached != row.entries:
        yield f"ledger {ledger_id}: its row says {row.entries} entries, its segments {reached}"


def _unnamed(seen: Moment) -> Iterator[str]:
    """Every ledger of a component is named by what it belongs to, and the other way round (apache/pulsar#982)."""
    named = [one.snapshot_ledger for one in seen.cursors.values() if one.snapshot_ledger is not None]
    named += [LedgerId(one) for ids in seen.schemas.values() for one in ids]
    listed = sorted(one for one in seen.listed if is_component(seen.ledgers[one]))
    if sorted(named) != listed:
        yield f"ledgers {listed} of components are listed, and {sorted(named)} are named"


@dataclass(frozen=True, kw_only=True)
class Licence:
    """What the step that was made may do, beyond what every step may."""

    sought: tuple[int, str] | None = None  # a subscription that may go back
    redriven: bool = False  # dead letters may be tried again


def wrong_since(before: Moment, now: Moment, licence: Licence, detached: set[int]) -> Iterator[str]:
    """What a step may not do, whatever it was."""
    for topic, ids in before.lists.items():
        left = [one for one in ids if one not in now.lists.get(topic, ())]
        if set(left) - detached:
            yield f"ledgers {sorted(set(left) - detached)} left their list, and no detach took them"
        kept = [one for one in ids if one not in left]
        if list(now.lists.get(topic, ()))[: len(kept)] != kept:
            yield f"the list {ids} became {now.lists.get(topic)}"
    for ledger_id, row in before.ledgers.items():
        if row.state.value == "CLOSED" and _lasting(now.ledgers.get(ledger_id, row)) != _lasting(row):
            yield f"ledger {ledger_id} was closed as {row} and is {now.ledgers[ledger_id]}"
    yield from _unended(before, now, licence)
    yield from _moved_back(before, now, licence)


def _lasting(row: Ledger) -> Ledger:
    """What of a closed ledger never changes, whatever becomes of its copies."""
    return replace(row, generation=0, copies=())


def _unended(before: Moment, now: Moment, licence: Licence) -> Iterator[str]:
    """A row that ended stays as it ended (PIP-186, idempotency)."""
    for row_id, row in before.intents.items():
        if row.state.value == "PENDING" or now.intents.get(row_id) == row:
            continue
        late = row.ledger_id in now.stored or row.ledger_id in now.late_ledgers  # somebody put objects, and told so
        reopened = late and row.state.value == "DELETED" and not row.context
        redriven = licence.redriven and row.state.value == "DEAD_LETTERED"
        if row_id not in now.intents and row.state.value == "DELETED" and _is_old(now, row_id):
            continue
        if row_id not in now.intents or not (reopened or redriven):
            yield f"an intent ended as {row} and is {now.intents.get(row_id)}"


def _is_old(seen: Moment, row_id: int) -> bool:
    return seen.memory_us[row_id] >= FORGOTTEN_S * 1_000_000


def _moved_back(before: Moment, now: Moment, licence: Licence) -> Iterator[str]:
    for key, cursor in before.cursors.items():
        if key in now.cursors and key != licence.sought:
            was, now_at = cursor.state.mark_delete, now.cursors[key].state.mark_delete
            if now_at < was:
                yield f"subscription {key} went back from {was} to {now_at}"
