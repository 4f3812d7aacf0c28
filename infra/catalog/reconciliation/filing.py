"""A page of findings becomes intents, in one transaction that looks at each of them again under its locks.

A plan is hours old when it is applied. What it calls an orphan may have a row, an intent or a dead letter by now, and
then nothing is done about it. Locks: the run, topics, lists, intents.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from infra.catalog import tables as t
from infra.catalog.audits import Span, audit
from infra.catalog.deletion.intent_rows import file_intents, file_new, move
from infra.catalog.deletion.intents import filed_by
from infra.catalog.deletion.runs import (
    DELETES,
    NOTHING_YET,
    SEVERAL_TOPICS,
    begin_run,
    set_summary,
    stalled,
    told_before,
)
from infra.catalog.engine.dialects import among, as_text, context_or_none
from infra.catalog.identity.catalog_row import read_catalog_row
from infra.catalog.log.components import BY_ROW
from infra.catalog.log.ledger_rows import canonical, lock_lists, set_generation
from infra.catalog.log.topic_rows import hold_topics
from infra.catalog.reconciliation.known import known_ledgers
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import CopyKind, LedgerState
from logstore.ports.catalog import Cause, Detached
from logstore.ports.catalog.reconciliation import Filing, OrphanCopy, PageOfFindings
from logstore.positions import LedgerId
from logstore.reconciliation.known_ledgers import LedgerRows, doubt_orphan, doubt_unreferenced

_P, _L = t.pending_deletion.c, t.ledger.c


def _request(page: PageOfFindings) -> str:
    """A digest that tells the page from another use of its batch id."""
    orphans = sorted((one.number, one.copy.value, one.statement.ledger_id, _uuid(one)) for one in page.orphans)
    asked = [orphans, sorted(page.unreferenced.items()), sorted(page.stalled.items())]
    return hashlib.sha256(f"findings/{json.dumps(asked)}".encode()).hexdigest()


def file_page(connection: Connection, page: PageOfFindings, now_us: int) -> Filing:
    """See `Reconciliation.file`."""
    request = _request(page)
    opened = NOTHING_YET | {"kept": {}, "request": request}
    told = told_before(connection, page.batch_id, request)
    if told is None and not begin_run(connection, page.batch_id, DELETES, opened, claim=page.claim, now_us=now_us):
        told = told_before(connection, page.batch_id, request)  # by one that we have waited for
    if told is not None:
        kept = {int(number): why for number, why in told.pop("kept").items()}
        return Filing(detached=Detached(batch_id=page.batch_id, **told), kept=kept)
    return _file(connection, page, request, now_us)


def _file(connection: Connection, page: PageOfFindings, request: str, now_us: int) -> Filing:
    ids = {one.statement.ledger_id for one in page.orphans} | set(page.unreferenced.values())
    _lock(connection, ids)
    kept: dict[int, str] = {}
    orphans = file_orphans(connection, page.orphans, kept, batch_id=page.batch_id, cause=page.cause, now_us=now_us)
    ledgers, copies = _detach(connection, page, kept, now_us)
    taken = _take_up(connection, page, kept, now_us)
    detached = Detached(
        batch_id=page.batch_id,
        ledgers=ledgers,
        intents=orphans + copies + taken,
        filed=filed_by(connection, page.batch_id, now_us),
    )
    done = NOTHING_YET | {"ledgers": detached.ledgers, "intents": detached.intents}
    set_summary(connection, page.batch_id, done | {"kept": kept, "request": request})
    audit(
        connection,
        "file-findings",
        page.cause,
        at_us=now_us,
        topic_id=SEVERAL_TOPICS,
        topic=None,
        run_id=page.batch_id,
        detail={"orphans": orphans, "unreferenced": ledgers, "stalled": taken, "kept": len(kept)},
        span=Span.selected(connection, _P.ledger_id, _P.batch_id == page.batch_id),
    )
    return Filing(detached=detached, kept=kept)


def _lock(connection: Connection, ids: Iterable[int]) -> None:
    """Topics and lists of those ledgers that have rows, in the order of every writer."""
    of_list = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    query = select(_L.list_id, t.ledger_list.c.topic_id).select_from(of_list)
    rows = connection.execute(query.where(among(connection, _L.ledger_id, ids)).distinct()).all()
    hold_topics(connection, {row.topic_id for row in rows})
    lock_lists(connection, among(connection, t.ledger_list.c.list_id, {row.list_id for row in rows}))


def file_orphans(
    connection: Connection,
    orphans: Sequence[OrphanCopy],
    kept: dict[int, str],
    *,
    batch_id: str,
    cause: Cause,
    now_us: int,
) -> int:
    """File each that is an orphan still, with a generation above all that its ledger ever had; return how many.

    The ids that were given out are read before the rows: one that is below them has its row by now, or had it. Copies
    are read before intents: one that leaves meanwhile is seen as the one or as the other.

    Args:
        connection: In a writing transaction that holds the lists of those ledgers that have rows.
        orphans: Copies as storage states them.
        kept: Gets why nothing was done, by number.
        batch_id: Whose work the intents are; empty: no batch, until a sweep.
        cause: The actor and the reason.
        now_us: The database's clock.
    """
    catalog = read_catalog_row(connection)
    ids = {one.statement.ledger_id for one in orphans}
    known = known_ledgers(lambda query: map(dict, connection.execute(query).mappings()), ids)
    columns = (_P.row_id, _P.ledger_id, _P.copy, _P.generation, _P.state, as_text(_P.context))
    before = select(*columns).where(among(connection, _P.ledger_id, ids)).order_by(_P.row_id)
    intents = _by_ledger(connection.execute(before.with_for_update()))
    of_ledger = select(_L.ledger_id, _L.generation).where(among(connection, _L.ledger_id, ids))
    alive = {row.ledger_id: row.generation for row in connection.execute(of_ledger)}
    highest = {one: max([alive.get(one, 0), *(row.generation for row in intents[one])]) for one in {*alive, *intents}}
    rows, seen = dict[int, dict[str, Any]](), set[tuple[int, CopyKind, str]]()
    for one in orphans:
        ledger_id = int(one.statement.ledger_id)
        why = _never_ours(one, catalog) or _awaited(one, intents[ledger_id]) or _contradicted(one, known[ledger_id])
        twin = (ledger_id, one.copy, _uuid(one))
        if why or twin in seen:
            kept[one.number] = why or f"ledger {ledger_id}: the plan names this copy twice"
            continue
        seen.add(twin)
        highest[ledger_id] = highest.get(ledger_id, 0) + 1
        rows[one.number] = _row(one, batch_id, cause, highest[ledger_id], now_us)
    filed = file_new(connection, list(rows.values()))
    for number, row in rows.items():
        if (row["ledger_id"], row["copy"], row["generation"]) not in filed:
            kept[number] = f"ledger {row['ledger_id']}: an intent for it was filed by another at the same time"
    for ledger_id in alive.keys() & {row["ledger_id"] for row in rows.values()}:
        set_generation(connection, LedgerId(ledger_id), highest[ledger_id])
    return len(filed)


def _never_ours(one: OrphanCopy, known: Any) -> str | None:  # noqa: ANN401 - a row
    statement = one.statement
    if not 0 <= statement.ledger_id < known.next_ledger_id:
        return f"ledger {statement.ledger_id}: this catalog never gave out that id"
    if statement.epoch > known.epoch:
        return f"ledger {statement.ledger_id}: it is of catalog epoch {statement.epoch}, and this is {known.epoch}"
    return None


def _by_ledger(rows: Iterable[Any]) -> defaultdict[int, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[row.ledger_id].append(row)
    return found


def _contradicted(one: OrphanCopy, rows: LedgerRows) -> str | None:
    doubt = doubt_orphan(one.statement, one.copy, _uuid(one), rows)
    return f"ledger {one.statement.ledger_id}: {doubt.reason}" if doubt else None


def _awaited(one: OrphanCopy, intents: Sequence[Any]) -> str | None:
    for row in intents:
        copy = row.copy if row.copy in set(CopyKind) else one.copy.value  # a damaged one may be any
        if row.state != DeletionState.DELETED.value and _is_same(one, copy, row.context):
            return f"ledger {one.statement.ledger_id}: deletion {row.row_id}: the deletion of this copy is {row.state}"
    return None


def _is_same(one: OrphanCopy, copy: str, context: str) -> bool:
    """Whether a row of the ledger stands for this very copy; a context that cannot be read may be any copy's."""
    if copy != one.copy.value:
        return False
    known = context_or_none(context)
    return one.copy is CopyKind.LEDGER or known is None or known.get("uuid", "") == _uuid(one)


def _uuid(one: OrphanCopy) -> str:
    return one.context.get("uuid", "")


def _row(one: OrphanCopy, batch_id: str, cause: Cause, generation: int, now_us: int) -> dict[str, Any]:
    """The facts for phase two: storage's own word stands for that of the catalog, which has none."""
    statement, owner = one.statement, one.statement.owner
    return {
        "batch_id": batch_id,
        "ledger_id": statement.ledger_id,
        "copy": one.copy.value,
        "generation": generation,
        "application": owner.application,
        "component": owner.component.value,
        "topic_id": owner.topic_id,
        "topic": owner.topic,
        "keys": canonical(owner.keys),
        "context": dict(one.context),
        "segments": 0,
        "last_segment": -1,
        "ledger_created_us": statement.created_us,
        "size_bytes": one.size_bytes,
        "epoch": statement.epoch,
        "created_us": now_us,
        "actor": cause.actor,
        "reason": cause.reason,
    }


def _detach(connection: Connection, page: PageOfFindings, kept: dict[int, str], now_us: int) -> tuple[int, int]:
    """Ledgers that nothing names still leave the catalog; how many, and of how many copies."""
    ids = set(page.unreferenced.values())
    of_list = t.ledger.outerjoin(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    query = select(_L.ledger_id, _L.place, _L.state, t.ledger_list.c.component).select_from(of_list)
    found = {row.ledger_id: row for row in connection.execute(query.where(among(connection, _L.ledger_id, ids)))}
    by_row = {component: _names(connection, key, ids) for component, key in BY_ROW.items()}
    rows = known_ledgers(lambda query: map(dict, connection.execute(query).mappings()), ids)
    for number, ledger_id in page.unreferenced.items():
        if why := _reason_to_stay(found.get(ledger_id), by_row, rows[ledger_id]):
            kept[number] = f"ledger {ledger_id}: {why}"
    gone = {ledger_id for number, ledger_id in page.unreferenced.items() if number not in kept}
    to_delete = among(connection, _L.ledger_id, gone)
    filed = file_intents(connection, to_delete, batch_id=page.batch_id, now_us=now_us, cause=page.cause) if gone else 0
    left = _names(connection, _L.ledger_id, gone)
    for number, ledger_id in page.unreferenced.items():
        if ledger_id in left:
            kept[number] = f"ledger {ledger_id}: its copies, its list or its topic have no row"
    return len(gone - left), filed


def _names(connection: Connection, key: Any, ids: Iterable[int]) -> set[int]:  # noqa: ANN401 - a column
    """Those of the ids that the column holds."""
    return set(connection.execute(select(key).where(among(connection, key, ids))).scalars())


def _reason_to_stay(row: Any, by_row: Mapping[str, set[int]], rows: LedgerRows) -> str | None:  # noqa: ANN401 - a row
    if row is None:
        return "it has left the catalog"
    if row.state == LedgerState.CREATING.value:
        return "it is being created"
    named = row.ledger_id in by_row[row.component] if row.component in by_row else row.place is not None
    if named:
        return "something names it"
    doubt = doubt_unreferenced(rows)
    return doubt.reason if doubt else None


def _take_up(connection: Connection, page: PageOfFindings, kept: dict[int, str], now_us: int) -> int:
    """Intents that no workflow works on still join the batch; how many. They are locked first: see `move`."""
    asked = among(connection, _P.row_id, page.stalled.values())
    connection.execute(select(_P.row_id).where(asked).order_by(_P.row_id).with_for_update())
    idle = set(connection.execute(select(_P.row_id).where(asked, stalled(now_us))).scalars())
    kept |= {
        number: f"deletion {row_id}: a workflow works on it, or it has ended"
        for number, row_id in page.stalled.items()
        if row_id not in idle
    }
    return move(connection, among(connection, _P.row_id, idle), batch_id=page.batch_id) if idle else 0
