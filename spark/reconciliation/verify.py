"""`verify-findings`: each candidate is asked about once more, at storage and then in the catalog; what stands is found.

The listing is some time ago: an object that it lacks may have come since, a row that it lacks may have been read before
its object was listed. So absence counts after a HEAD that finds nothing and a second look at the row, and an orphan
counts with storage's own statement of whose it is.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from infra.catalog.engine.adbc import ArrowReader, open_arrow_reader
from infra.catalog.engine.dialects import parse_context_or_empty
from infra.catalog.reconciliation import facts as sql
from infra.catalog.reconciliation.known import known_ledgers
from logstore.log.ledgers import (
    CopyKind,
    LedgerStatement,
    is_confirmation,
    ledger_prefix,
    owner_digest_from_key,
    segment_key,
    segment_number_from_key,
)
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId
from logstore.reconciliation.files import PAGE, SCHEMA, FindingFiles, as_table
from logstore.reconciliation.findings import Finding, FindingKind
from logstore.reconciliation.jobs import BulkSummary, VerifyFindings
from logstore.reconciliation.known_ledgers import (
    LedgerRows,
    describe_lost_ledger,
    describe_lost_segments,
    doubt_orphan,
    doubt_segment,
    doubt_unreferenced,
)
from logstore.reconciliation.services.orphans import (
    GONE,
    OTHER_APPLICATION,
    UNSTATED,
    YOUNG,
    Doubt,
    doubt_upload,
    is_copy,
    is_object,
    judge,
    look,
)
from logstore.whole_files import replace_atomically
from spark.runner import JobRun
from spark.sources.objects import NativeAddresses

_ASKING: Final = 16  # requests at once in a task
_PAGES: Final = 8  # of candidates, in a task
_KIND = FindingKind
_CONFIRMS: Final = "it says where a segment was registered, and goes with its ledger"


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    pages: tuple[int, ...]


def verify_findings(addresses: NativeAddresses, run: JobRun, job: VerifyFindings) -> BulkSummary:
    """The main of the job.

    Raises:
        StoreUnavailable: Storage or database did not answer.
    """
    folder = Path(run.inputs("compare-sides").folder)
    pages = range(FindingFiles(folder).pages)
    tasks = [_Task(number, tuple(pages[at : at + _PAGES])) for number, at in enumerate(range(0, len(pages), _PAGES))]
    work = partial(_verify, candidates=folder, folder=run.folder, addresses=addresses, before_us=job.before_us)
    counts = run.spread("ask storage and catalog again", tasks, work)
    return BulkSummary(counts={kind.value: sum(one[kind.value] for one in counts) for kind in FindingKind})


def _verify(task: _Task, *, candidates: Path, folder: Path, addresses: NativeAddresses, before_us: int) -> Counter[str]:
    """In an executor: some pages of candidates into one file of findings. A task may run twice at once."""
    files, counts = FindingFiles(candidates), Counter[str]()
    stores = {address.bucket: address.store() for address in addresses.stores}
    with (
        replace_atomically(folder / f"findings-{task.number:06d}.parquet") as new,
        pq.ParquetWriter(new, SCHEMA) as writer,
        open_arrow_reader(addresses.database_url) as catalog,
    ):
        for number in task.pages:
            found = verified(list(files.page(number).values()), stores, catalog, before_us, addresses.application)
            counts.update(one.kind.value for one in found)
            if found:
                writer.write_table(as_table(found), row_group_size=PAGE)
    return counts


def verified(
    candidates: Sequence[Finding],
    stores: Mapping[str, ObjectStore],
    catalog: ArrowReader,
    before_us: int,
    application: str,
) -> list[Finding]:
    """Those that stand, with what storage says of them, in their order."""
    names = _names_of_absent(candidates, catalog)

    def ask(one: Finding) -> Finding | None:
        if is_copy(one) or one.kind is _KIND.ORPHAN_SEGMENT:
            return _stated(one, stores[one.bucket], before_us, application)
        if is_object(one):  # parts of an upload state nothing
            return None if doubt_upload(stores[one.bucket], one.key, before_us) else one
        if one.kind is _KIND.MISSING_DATA and not _is_row(one):
            return _still_missing(one, stores[one.bucket], names.get(one.ledger_id, ()))
        return one

    with ThreadPoolExecutor(_ASKING, thread_name_prefix="verify") as threads:
        asked = [one for one in threads.map(ask, candidates) if one]
    return _still_named(asked, catalog)


def _stated(one: Finding, store: ObjectStore, before_us: int, application: str) -> Finding | None:
    """An orphan with what storage states, or foreign or a mismatch by that; None if it is gone, or young."""
    seen = look(store, one)
    judged = judge(one, seen, before_us=before_us, application=application)
    if isinstance(judged, Doubt) and judged.reason in {GONE, YOUNG}:
        return None
    now = replace(
        one,
        objects=len(seen.objects),
        size_bytes=seen.size_bytes,
        newest_us=max(found.modified_us or 0 for found in seen.objects),
        statement=dict(next(iter(seen.metadata.values()), {})),
    )
    if isinstance(judged, Doubt):
        kind = _KIND.FOREIGN if judged.reason in {UNSTATED, OTHER_APPLICATION} else _KIND.MISMATCH
        return replace(now, kind=kind, detail=f"{judged.key}: {judged.reason}")
    if one.kind is _KIND.ORPHAN_SEGMENT and is_confirmation(segment_number_from_key(one.key) or 0, now.statement):
        return replace(now, kind=_KIND.CONFIRMATION, topic=judged.owner.topic, detail=_CONFIRMS)
    return replace(now, topic=judged.owner.topic)


def _names_of_absent(candidates: Sequence[Finding], catalog: ArrowReader) -> dict[int | None, list[str]]:
    """Keys that the catalog knows of ledgers of which a listing showed nothing, the own statement first."""
    absent = [one for one in candidates if one.kind is _KIND.MISSING_DATA and one.key.endswith("/")]
    ids = sorted({one.ledger_id for one in absent if one.ledger_id is not None})
    names: dict[int | None, list[str]] = {ledger_id: [] for ledger_id in ids}
    if not ids:
        return names
    known = known_ledgers(lambda query: catalog.table(query).to_pylist(), ids)
    for ledger_id in ids:
        owners = {owner.digest for owner in known[ledger_id].owners}
        names[ledger_id] += [f"{ledger_prefix(ledger_id)}{digest}.meta.json" for digest in sorted(owners)]
    for row in catalog.table(sql.segments(ids)).to_pylist():
        names[row["ledger_id"]].append(segment_key(LedgerId(row["ledger_id"]), row["number"]))
    return names


def _still_missing(one: Finding, store: ObjectStore, names: Sequence[str]) -> Finding | None:
    """Data that independent reads do not find either, or that is still too short.

    Args:
        one: An object; or a ledger, of which another listing and a HEAD of each of `names` must find nothing.
        store: Its bucket.
        names: Keys of the ledger's objects.
    """
    if one.key.endswith("/"):
        ours = (
            owner_digest_from_key(found.key) or segment_number_from_key(found.key) is not None
            for found in store.list(one.key)
        )
        return None if any(ours) or any(map(store.head, names)) else one
    seen = store.head(one.key)
    if seen is None:
        return one
    return one if one.objects and seen[0].size_bytes == one.size_bytes else None


def _still_named(asked: Sequence[Finding], catalog: ArrowReader) -> list[Finding]:
    """Without what the catalog says no longer.

    Missing data that no row names any more was detached meanwhile, and deleted as it should be. So was a ledger without
    a reference, and an intent that stood still may have a workflow again, or be over.
    """
    is_still = _named(asked, catalog) | _rows(asked, catalog)
    still = (one for one in asked if one.kind not in is_still or is_still[one.kind](one))
    return list(filter(None, _judge_by_catalog(list(still), catalog)))


def _judge_by_catalog(asked: Sequence[Finding], catalog: ArrowReader) -> Iterator[Finding | None]:
    """Orphans as the catalog's other rows show them: damage, another store's objects, or None if a copy has its row."""
    judged = (*filter(_is_orphan, asked), *filter(_is_row, asked), *filter(_is_unreferenced, asked))
    ids = {one.ledger_id for one in judged if one.ledger_id is not None}
    known = known_ledgers(lambda query: catalog.table(query).to_pylist(), ids) if ids else {}
    for one in asked:
        if one.ledger_id is None or one.ledger_id not in known:
            yield one
        elif _is_row(one):
            yield _judge_lost_rows(one, known[one.ledger_id])
        elif _is_unreferenced(one):
            yield _judge_unreferenced(one, known[one.ledger_id])
        elif _is_orphan(one):
            yield _judged_orphan(one, known[one.ledger_id])
        else:
            yield one


def _judge_lost_rows(finding: Finding, rows: LedgerRows) -> Finding | None:
    """Return the finding if the ledger lacks rows still, with those that it lacks of its segments."""
    if not rows.has_row:
        reason = describe_lost_ledger(rows)
        return replace(finding, detail=reason) if reason else None
    if not rows.copies:
        return finding
    reason = describe_lost_segments(rows.counted, rows.summed)
    return replace(finding, detail=f"{reason}; repair the catalog by hand") if reason else None


def _judge_unreferenced(finding: Finding, rows: LedgerRows) -> Finding | None:
    """Return the finding if rows prove that nobody needs the ledger, else the loss of the row that named it."""
    if not rows.has_row:
        return None
    doubt = doubt_unreferenced(rows)
    return replace(finding, kind=doubt.kind, detail=doubt.reason) if doubt and doubt.kind else finding


def _judged_orphan(one: Finding, rows: LedgerRows) -> Finding | None:
    statement = LedgerStatement.from_metadata(one.statement)
    if one.kind is _KIND.ORPHAN_SEGMENT:
        doubt = doubt_segment(statement, rows)
    else:
        doubt = doubt_orphan(statement, CopyKind(one.copy), one.uuid, rows)
    if doubt is None:
        return one
    return None if doubt.kind is None else replace(one, kind=doubt.kind, detail=doubt.reason)


def _is_orphan(one: Finding) -> bool:
    """Whether storage's statement about it can be compared with the catalog: parts of an upload have none."""
    return is_copy(one) or one.kind is _KIND.ORPHAN_SEGMENT


def _is_unreferenced(finding: Finding) -> bool:
    return finding.kind is _KIND.UNREFERENCED_LEDGER


def _is_row(one: Finding) -> bool:
    """Whether it is of a ledger that has lost its own row, or rows of its copies or of its segments."""
    return one.kind is _KIND.MISSING_DATA and not one.copy


def _rows(asked: Sequence[Finding], catalog: ArrowReader) -> dict[FindingKind, Callable[[Finding], bool]]:
    lost = [one.ledger_id for one in asked if one.kind is _KIND.UNREFERENCED_LEDGER and one.ledger_id is not None]
    still = [one.row_id for one in asked if one.kind is _KIND.STALLED_DELETION and one.row_id is not None]
    ledgers = set(catalog.table(sql.unreferenced_ledgers(lost))["ledger_id"].to_pylist()) if lost else set()
    rows = set(catalog.table(sql.stalled_intents(still))["row_id"].to_pylist()) if still else set()
    return {
        _KIND.UNREFERENCED_LEDGER: lambda one: one.ledger_id in ledgers,
        _KIND.STALLED_DELETION: lambda one: one.row_id in rows,
    }


def _named(asked: Sequence[Finding], catalog: ArrowReader) -> dict[FindingKind, Callable[[Finding], bool]]:
    missing = (one for one in asked if one.kind is _KIND.MISSING_DATA and not _is_row(one))
    doubted = sorted({one.ledger_id for one in missing if one.ledger_id is not None})
    copies: set[tuple[int, str]] = set()
    numbers: set[tuple[int, int]] = set()
    for at in range(0, len(doubted), sql.MOST_LEDGERS):
        ids = doubted[at : at + sql.MOST_LEDGERS]
        for row in catalog.table(sql.copies_of(ids)).to_pylist():
            copies.add((row["ledger_id"], row["kind"] + parse_context_or_empty(row["context"]).get("uuid", "")))
        numbers |= {(row["ledger_id"], row["number"]) for row in catalog.table(sql.segments(ids)).to_pylist()}
    return {_KIND.MISSING_DATA: lambda one: _is_row(one) or _is_named(one, copies, numbers)}


def _is_named(one: Finding, copies: set[tuple[int, str]], numbers: set[tuple[int, int]]) -> bool:
    if (one.ledger_id or 0, one.copy + one.uuid) not in copies:
        return False
    number = segment_number_from_key(one.key)
    return number is None or (one.ledger_id or 0, number) in numbers
