"""Decisions of an apply about the findings of a page, and the fates of these findings. Sole writer of `finding_fate`.

One transaction checks each finding again under locks, makes the change in the catalog, and stores the decision. It
files orphaned copies, unreferenced ledgers and stalled deletions as intents. It passes over the numbers of orphaned
segments, before their objects are deleted. An orphan is not filed if the catalog now has a row, an unfinished intent or
a dead letter of its copy. Lock order: run of the apply, run of the batch, topics, lists, ledgers, intents.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, delete, literal, or_, select, update

from logstore.catalog import tables as t
from logstore.catalog.audit_log import AuditedLedgers, insert_audit_row
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.deletion.intent_queries import count_filed_intents, select_fileable_ledgers
from logstore.catalog.deletion.intent_rows import insert_intents, move_intents_to_batch, replace_ledgers_by_intents
from logstore.catalog.deletion.run_rows import (
    DELETION_RUN_KIND,
    EMPTY_SUMMARY,
    SEVERAL_TOPICS,
    find_earlier_detach,
    insert_run_if_absent,
    match_stalled_intents,
    set_run_summary,
)
from logstore.catalog.engine.dialect_sql import (
    BIG,
    BulkStatement,
    build_bulk_parameter,
    build_insert_if_absent,
    cast_to_text,
    dataclass_from_row,
    is_one_of,
    parse_offload_context,
)
from logstore.catalog.log.component_ledgers import REFERRING_COLUMN_BY_COMPONENT
from logstore.catalog.log.ledger_rows import (
    format_canonical_json,
    lock_ledger_lists,
    raise_last_segments,
    set_generation,
)
from logstore.catalog.log.topics import share_lock_and_filter_active_topics
from logstore.catalog.reconciliation.rows_naming_ledgers import build_segment_sum_columns, read_rows_naming_ledgers
from logstore.catalog.records.recorded_tables import enqueue_records
from logstore.deletion.intents import DeletionState
from logstore.errors import UnknownObject
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import CopyKind, LedgerState
from logstore.ports.catalog.deletion import AuditCause, DetachedBatch
from logstore.ports.catalog.reconciliation import (
    FindingsFilingRequest,
    FindingsToFile,
    OrphanCopy,
    RunKind,
    SingleObjectAnswers,
)
from logstore.positions import LedgerId
from logstore.reconciliation.findings import FateOfFinding, FindingFate
from logstore.reconciliation.orphan_doubts_from_rows import (
    LedgerRows,
    SegmentSums,
    describe_lost_segments,
    doubt_orphan,
    doubt_removal_of_unreferenced,
)
from logstore.reconciliation.plausibility_guards import reason_to_keep_segment, takes_segments

_P, _R, _L, _S, _C = t.pending_deletion.c, t.run.c, t.ledger.c, t.segment.c, t.ledger_copy.c
_F = t.finding_fate.c
_MAX_AUDITED_KEYS: Final = 10  # sample of the segments' keys in one audit row


def lock_apply_run(connection: Connection, run_id: str) -> None:
    """Lock the run of an apply, so that it is not removed before its decisions. Raise `UnknownObject` without a run."""
    run = select(_R.run_id).where(_R.run_id == run_id, _R.kind == RunKind.APPLY.value)
    if connection.execute(run.with_for_update()).first() is None:
        raise UnknownObject("run id", expected="the run of an apply", found=run_id)


def read_fates(connection: Connection, run_id: str, page: int) -> dict[int, FateOfFinding | None]:
    query = select(t.finding_fate).where(_F.run_id == run_id, _F.page == page).order_by(_F.number)
    return {
        row.number: dataclass_from_row(FateOfFinding, row, fate=FindingFate(row.fate)) if row.fate else None
        for row in connection.execute(query)
    }


def _insert_decisions(
    connection: Connection, run_id: str, page: int, numbers: Collection[int], reasons: Mapping[int, str]
) -> None:
    """Store for each finding of `numbers` that it is kept, if it has a reason, or that it is to be removed."""
    rows = [
        {
            "run_id": run_id,
            "page": page,
            "number": number,
            "fate": FindingFate.KEPT.value if number in reasons else None,
            "reason": reasons.get(number, ""),
            "objects": 0,
            "size_bytes": 0,
        }
        for number in sorted(numbers)
    ]
    if rows:
        connection.execute(build_insert_if_absent(connection, t.finding_fate), rows)


def update_fates(connection: Connection, run_id: str, page: int, fates: Iterable[FateOfFinding]) -> None:
    is_to_remove = or_(_F.fate.is_(None), _F.fate != FindingFate.KEPT.value)
    same = (_F.run_id == run_id, _F.page == page, _F.number == bindparam("finding"), is_to_remove)
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in ("fate", "reason", "objects", "size_bytes")}
    rows = [
        {
            "finding": fate.number,
            "new_fate": fate.fate.value,
            "new_reason": fate.reason,
            "new_objects": fate.objects,
            "new_size_bytes": fate.size_bytes,
        }
        for fate in fates
    ]
    if rows:
        connection.execute(update(t.finding_fate).where(*same).values(values), rows)


def remove_fates(connection: Connection, run_ids: Collection[str]) -> None:
    connection.execute(delete(t.finding_fate).where(_F.run_id.in_(run_ids)))


def _fingerprint_page(page: FindingsFilingRequest) -> str:
    """Return a digest of the findings, whatever storage answered about them.

    If the batch's run has another digest, another request has used the batch id.
    """
    copies = sorted([*(orphan.number for orphan in page.orphans), *page.kept])
    request_parts = [page.run_id, page.page, copies, sorted(page.unreferenced.items()), sorted(page.stalled.items())]
    return hashlib.sha256(f"findings/{json.dumps(request_parts)}".encode()).hexdigest()


def find_filed_batch(connection: Connection, batch_id: str) -> DetachedBatch | None:
    run = select(_R.summary).where(_R.run_id == batch_id, _R.kind == DELETION_RUN_KIND)
    summary = connection.execute(run).scalar_one_or_none()
    if summary is None:
        return None
    return DetachedBatch(batch_id=batch_id, ledgers=summary["ledgers"], intents=summary["intents"])


def file_findings(connection: Connection, page: FindingsFilingRequest, now_us: int) -> DetachedBatch:
    lock_apply_run(connection, page.run_id)
    request = _fingerprint_page(page)
    earlier = find_earlier_detach(connection, page.batch_id, request)
    if earlier is None and not insert_run_if_absent(
        connection,
        page.batch_id,
        DELETION_RUN_KIND,
        EMPTY_SUMMARY | {"request": request},
        claim=page.claim,
        now_us=now_us,
    ):
        earlier = find_earlier_detach(connection, page.batch_id, request)  # stored by a concurrent call
    return earlier or _file_under_locks(connection, page, request, now_us)


def preview_filing(connection: Connection, findings: FindingsToFile, now_us: int) -> dict[int, str]:
    return dict(_decide_what_to_file(connection, findings, now_us, lock=False).reasons)


def _file_under_locks(connection: Connection, page: FindingsFilingRequest, request: str, now_us: int) -> DetachedBatch:
    _lock_topics_and_lists(
        connection, {orphan.statement.ledger_id for orphan in page.orphans} | set(page.unreferenced.values())
    )
    decision = _decide_what_to_file(connection, page, now_us, lock=True)
    reason_by_kept_finding = dict(decision.reasons)
    orphans = _file_orphans(connection, page, decision, reason_by_kept_finding, now_us)
    ledgers = {ledger_id for number, ledger_id in page.unreferenced.items() if number not in reason_by_kept_finding}
    copies = 0
    if ledgers:
        to_delete = is_one_of(connection, _L.ledger_id, ledgers)
        copies = replace_ledgers_by_intents(
            connection, to_delete, batch_id=page.batch_id, now_us=now_us, cause=page.cause
        )
    stalled_rows = {row_id for number, row_id in page.stalled.items() if number not in reason_by_kept_finding}
    resumed = (
        move_intents_to_batch(connection, is_one_of(connection, _P.row_id, stalled_rows), batch_id=page.batch_id)
        if stalled_rows
        else 0
    )
    filed = DetachedBatch(
        batch_id=page.batch_id,
        ledgers=len(ledgers),
        intents=orphans + copies + resumed,
        filed_counts=count_filed_intents(connection, page.batch_id, now_us),
    )
    summary = EMPTY_SUMMARY | {"ledgers": filed.ledgers, "intents": filed.intents, "request": request}
    set_run_summary(connection, page.batch_id, summary)
    numbers = {*(orphan.number for orphan in page.orphans), *page.kept, *page.unreferenced, *page.stalled}
    _insert_decisions(connection, page.run_id, page.page, numbers, {**page.kept, **reason_by_kept_finding})
    insert_audit_row(
        connection,
        "file-findings",
        page.cause,
        at_us=now_us,
        topic_id=SEVERAL_TOPICS,
        topic=None,
        run_id=page.batch_id,
        detail={
            "orphans": orphans,
            "unreferenced": len(ledgers),
            "stalled": resumed,
            "kept": len(reason_by_kept_finding),
        },
        span=AuditedLedgers.from_query(connection, _P.ledger_id, _P.batch_id == page.batch_id),
    )
    return filed


def _lock_topics_and_lists(connection: Connection, ledger_ids: Iterable[int]) -> None:
    of_list = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    query = select(_L.list_id, t.ledger_list.c.topic_id).select_from(of_list)
    rows = connection.execute(query.where(is_one_of(connection, _L.ledger_id, ledger_ids)).distinct()).all()
    share_lock_and_filter_active_topics(connection, {row.topic_id for row in rows})
    lock_ledger_lists(connection, is_one_of(connection, t.ledger_list.c.list_id, {row.list_id for row in rows}))


@dataclass(frozen=True, slots=True)
class _FilingDecision:
    reasons: Mapping[int, str]  # reasons to keep a finding, by number of the finding
    generations: Mapping[int, int]  # highest generation of each ledger that has a row or an intent
    with_row: frozenset[int]  # ledgers of orphans that have a row


def _decide_what_to_file(
    connection: Connection, findings: FindingsToFile, now_us: int, *, lock: bool
) -> _FilingDecision:
    """Decide which findings to file. With `lock`, also lock the intents. The caller has locked the lists."""
    decision = _decide_orphans_to_file(connection, findings.orphans, lock=lock)
    reasons = {
        **decision.reasons,
        **_find_reasons_to_keep_unreferenced(connection, findings.unreferenced),
        **_find_reasons_to_keep_stalled(connection, findings.stalled, now_us, lock=lock),
    }
    return _FilingDecision(reasons, decision.generations, decision.with_row)


def _decide_orphans_to_file(connection: Connection, orphans: Sequence[OrphanCopy], *, lock: bool) -> _FilingDecision:
    """Read the next ledger id before rows, and copies before intents, so that no concurrent change is overlooked."""
    catalog = read_catalog_row(connection)
    ids = {orphan.statement.ledger_id for orphan in orphans}
    rows_by_ledger = read_rows_naming_ledgers(lambda query: map(dict, connection.execute(query).mappings()), ids)
    columns = (_P.row_id, _P.ledger_id, _P.copy, _P.generation, _P.state, cast_to_text(_P.context))
    query = select(*columns).where(is_one_of(connection, _P.ledger_id, ids)).order_by(_P.row_id)
    intents = _group_by_ledger(connection.execute(query.with_for_update() if lock else query))
    ledgers = select(_L.ledger_id, _L.generation).where(is_one_of(connection, _L.ledger_id, ids))
    generation_by_ledger = {row.ledger_id: row.generation for row in connection.execute(ledgers)}
    reasons, copies = dict[int, str](), set[tuple[int, CopyKind, str]]()
    for orphan in orphans:
        ledger_id = int(orphan.statement.ledger_id)
        copy = (ledger_id, orphan.copy, _upload_uuid(orphan))
        reason = (
            _describe_foreign_id(orphan, catalog)
            or _describe_unfinished_deletion(orphan, intents[ledger_id])
            or _describe_contradicting_rows(orphan, rows_by_ledger[ledger_id])
            or (f"ledger {ledger_id}: the plan names this copy twice" if copy in copies else None)
        )
        if reason:
            reasons[orphan.number] = reason
        else:
            copies.add(copy)
    generations = {
        ledger_id: max([generation_by_ledger.get(ledger_id, 0), *(row.generation for row in intents[ledger_id])])
        for ledger_id in {*generation_by_ledger, *intents}
    }
    return _FilingDecision(reasons, generations, frozenset(generation_by_ledger))


def _file_orphans(
    connection: Connection,
    page: FindingsFilingRequest,
    decision: _FilingDecision,
    reason_by_kept_finding: dict[int, str],
    now_us: int,
) -> int:
    """File each orphan with the next generation of its ledger. Return the number of filed orphans.

    An orphan that another transaction filed meanwhile is added to `reason_by_kept_finding`.
    """
    generations, rows = dict(decision.generations), dict[int, dict[str, Any]]()
    for orphan in page.orphans:
        if orphan.number not in reason_by_kept_finding:
            ledger_id = int(orphan.statement.ledger_id)
            generations[ledger_id] = generations.get(ledger_id, 0) + 1
            rows[orphan.number] = _build_intent_row(orphan, page, generations[ledger_id], now_us)
    filed = insert_intents(connection, list(rows.values()))
    for number, row in rows.items():
        if (row["ledger_id"], row["copy"], row["generation"]) not in filed:
            reason_by_kept_finding[number] = (
                f"ledger {row['ledger_id']}: an intent for it was filed by another at the same time"
            )
    for ledger_id in decision.with_row & {row["ledger_id"] for row in rows.values()}:
        set_generation(connection, LedgerId(ledger_id), generations[ledger_id])
    return len(filed)


def _describe_foreign_id(orphan: OrphanCopy, catalog: Any) -> str | None:  # noqa: ANN401 - a row
    statement = orphan.statement
    if not 0 <= statement.ledger_id < catalog.next_ledger_id:
        return f"ledger {statement.ledger_id}: this catalog never gave out that id"
    if statement.epoch > catalog.epoch:
        return f"ledger {statement.ledger_id}: it is of catalog epoch {statement.epoch}, and this is {catalog.epoch}"
    return None


def _group_by_ledger(rows: Iterable[Any]) -> defaultdict[int, list[Any]]:
    rows_by_ledger = defaultdict(list)
    for row in rows:
        rows_by_ledger[row.ledger_id].append(row)
    return rows_by_ledger


def _describe_contradicting_rows(orphan: OrphanCopy, rows: LedgerRows) -> str | None:
    doubt = doubt_orphan(orphan.statement, orphan.copy, _upload_uuid(orphan), rows)
    return f"ledger {orphan.statement.ledger_id}: {doubt.reason}" if doubt else None


def _describe_unfinished_deletion(orphan: OrphanCopy, intents: Sequence[Any]) -> str | None:
    for row in intents:
        copy = row.copy if row.copy in set(CopyKind) else orphan.copy.value  # a damaged row may be of any copy
        if row.state != DeletionState.DELETED.value and _is_row_of_copy(orphan, copy, row.context):
            ledger_id = orphan.statement.ledger_id
            return f"ledger {ledger_id}: deletion {row.row_id}: the deletion of this copy is {row.state}"
    return None


def _is_row_of_copy(orphan: OrphanCopy, copy: str, context: str) -> bool:
    """Return whether a row with `copy` and `context` may be about the orphan. An unreadable context matches."""
    if copy != orphan.copy.value:
        return False
    fields = parse_offload_context(context)
    return orphan.copy is CopyKind.LEDGER or fields is None or fields.get("uuid", "") == _upload_uuid(orphan)


def _upload_uuid(orphan: OrphanCopy) -> str:
    return orphan.context.get("uuid", "")


def _build_intent_row(orphan: OrphanCopy, page: FindingsFilingRequest, generation: int, now_us: int) -> dict[str, Any]:
    statement, owner = orphan.statement, orphan.statement.owner
    return {
        "batch_id": page.batch_id,
        "ledger_id": statement.ledger_id,
        "copy": orphan.copy.value,
        "generation": generation,
        "application": owner.application,
        "component": owner.component.value,
        "topic_id": owner.topic_id,
        "topic": owner.topic,
        "keys": format_canonical_json(owner.keys),
        "context": dict(orphan.context),
        "segments": 0,
        "last_segment": -1,
        "ledger_created_us": statement.created_us,
        "size_bytes": orphan.size_bytes,
        "epoch": statement.epoch,
        "created_us": now_us,
        "actor": page.cause.actor,
        "reason": page.cause.reason,
    }


def _find_reasons_to_keep_unreferenced(connection: Connection, unreferenced: Mapping[int, LedgerId]) -> dict[int, str]:
    ids = set(unreferenced.values())
    of_list = t.ledger.outerjoin(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    query = select(_L.ledger_id, _L.place, _L.state, t.ledger_list.c.component).select_from(of_list)
    ledgers = {row.ledger_id: row for row in connection.execute(query.where(is_one_of(connection, _L.ledger_id, ids)))}
    referenced_ids_by_component = {
        component: set(connection.execute(select(key).where(is_one_of(connection, key, ids))).scalars())
        for component, key in REFERRING_COLUMN_BY_COMPONENT.items()
    }
    rows = read_rows_naming_ledgers(lambda query: map(dict, connection.execute(query).mappings()), ids)
    fileable = set(connection.execute(select_fileable_ledgers(is_one_of(connection, _L.ledger_id, ids))).scalars())
    reasons = dict[int, str]()
    for number, ledger_id in unreferenced.items():
        reason = _find_reason_to_keep_ledger(ledgers.get(ledger_id), referenced_ids_by_component, rows[ledger_id])
        if reason is None and ledger_id not in fileable:
            reason = "its copies, its list or its topic have no row"
        if reason:
            reasons[number] = f"ledger {ledger_id}: {reason}"
    return reasons


def _find_reason_to_keep_ledger(
    row: Row[Any, Any, Any, Any] | None, referenced_ids_by_component: Mapping[str, set[int]], rows: LedgerRows
) -> str | None:
    if row is None:
        return "it has left the catalog"
    if row.state == LedgerState.CREATING.value:
        return "it is being created"
    is_named = (
        row.ledger_id in referenced_ids_by_component[row.component]
        if row.component in referenced_ids_by_component
        else row.place is not None
    )
    if is_named:
        return "something names it"
    doubt = doubt_removal_of_unreferenced(rows)
    return doubt.reason if doubt else None


def _find_reasons_to_keep_stalled(
    connection: Connection, stalled_rows: Mapping[int, int], now_us: int, *, lock: bool
) -> dict[int, str]:
    """Return, by number of the finding, why an intent is not stalled. With `lock`, first lock the intents."""
    is_asked = is_one_of(connection, _P.row_id, stalled_rows.values())
    if lock:
        connection.execute(select(_P.row_id).where(is_asked).order_by(_P.row_id).with_for_update())
    idle = set(connection.execute(select(_P.row_id).where(is_asked, match_stalled_intents(now_us))).scalars())
    return {
        number: f"deletion {row_id}: a workflow works on it, or it has ended"
        for number, row_id in stalled_rows.items()
        if row_id not in idle
    }


def decide_single_objects(
    connection: Connection, run_id: str, page: int, answers: SingleObjectAnswers, *, cause: AuditCause, now_us: int
) -> dict[int, FateOfFinding | None]:
    lock_apply_run(connection, run_id)
    numbers = {*answers.segments, *answers.uploads, *answers.kept}
    fates = read_fates(connection, run_id, page)
    if not numbers <= fates.keys():
        reasons = {**answers.kept, **_pass_over_segments(connection, answers.segments, cause, now_us)}
        _insert_decisions(connection, run_id, page, numbers, reasons)
        fates = read_fates(connection, run_id, page)
    return {number: fates[number] for number in sorted(numbers)}


def _pass_over_segments(
    connection: Connection, segment_by_finding: Mapping[int, tuple[LedgerId, int]], cause: AuditCause, now_us: int
) -> dict[int, str]:
    """Return reasons to keep segments. The lock order is that of an append: topics, then ledgers."""
    ids_of_segments = {ledger_id for ledger_id, _ in segment_by_finding.values()}
    _lock_topics_and_ledgers(connection, ids_of_segments)
    ledgers = _read_ledgers_by_id(connection, ids_of_segments)
    reason_by_kept_segment = _find_reasons_to_keep_segments(connection, segment_by_finding, ledgers, {})
    passed_segments = sorted(
        segment for number, segment in segment_by_finding.items() if number not in reason_by_kept_segment
    )
    if passed_segments:
        highest_number_by_ledger: dict[int, int] = {
            ledger_id: number
            for ledger_id, number in passed_segments
            if takes_segments(LedgerState(ledgers[ledger_id].state))
        }
        raise_last_segments(connection, highest_number_by_ledger)
        ids = sorted({ledger_id for ledger_id, _ in passed_segments})
        # No trigger records `last_segment`, because the record of a new segment has it. Here, no segment is new.
        changed = select(literal("ledger"), _L.ledger_id, literal("")).where(is_one_of(connection, _L.ledger_id, ids))
        enqueue_records(connection, changed, at_us=now_us)
        about: dict[str, Any] = {**_read_common_topic(connection, ids), "span": AuditedLedgers.from_ids(ids)}
        keys = [segment_key(ledger_id, number) for ledger_id, number in passed_segments[:_MAX_AUDITED_KEYS]]
        detail = {"segments": len(passed_segments), "kept": len(reason_by_kept_segment), "keys": keys}
        insert_audit_row(connection, "pass-over-segments", cause, at_us=now_us, detail=detail, **about)
    return reason_by_kept_segment


def preview_pass_over_segments(
    connection: Connection,
    segment_by_finding: Mapping[int, tuple[LedgerId, int]],
    passed_over: Mapping[LedgerId, int],
) -> dict[int, str]:
    ledgers = _read_ledgers_by_id(connection, {ledger_id for ledger_id, _ in segment_by_finding.values()})
    return _find_reasons_to_keep_segments(connection, segment_by_finding, ledgers, passed_over)


def _read_common_topic(connection: Connection, ids: Sequence[int]) -> dict[str, Any]:
    """Return id and name of the ledgers' topic. For several topics, return `SEVERAL_TOPICS` and no name."""
    of_ledgers = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    ledgers_with_topics = of_ledgers.join(t.topic, t.topic.c.topic_id == t.ledger_list.c.topic_id)
    query = (
        select(t.topic.c.topic_id, t.topic.c.name)
        .select_from(ledgers_with_topics)
        .where(is_one_of(connection, _L.ledger_id, ids))
    )
    topics = connection.execute(query.distinct().limit(2)).all()
    topic = topics[0] if len(topics) == 1 else None
    return {"topic_id": topic.topic_id if topic else SEVERAL_TOPICS, "topic": topic.name if topic else None}


def _lock_topics_and_ledgers(connection: Connection, ids: set[LedgerId]) -> None:
    is_asked = is_one_of(connection, _L.ledger_id, ids)
    of_list = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == _L.list_id)
    topics = select(t.ledger_list.c.topic_id).select_from(of_list).where(is_asked).distinct()
    share_lock_and_filter_active_topics(connection, connection.execute(topics).scalars())
    connection.execute(select(_L.ledger_id).where(is_asked).order_by(_L.ledger_id).with_for_update())


def _read_ledgers_by_id(connection: Connection, ids: set[LedgerId]) -> dict[int, Any]:
    copy = and_(_C.ledger_id == _L.ledger_id, _C.kind == CopyKind.LEDGER.value)
    columns = (_L.ledger_id, _L.state, _L.last_segment, _L.segments, _L.entries, _L.size_bytes)
    query = select(*columns, _C.kind.label("primary"), *build_segment_sum_columns())
    rows = connection.execute(
        query.select_from(t.ledger.outerjoin(t.ledger_copy, copy)).where(is_one_of(connection, _L.ledger_id, ids))
    )
    return {row.ledger_id: row for row in rows}


def _find_reasons_to_keep_segments(
    connection: Connection,
    segments: Mapping[int, tuple[LedgerId, int]],
    ledgers: Mapping[int, Any],
    passed_over: Mapping[LedgerId, int],
) -> dict[int, str]:
    """Return, by number of the finding, why a segment is kept. `passed_over` has the last segment number by ledger."""
    registered = _filter_registered_segments(connection, sorted(set(segments.values())))
    return {
        number: f"segment {segment[1]} of ledger {segment[0]}: {reason}"
        for number, segment in segments.items()
        if (
            reason := _find_reason_to_keep_segment(
                ledgers.get(segment[0]), segment, registered, passed_over.get(segment[0], -1)
            )
        )
    }


def _filter_registered_segments(
    connection: Connection, segments: Sequence[tuple[LedgerId, int]]
) -> set[tuple[int, int]]:
    rows = build_bulk_parameter(connection.dialect.name, "asked", {"ledger_id": BIG, "number": BIG})
    same = and_(_S.ledger_id == rows.source.c.ledger_id, _S.number == rows.source.c.number)
    query = BulkStatement(sql=select(_S.ledger_id, _S.number).join_from(t.segment, rows.source, same), rows=rows)
    return {(row.ledger_id, row.number) for row in query.execute(connection, segments)}


def _find_reason_to_keep_segment(
    ledger: Any,  # noqa: ANN401 - a row
    segment: tuple[int, int],
    registered: set[tuple[int, int]],
    passed_over: int,
) -> str | None:
    if ledger is None:
        return "the ledger has left the catalog"
    if segment in registered:
        return "a row names it"
    counted = SegmentSums(segments=ledger.segments, entries=ledger.entries, size_bytes=ledger.size_bytes)
    summed = SegmentSums(
        segments=ledger.summed_segments, entries=ledger.summed_entries, size_bytes=ledger.summed_size_bytes
    )
    if reason := describe_lost_segments(counted, summed):
        return f"{reason}; the object may be one of them"
    state, primary = LedgerState(ledger.state), ledger.primary is not None
    last_segment = max(ledger.last_segment, passed_over)
    return reason_to_keep_segment(state, last_segment=last_segment, has_primary_copy=primary, number=segment[1])
