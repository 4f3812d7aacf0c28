"""Copies of the journals of applies in the records bucket. An undo needs them if the catalog is lost.

An object has some ledgers of one apply. Its first line describes the run of the apply, and each further line is a
ledger as JSON. The key has the digest of the object, so that a torn object, and one of another program, is noticed.
Removals that no undo puts back have objects in a folder of their own. They only prove what was there.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from hashlib import sha256
from itertools import chain, groupby
from typing import Any, Final

from logstore.catalog.reconciliation.cluster_journal import ClusterJournal
from logstore.catalog.reconciliation.reconciliation_runs import ReconciliationRuns
from logstore.errors import PreconditionFailed, StoreUnavailable, UnknownObject
from logstore.failpoints import effect
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.reconciliation import JournaledLedger, JournaledRemoval, ReconciliationRun, RunKind
from logstore.ports.object_storage import ObjectInfo, OwnedStore, object_keys
from logstore.pulsar.plan_jobs import IDENTITY
from logstore.pulsar.znode_names import format_ledger_path
from logstore.reconciliation.findings import RESULT, ApplyCounts, FindingKind, apply_counts, plan_run_id
from logstore.reconciliation.services.run_checks import find_run
from logstore.stop_checks import raise_if_stopped

JOURNAL_PREFIX: Final = "cluster-journals/"

REMOVAL_PREFIX: Final = "cluster-removals/"

READ_BACK: Final = "read_back"
"""Key in the summary of an apply whose journal came from the records bucket. Nothing is known about its end."""

_FORMAT: Final = "sexton-cluster-journal/1"
_REMOVAL_FORMAT: Final = "sexton-cluster-removals/1"
_SUFFIX: Final = ".jsonl"
_ADVICE: Final = "Move it out of this folder, and undo again: ledgers that only this object has stay deleted"


class JournalCopies:
    def __init__(self, records: OwnedStore) -> None:
        self._records = records

    def store(self, run: ReconciliationRun, ledgers: Sequence[JournaledLedger]) -> None:
        """Store some ledgers of an apply. Idempotent."""
        if not ledgers:
            return
        header = {"format": _FORMAT, "run_id": run.run_id, "ledgers": len(ledgers), "summary": dict(run.summary)}
        body = "".join(f"{json.dumps(line)}\n" for line in (header, *map(_make_line, ledgers))).encode()
        with effect("pulsar.put_journal"):
            self._records.put_if_absent(_make_key(run.run_id, body), body, metadata={})

    def store_removals(self, run: ReconciliationRun, removals: Sequence[JournaledRemoval]) -> None:
        """Store some removals of an apply that no undo puts back. Idempotent."""
        names = [field.name for field in fields(JournaledRemoval) if field.name != "removed_us"]
        header = {
            "format": _REMOVAL_FORMAT,
            "run_id": run.run_id,
            "removals": len(removals),
            "summary": dict(run.summary),
        }
        lines = [{name: getattr(removal, name) for name in names} for removal in removals]
        body = "".join(f"{json.dumps(line)}\n" for line in (header, *lines)).encode()
        with effect("pulsar.put_removals"):
            self._records.put_if_absent(_make_key(run.run_id, body, prefix=REMOVAL_PREFIX), body, metadata={})

    def has_copies(self, run_id: str) -> bool:
        """Return whether there is an object of this apply."""
        return next(self._records.list(_make_prefix(run_id), first_page=1), None) is not None

    def read(self, run_id: str) -> Iterator[tuple[str, dict[str, Any], list[JournaledLedger]]]:
        """Yield the key, the summary of the apply, and the ledgers of each object.

        Raises:
            PreconditionFailed: An object is torn, or is no copy of this journal.
        """
        for info in self._records.list(_make_prefix(run_id)):
            raise_if_stopped()
            stored = self._records.get(info.key)
            if stored is None:
                raise PreconditionFailed(f"{info.key}: expected the object that the bucket lists, found none")
            yield info.key, *_parse_object(run_id, info.key, stored.body)

    def remove_old(self, *, older_than_us: int, is_run_known: Callable[[str], bool]) -> None:
        """Remove the copies of applies that the catalog does not know, if all of their objects are so old."""
        listed = chain(self._records.list(JOURNAL_PREFIX), self._records.list(REMOVAL_PREFIX))
        for folder, group in groupby(listed, _find_folder):
            raise_if_stopped()
            objects = list(group)
            are_old = all(info.modified_us is not None and info.modified_us < older_than_us for info in objects)
            if are_old and not is_run_known(folder.partition("/")[2]):
                with effect("pulsar.remove_journal"):
                    report = self._records.begin_removal().delete(object_keys(objects))
                if report.failed:
                    key, error = next(iter(report.failed.items()))
                    raise StoreUnavailable(f"{key}: expected to be deleted, found {error}")


def find_or_read_back_apply(
    runs: ReconciliationRuns, journal: ClusterJournal, copies: JournalCopies, run_id: str, claim: Claim
) -> ReconciliationRun:
    """Return the run of an apply. If the catalog does not have it or its journal, first store them there.

    Idempotency: a run whose journal was not read to its end is read again.

    Raises:
        UnknownObject: Neither the catalog nor the records bucket has an apply with this id.
        PreconditionFailed: An object below the prefix of the apply is torn, or is no copy of its journal.
    """
    run = find_run(runs, run_id)
    if run is not None and (run.finished_us is not None or READ_BACK not in run.summary):
        is_empty = not journal.list_ledgers(run_id, after=-1, limit=1)
        if is_empty and _may_have_deleted(run) and copies.has_copies(run_id):
            _require_one_apply(copies, run_id, of_cluster=run.summary[IDENTITY])
            _read_back_journal(journal, copies, run_id)
        return run
    summary = _require_one_apply(copies, run_id)
    run = runs.open_run(run_id, RunKind.APPLY, claim=claim, summary={**summary, READ_BACK: True})
    ledgers_read = _read_back_journal(journal, copies, run_id)
    result = asdict(ApplyCounts(applied={FindingKind.ORPHAN_LEDGER.value: ledgers_read}))
    runs.close_run(run_id, {**run.summary, RESULT: result})
    return runs.get_run(run_id)


def _may_have_deleted(run: ReconciliationRun) -> bool:
    """Return whether a journal was lost if it is empty: it forgets ledgers that stay, and the copies keep them."""
    return RESULT not in run.summary or FindingKind.ORPHAN_LEDGER.value in apply_counts(run.summary).applied


def _read_back_journal(journal: ClusterJournal, copies: JournalCopies, run_id: str) -> int:
    """Add all ledgers of the copies. Return their number."""
    ledgers_read = 0
    for key, _, ledgers in copies.read(run_id):
        _add_to_journal(journal, run_id, key, ledgers)
        ledgers_read += len(ledgers)
    return ledgers_read


def _require_one_apply(copies: JournalCopies, run_id: str, *, of_cluster: str = "") -> dict[str, Any]:
    """Check all objects before anything is stored. Return the summary of the apply."""
    first: dict[str, Any] | None = None
    for key, summary, _ in copies.read(run_id):
        first = first or summary
        identity = of_cluster or first[IDENTITY]
        if summary[IDENTITY] != identity:
            expected = f"expected the cluster {identity}, as the run or other objects name"
            raise PreconditionFailed(f"{key}: {expected}, found {summary[IDENTITY]}. {_ADVICE}")
    if first is None:
        raise UnknownObject("run_id", expected="a plan whose apply has deleted ledgers", found=plan_run_id(run_id))
    return first


def _add_to_journal(journal: ClusterJournal, run_id: str, key: str, ledgers: Sequence[JournaledLedger]) -> None:
    """Add the ledgers of an object. A ledger that another object has must be the same there."""
    journal.add(run_id, ledgers)
    ids = [ledger.ledger_id for ledger in ledgers]
    stored = journal.list_ledgers(run_id, after=-1, limit=len(ids), ledger_ids=ids)
    for stored_ledger, ledger in zip(stored, sorted(ledgers, key=lambda each: each.ledger_id), strict=True):
        if _make_line(stored_ledger) != _make_line(ledger):
            expected = f"expected ledger {ledger.ledger_id} as in the other objects of its journal"
            raise PreconditionFailed(f"{key}: {expected}, found another value or version")


def _make_prefix(run_id: str) -> str:
    return f"{JOURNAL_PREFIX}{run_id}/"


def _make_key(run_id: str, body: bytes, *, prefix: str = JOURNAL_PREFIX) -> str:
    return f"{prefix}{run_id}/{sha256(body).hexdigest()}{_SUFFIX}"


def _find_folder(info: ObjectInfo) -> str:
    return info.key.rpartition("/")[0]


def _make_line(ledger: JournaledLedger) -> dict[str, Any]:
    fields = {"ledger_id": ledger.ledger_id, "path": ledger.path, "version": ledger.version, "czxid": ledger.czxid}
    return fields | {"data": b64encode(ledger.data).decode()}


def _parse_object(run_id: str, key: str, body: bytes) -> tuple[dict[str, Any], list[JournaledLedger]]:
    """Return the summary of the apply, and the ledgers. For errors see `JournalCopies.read`."""
    if key != _make_key(run_id, body):
        expected = "expected an object whose name is its SHA-256 digest"
        raise PreconditionFailed(f"{key}: {expected}, found the digest {sha256(body).hexdigest()}. {_ADVICE}")
    try:
        header, *lines = map(json.loads, body.splitlines())
        ledgers = list(map(_parse_line, lines))
        summary = dict(header["summary"])
        stated = header["format"], header["run_id"], header["ledgers"]
        _require_texts(summary)
    except (ValueError, LookupError, TypeError) as error:
        raise PreconditionFailed(f"{key}: expected a journal of an apply, found {error!r}. {_ADVICE}") from error
    if stated != (_FORMAT, run_id, len(ledgers)):
        expected = f"expected {_FORMAT} of {run_id} with {len(ledgers)} ledgers"
        raise PreconditionFailed(f"{key}: {expected}, found {' '.join(map(str, stated))}. {_ADVICE}")
    return summary, ledgers


def _require_texts(summary: Mapping[str, Any]) -> None:
    for name in (IDENTITY, "actor", "reason", "plan", "folder"):
        if not isinstance(summary[name], str):
            raise TypeError(f"{name}: expected a text, found {summary[name]!r}")


def _parse_line(line: Mapping[str, Any]) -> JournaledLedger:
    ledger = JournaledLedger(
        ledger_id=int(line["ledger_id"]),
        path=str(line["path"]),
        version=int(line["version"]),
        czxid=int(line["czxid"]),
        data=b64decode(line["data"], validate=True),
    )
    if ledger.path != format_ledger_path(ledger.ledger_id):
        raise ValueError(f"the path {ledger.path} of ledger {ledger.ledger_id}")
    return ledger
