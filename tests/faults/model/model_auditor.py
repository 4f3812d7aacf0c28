"""An auditor that trusts no rule of Sexton's.

It looks after every step. `wrong_now` says what no moment may show (promises 1, 2, 3 and 8), `wrong_since` what no
step may do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from logstore.ports.catalog.log import Ledger
from logstore.positions import LedgerId
from tests.faults.model.model_observation import ModelObservation, expected_meta_name, is_component, primary_prefix
from tests.faults.model.model_world import FINISHED_RETENTION_S


def find_violations_now(observation: ModelObservation) -> Iterator[str]:
    """What no crash may leave behind, not even for a moment (apache/pulsar#13526)."""
    unfinished = observation.intended("PENDING", "DEAD_LETTERED")
    for ledger_id, names in observation.stored.items():
        if (ledger_id, "") not in observation.copies and ledger_id not in unfinished:
            yield f"ledger {ledger_id} is forgotten: nothing names it, and {names} are stored"
        if not any(name.endswith(".meta.json") for name in names):
            yield f"ledger {ledger_id}: {names} are stored without a meta.json"
    for objects, planted in (
        (observation.objects, observation.planted),
        (observation.cold, observation.foreign_tiered_objects),
    ):
        touched = [key for key, body in planted.items() if objects.get(key) != body]
        yield from (f"{key} belongs to another application and was touched" for key in touched)
    for ledger_id, row in sorted(observation.ledgers.items()):
        yield from _find_incomplete_ledger(observation, ledger_id, row)
    yield from _find_unnamed_component_ledgers(observation)
    yield from _find_forgotten_late_objects(observation)
    yield from _find_intent_contradictions(observation)
    yield from _find_tiered_violations(observation)
    yield from _find_tiered_data_without_index(observation)


def _find_tiered_violations(observation: ModelObservation) -> Iterator[str]:
    """The same of tiered copies: referenced, intended, or not there (apache/pulsar#16687)."""
    unfinished = observation.copies_with_intent("PENDING", "DEAD_LETTERED")
    for copy, names in observation.tiered_parts_by_copy.items():
        if copy not in observation.copies | unfinished:
            yield f"tiered copy {copy} is forgotten: nothing names it, and {names} are stored"
    for copy in sorted(live_copy for live_copy in observation.live if live_copy[1]):
        if sorted(observation.tiered_parts_by_copy.get(copy, ())) != ["-index", "data"]:
            yield f"tiered copy {copy} is LIVE, and {observation.tiered_parts_by_copy.get(copy)} are stored"


def _find_forgotten_late_objects(observation: ModelObservation) -> Iterator[str]:
    """Said to be deleted, although who uploaded too late was answered, or gave up: phase two is to look again."""
    primaries = {int(row.ledger_id) for row in observation.intents.values() if not row.context}
    for ledger_id in sorted(observation.awaited & primaries - observation.intended("PENDING", "DEAD_LETTERED")):
        if (ledger_id, "") not in observation.copies:
            yield f"ledger {ledger_id} is forgotten: a segment came late, and nobody looks for it"


def _find_tiered_data_without_index(observation: ModelObservation) -> Iterator[str]:
    """Data of a tiered copy that was published, without the index that vouches for it: that goes last."""
    for row in observation.intents.values():
        remaining_parts = observation.tiered_parts_by_copy.get((row.ledger_id, row.context.get("uuid", "")))
        if remaining_parts == ["data"] and "until_us" not in row.context:
            yield f"tiered copy {row.context['uuid']} of ledger {row.ledger_id} has lost its index before its data"


def _find_intent_contradictions(observation: ModelObservation) -> Iterator[str]:
    """What an intent says is not what is so."""
    for copy in sorted(observation.copies & observation.copies_with_intent("PENDING", "DELETED")):
        yield f"copy {copy} is in the catalog and has a deletion intent at once"
    stored = {(ledger_id, "") for ledger_id in observation.stored} | observation.tiered_parts_by_copy.keys()
    deleted_copies = observation.copies_with_intent("DELETED") - observation.copies_with_intent(
        "PENDING", "DEAD_LETTERED"
    )
    for copy in sorted(deleted_copies & stored):
        yield f"copy {copy} is said to be deleted, and objects of it are stored"
    for intent in observation.intents.values():
        if intent.state.value == "DEAD_LETTERED" and not intent.last_error:
            yield f"ledger {intent.ledger_id} is a dead letter without a reason"


def _find_incomplete_ledger(observation: ModelObservation, ledger_id: int, row: Ledger) -> Iterator[str]:
    """Referenced, and not all there."""
    if ledger_id not in observation.listed:
        if row.state.value != "CREATING":
            yield f"ledger {ledger_id} is {row.state.value} and in no list"
        return
    if (ledger_id, "") in observation.copies:
        yield from _find_incomplete_primary(observation, ledger_id, row)
    elif observation.find_readable_uuid(ledger_id) is None:
        yield f"ledger {ledger_id} is listed, and no copy of it may be read"
    elif len(observation.numbers(ledger_id)) != row.entries:
        yield f"ledger {ledger_id}: its row says {row.entries} entries, its tiered copy another number"


def _find_incomplete_primary(observation: ModelObservation, ledger_id: int, row: Ledger) -> Iterator[str]:
    if f"{primary_prefix(ledger_id)}{expected_meta_name(observation.statements[ledger_id])}" not in observation.objects:
        yield f"ledger {ledger_id} is listed without its own statement in storage"
    next_entry = 0
    for segment in observation.segments.get(ledger_id, ()):
        body = observation.objects.get(f"{primary_prefix(ledger_id)}{segment.number:08d}.parquet")
        if body is None or len(body) != segment.size_bytes:
            yield f"ledger {ledger_id}: segment {segment.number} is registered, and lost or of another size"
        if segment.first_entry != next_entry:
            yield f"ledger {ledger_id}: segment {segment.number} begins at {segment.first_entry}, expected {next_entry}"
        next_entry = segment.first_entry + segment.entries
    if next_entry != row.entries:
        yield f"ledger {ledger_id}: its row says {row.entries} entries, its segments {next_entry}"


def _find_unnamed_component_ledgers(observation: ModelObservation) -> Iterator[str]:
    """Every ledger of a component is named by what it belongs to, and the other way round (apache/pulsar#982)."""
    named = [one.snapshot_ledger for one in observation.cursors.values() if one.snapshot_ledger is not None]
    named += [LedgerId(one) for ids in observation.schemas.values() for one in ids]
    listed = sorted(one for one in observation.listed if is_component(observation.ledgers[one]))
    if sorted(named) != listed:
        yield f"ledgers {listed} of components are listed, and {sorted(named)} are named"


@dataclass(frozen=True, kw_only=True)
class StepLicence:
    """What the step that was made may do, beyond what every step may."""

    sought: tuple[int, str] | None = None  # a subscription that may go back
    redriven: bool = False  # dead letters may be tried again


def find_violations_of_step(
    before: ModelObservation, after: ModelObservation, licence: StepLicence, detached: set[int]
) -> Iterator[str]:
    """What a step may not do, whatever it was."""
    for topic, ids in before.lists.items():
        departed_ids = [ledger for ledger in ids if ledger not in after.lists.get(topic, ())]
        if set(departed_ids) - detached:
            yield f"ledgers {sorted(set(departed_ids) - detached)} left their list, and no detach took them"
        remaining_ids = [ledger for ledger in ids if ledger not in departed_ids]
        if list(after.lists.get(topic, ()))[: len(remaining_ids)] != remaining_ids:
            yield f"the list {ids} became {after.lists.get(topic)}"
    for ledger_id, row in before.ledgers.items():
        if row.state.value == "CLOSED" and _without_changing_fields(
            after.ledgers.get(ledger_id, row)
        ) != _without_changing_fields(row):
            yield f"ledger {ledger_id} was closed as {row} and is {after.ledgers[ledger_id]}"
    yield from _find_reopened_intents(before, after, licence)
    yield from _find_cursors_moved_back(before, after, licence)


def _without_changing_fields(row: Ledger) -> Ledger:
    """What of a closed ledger never changes, whatever becomes of its copies."""
    return replace(row, generation=0, copies=())


def _find_reopened_intents(before: ModelObservation, after: ModelObservation, licence: StepLicence) -> Iterator[str]:
    """A row that ended stays as it ended (PIP-186, idempotency)."""
    for row_id, row in before.intents.items():
        if row.state.value == "PENDING" or after.intents.get(row_id) == row:
            continue
        has_late_objects = (
            row.ledger_id in after.stored or row.ledger_id in after.late_ledgers
        )  # somebody put objects, and told so
        reopened = has_late_objects and row.state.value == "DELETED" and not row.context
        redriven = licence.redriven and row.state.value == "DEAD_LETTERED"
        if row_id not in after.intents and row.state.value == "DELETED" and _is_retention_over(after, row_id):
            continue
        if row_id not in after.intents or not (reopened or redriven):
            yield f"an intent ended as {row} and is {after.intents.get(row_id)}"


def _is_retention_over(observation: ModelObservation, row_id: int) -> bool:
    return observation.us_since_end_by_intent[row_id] >= FINISHED_RETENTION_S * 1_000_000


def _find_cursors_moved_back(before: ModelObservation, after: ModelObservation, licence: StepLicence) -> Iterator[str]:
    for key, cursor in before.cursors.items():
        if key in after.cursors and key != licence.sought:
            mark_before, mark_after = cursor.state.mark_delete, after.cursors[key].state.mark_delete
            if mark_after < mark_before:
                yield f"subscription {key} went back from {mark_before} to {mark_after}"
