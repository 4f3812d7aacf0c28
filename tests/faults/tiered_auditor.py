"""What the auditor knows of tiered copies: objects as bytes, rows by plain sqlite3, nothing by code of Sexton's."""

import hashlib
import io
import json
import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow.parquet as pq

_KEY = re.compile(r"(?P<uuid>.+)-ledger-(?P<id>[0-9]+)(?P<index>-index)?")
_UNFINISHED_STATES = {"PENDING", "DEAD_LETTERED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A row of `ledger_copy`."""

    state: str
    context: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCopyIntent:
    """A row of `pending_deletion`, of a tiered copy."""

    ledger_id: int
    generation: int
    batch_id: str
    state: str
    error: str | None
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredObservation:
    """The tiered bucket and what the catalog says of it."""

    objects: Mapping[str, bytes] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()  # keys with parts of unfinished uploads
    copies: Mapping[int, Mapping[str, Copy]] = field(default_factory=dict)  # by ledger and kind
    intents: tuple[AuditedCopyIntent, ...] = ()

    def copy(self, ledger_id: int) -> Copy | None:
        """The ledger's tiered copy."""
        return self.copies.get(ledger_id, {}).get("OFFLOADED_LEDGER")

    def has_primary(self, ledger_id: int) -> bool:
        """Whether the catalog says that there is a primary copy."""
        return "LEDGER" in self.copies.get(ledger_id, {})

    def data(self, ledger_id: int) -> pq.ParquetFile:
        """The ledger's data object."""
        copy = self.copy(ledger_id)
        assert copy
        return pq.ParquetFile(io.BytesIO(self.objects[f"{copy.context['uuid']}-ledger-{ledger_id}"]))


class LedgerOfTieredCopy(Protocol):
    """What of the auditor's ledger is looked at here."""

    @property
    def listed(self) -> bool:
        """Whether a list has it."""

    @property
    def entries(self) -> int:
        """How many it has."""

    @property
    def segments(self) -> tuple[tuple[int, int, int, int], ...]:
        """Number, first entry, entries, bytes; ascending."""


def observe_tiered_bucket(
    connection: sqlite3.Connection, objects: Mapping[str, bytes], open_upload_keys: Collection[str]
) -> TieredObservation:
    """Read what there is."""
    copies: dict[int, dict[str, Copy]] = {}
    for ledger_id, kind, state, context in connection.execute(
        "SELECT ledger_id, kind, state, context FROM ledger_copy"
    ):
        copies.setdefault(ledger_id, {})[kind] = Copy(state=state, context=json.loads(context))
    query = (
        "SELECT ledger_id, generation, batch_id, state, last_error, context FROM pending_deletion"
        " WHERE copy = 'OFFLOADED_LEDGER' ORDER BY row_id"
    )
    intents = [
        AuditedCopyIntent(
            ledger_id=row[0],
            generation=row[1],
            batch_id=row[2],
            state=row[3],
            error=row[4],
            uuid=json.loads(row[5])["uuid"],
        )
        for row in connection.execute(query)
    ]
    return TieredObservation(
        objects=dict(objects), parts=frozenset(open_upload_keys), copies=copies, intents=tuple(intents)
    )


def find_tiered_violations_at_any_moment(
    observation: TieredObservation, ledgers: Mapping[int, LedgerOfTieredCopy]
) -> Iterator[str]:
    """What no crash may leave behind, not even for a moment."""
    yield from _find_unnamed_tiered_objects(observation)
    yield from _find_ledgers_without_copy(observation, ledgers)
    intended_uploads = {(intent.ledger_id, intent.uuid) for intent in observation.intents}
    for ledger_id in sorted(observation.copies):
        copy = observation.copy(ledger_id)
        if copy and (ledger_id, copy.context["uuid"]) in intended_uploads:
            yield f"ledger {ledger_id}: its tiered copy has a row and a deletion intent at once"
        if copy and copy.state == "LIVE":
            yield from _find_incomplete_tiered_copy(observation, ledger_id, ledgers[ledger_id], copy)
    intent_identities = [(intent.ledger_id, intent.generation) for intent in observation.intents]
    if len(set(intent_identities)) != len(intent_identities):
        yield f"two intents for one tiered copy: {intent_identities}"


def _find_unnamed_tiered_objects(observation: TieredObservation) -> Iterator[str]:
    """Stored, or sent in part, and named neither by a row nor by an intent that has not ended."""
    named = {(intent.ledger_id, intent.uuid) for intent in observation.intents if intent.state in _UNFINISHED_STATES}
    named |= {(row, copy.context["uuid"]) for row in observation.copies if (copy := observation.copy(row))}
    for key in sorted({*observation.objects, *observation.parts}):
        match = _KEY.fullmatch(key)
        assert match, f"Sexton wrote a key that is no tiered copy's: {key}"
        if (int(match["id"]), match["uuid"]) not in named:
            yield f"{key} is forgotten: neither a row nor an intent names it"
    for key in sorted(observation.objects):
        if key.endswith("-index") and key.removesuffix("-index") not in observation.objects:
            deleting = any(f"{intent.uuid}-ledger-{intent.ledger_id}-index" == key for intent in observation.intents)
            if not deleting:
                yield f"{key} vouches for data that is not there"


def _find_ledgers_without_copy(
    observation: TieredObservation, ledgers: Mapping[int, LedgerOfTieredCopy]
) -> Iterator[str]:
    for ledger_id, ledger in sorted(ledgers.items()):
        live = [kind for kind, copy in observation.copies.get(ledger_id, {}).items() if copy.state == "LIVE"]
        if ledger.listed and not live:
            yield f"ledger {ledger_id} is listed and has no copy"


def _find_incomplete_tiered_copy(
    observation: TieredObservation, ledger_id: int, ledger: LedgerOfTieredCopy, copy: Copy
) -> Iterator[str]:
    """Shown to readers, and not all of the ledger, or not what its index says."""
    key = f"{copy.context['uuid']}-ledger-{ledger_id}"
    data, index = observation.objects.get(key), observation.objects.get(f"{key}-index")
    if data is None or index is None:
        yield f"ledger {ledger_id}: its tiered copy is LIVE and lacks an object"
        return
    index_content = json.loads(index)
    if (index_content["size_bytes"], index_content["sha256"]) != (len(data), hashlib.sha256(data).hexdigest()):
        yield f"{key}: its index speaks of other data"
    groups = [(group["first_entry"], group["entries"]) for group in index_content["row_groups"]]
    if groups != [(first, entries) for _, first, entries, _ in ledger.segments]:
        yield f"{key}: row groups {groups} are not the segments of ledger {ledger_id}"
    footer = pq.ParquetFile(io.BytesIO(data)).metadata
    row_counts = [footer.row_group(group_number).num_rows for group_number in range(footer.num_row_groups)]
    if row_counts != [entries for _, entries in groups] or sum(row_counts) != ledger.entries:
        yield f"{key}: expected {ledger.entries} entries in {groups}, found {row_counts}"
    if "until_us" in copy.context:
        yield f"{key} is published, and its upload not over"


def find_tiered_violations_at_rest(observation: TieredObservation) -> Iterator[str]:
    """What must not be so once every job has ended."""
    for ledger_id in sorted(observation.copies):
        copy = observation.copy(ledger_id)
        if copy and copy.state != "LIVE":
            yield f"ledger {ledger_id}: its tiered copy is {copy.state} for ever"
    for intent in observation.intents:
        remaining_keys = [
            key
            for key in {*observation.objects, *observation.parts}
            if key.startswith(f"{intent.uuid}-ledger-{intent.ledger_id}")
        ]
        if intent.state != "DELETED":
            state = f"{intent.state}: {intent.error}"
            yield f"ledger {intent.ledger_id}: the intent of its tiered copy {intent.uuid} is {state}"
        elif remaining_keys:
            yield f"ledger {intent.ledger_id}: its tiered copy is said to be deleted, and {remaining_keys} are left"
