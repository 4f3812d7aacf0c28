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
_UNFINISHED = {"PENDING", "DEAD_LETTERED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A row of `ledger_copy`."""

    state: str
    context: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyIntent:
    """A row of `pending_deletion`, of a tiered copy."""

    ledger_id: int
    generation: int
    batch_id: str
    state: str
    error: str | None
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiered:
    """The tiered bucket and what the catalog says of it."""

    objects: Mapping[str, bytes] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()  # keys with parts of unfinished uploads
    copies: Mapping[int, Mapping[str, Copy]] = field(default_factory=dict)  # by ledger and kind
    intents: tuple[CopyIntent, ...] = ()

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


class Ledger(Protocol):
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


def look_tiered(connection: sqlite3.Connection, objects: Mapping[str, bytes], parts: Collection[str]) -> Tiered:
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
        CopyIntent(
            ledger_id=row[0],
            generation=row[1],
            batch_id=row[2],
            state=row[3],
            error=row[4],
            uuid=json.loads(row[5])["uuid"],
        )
        for row in connection.execute(query)
    ]
    return Tiered(objects=dict(objects), parts=frozenset(parts), copies=copies, intents=tuple(intents))


def wrong_tiered_at_any_moment(seen: Tiered, ledgers: Mapping[int, Ledger]) -> Iterator[str]:
    """What no crash may leave behind, not even for a moment."""
    yield from _unnamed(seen)
    yield from _without_a_copy(seen, ledgers)
    doomed = {(it.ledger_id, it.uuid) for it in seen.intents}
    for ledger_id in sorted(seen.copies):
        copy = seen.copy(ledger_id)
        if copy and (ledger_id, copy.context["uuid"]) in doomed:
            yield f"ledger {ledger_id}: its tiered copy has a row and a deletion intent at once"
        if copy and copy.state == "LIVE":
            yield from _incomplete(seen, ledger_id, ledgers[ledger_id], copy)
    names = [(it.ledger_id, it.generation) for it in seen.intents]
    if len(set(names)) != len(names):
        yield f"two intents for one tiered copy: {names}"


def _unnamed(seen: Tiered) -> Iterator[str]:
    """Stored, or sent in part, and named neither by a row nor by an intent that has not ended."""
    named = {(it.ledger_id, it.uuid) for it in seen.intents if it.state in _UNFINISHED}
    named |= {(row, copy.context["uuid"]) for row in seen.copies if (copy := seen.copy(row))}
    for key in sorted({*seen.objects, *seen.parts}):
        at = _KEY.fullmatch(key)
        assert at, f"Sexton wrote a key that is no tiered copy's: {key}"
        if (int(at["id"]), at["uuid"]) not in named:
            yield f"{key} is forgotten: neither a row nor an intent names it"
    for key in sorted(seen.objects):
        if key.endswith("-index") and key.removesuffix("-index") not in seen.objects:
            deleting = any(f"{it.uuid}-ledger-{it.ledger_id}-index" == key for it in seen.intents)
            if not deleting:
                yield f"{key} vouches for data that is not there"


def _without_a_copy(seen: Tiered, ledgers: Mapping[int, Ledger]) -> Iterator[str]:
    for ledger_id, ledger in sorted(ledgers.items()):
        live = [kind for kind, copy in seen.copies.get(ledger_id, {}).items() if copy.state == "LIVE"]
        if ledger.listed and not live:
            yield f"ledger {ledger_id} is listed and has no copy"


def _incomplete(seen: Tiered, ledger_id: int, ledger: Ledger, copy: Copy) -> Iterator[str]:
    """Shown to readers, and not all of the ledger, or not what its index says."""
    key = f"{copy.context['uuid']}-ledger-{ledger_id}"
    data, index = seen.objects.get(key), seen.objects.get(f"{key}-index")
    if data is None or index is None:
        yield f"ledger {ledger_id}: its tiered copy is LIVE and lacks an object"
        return
    told = json.loads(index)
    if (told["size_bytes"], told["sha256"]) != (len(data), hashlib.sha256(data).hexdigest()):
        yield f"{key}: its index speaks of other data"
    groups = [(group["first_entry"], group["entries"]) for group in told["row_groups"]]
    if groups != [(first, entries) for _, first, entries, _ in ledger.segments]:
        yield f"{key}: row groups {groups} are not the segments of ledger {ledger_id}"
    footer = pq.ParquetFile(io.BytesIO(data)).metadata
    rows = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    if rows != [entries for _, entries in groups] or sum(rows) != ledger.entries:
        yield f"{key}: expected {ledger.entries} entries in {groups}, found {rows}"
    if "until_us" in copy.context:
        yield f"{key} is published, and its upload not over"


def wrong_tiered_at_rest(seen: Tiered) -> Iterator[str]:
    """What must not be so once every job has ended."""
    for ledger_id in sorted(seen.copies):
        copy = seen.copy(ledger_id)
        if copy and copy.state != "LIVE":
            yield f"ledger {ledger_id}: its tiered copy is {copy.state} for ever"
    for it in seen.intents:
        left = [key for key in {*seen.objects, *seen.parts} if key.startswith(f"{it.uuid}-ledger-{it.ledger_id}")]
        if it.state != "DELETED":
            yield f"ledger {it.ledger_id}: the intent of its tiered copy {it.uuid} is {it.state}: {it.error}"
        elif left:
            yield f"ledger {it.ledger_id}: its tiered copy is said to be deleted, and {left} are left"
