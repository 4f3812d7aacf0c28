"""Certificates of applies in the records bucket: proof of what was deleted, by whom and why.

A certificate lists each ledger that the applies of one plan have deleted so far, and what they have removed for good.
It is written once and never removed. Its key ends with its SHA-256 digest, so that anybody can check it with
`sha256sum`.
"""

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, BinaryIO, Final

from logstore.catalog.reconciliation.cluster_journal import ClusterJournal, iterate_journal, iterate_removals
from logstore.failpoints import effect
from logstore.ports.catalog.reconciliation import JournaledLedger, JournaledRemoval, ReconciliationRun
from logstore.ports.object_storage import OwnedStore
from logstore.pulsar.plan_jobs import LEDGERS_ROOT
from logstore.stop_checks import raise_if_stopped

CERTIFICATE_PREFIX: Final = "cluster-certificates/"

CERTIFICATE: Final = "certificate"
"""Key in the summary of an ended apply: key of the certificate; "" if nothing was deleted."""

_FORMAT: Final = "sexton-cluster-certificate/1"
_KEY: Final = re.compile(rf"{CERTIFICATE_PREFIX}[a-z0-9-]+/(?P<removals>\d{{10}})-(?P<sha256>[0-9a-f]{{64}})\.jsonl")
_BYTES_PER_READ: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyCertificate:
    key: str
    removals: int  # of ledgers, and of other findings
    sha256: str  # digest of the object


class ApplyCertificates:
    def __init__(self, records: OwnedStore) -> None:
        self._records = records

    def issue(
        self, run: ReconciliationRun, journal: ClusterJournal, conclusion: Mapping[str, Any]
    ) -> ApplyCertificate | None:
        """Store a certificate of what the applies have deleted until now, or return `None` if that is nothing.

        `conclusion` says who concludes the apply, and how it ended. Idempotent: equal facts make an equal certificate.
        Memory holds one page of the journal.
        """
        with tempfile.TemporaryFile() as file:
            writer = _LineWriter(file)
            writer.write({"format": _FORMAT, **conclusion})
            ledgers = others = 0
            for ledger in iterate_journal(journal, run.run_id):
                raise_if_stopped()
                if ledger.deleted_us is not None:
                    ledgers += 1
                    writer.write(_make_row(ledger, ledger.deleted_us, run.summary[LEDGERS_ROOT]))
            for removal in iterate_removals(journal, run.run_id):
                raise_if_stopped()
                others += removal.removed_us is not None
                writer.write(_make_removal_row(removal))
            removals = ledgers + others
            if not removals:
                return None
            writer.write({"ledgers": ledgers, "irreversible": others})
            key = f"{_make_prefix(run.run_id)}{removals:010d}-{writer.sha256}.jsonl"
            with effect("pulsar.put_certificate"):
                self._records.put_file_if_absent(key, file, metadata={}, require_may_proceed=raise_if_stopped)
            return ApplyCertificate(key=key, removals=removals, sha256=writer.sha256)

    def find_newest(self, run_id: str) -> ApplyCertificate | None:
        """Return the certificate of an apply that lists the most removals. Objects with other names are ignored."""
        newest = None
        for info in self._records.list(_make_prefix(run_id)):
            if match := _KEY.fullmatch(info.key):
                newest = ApplyCertificate(key=info.key, removals=int(match["removals"]), sha256=match["sha256"])
        return newest

    def is_intact(self, certificate: ApplyCertificate) -> bool:
        """Return whether the object has the digest in its key. Memory holds a part of it."""
        digest, start = sha256(), 0
        while part := self._records.get_range(certificate.key, start, _BYTES_PER_READ):
            raise_if_stopped()
            digest.update(part)
            start += len(part)
        return digest.hexdigest() == certificate.sha256


class _LineWriter:
    """Writer of lines of JSON into a file, with their digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, sha256()

    def write(self, line: Mapping[str, Any]) -> None:
        encoded = f"{json.dumps(line)}\n".encode()
        self._digest.update(encoded)
        self._file.write(encoded)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def _make_prefix(run_id: str) -> str:
    return f"{CERTIFICATE_PREFIX}{run_id}/"


def _make_row(ledger: JournaledLedger, deleted_us: int, ledgers_root: str) -> dict[str, Any]:
    return {
        "ledger_id": ledger.ledger_id,
        "path": f"/{ledgers_root}/{ledger.path}",
        "version": ledger.version,
        "deleted": _format_time(deleted_us),
    }


def _make_removal_row(removal: JournaledRemoval) -> dict[str, Any]:
    """Return what was there, without the value of a znode. The time is `None` if something may be left."""
    parts = [{name: fact for name, fact in part.items() if name != "data"} for part in removal.parts]
    removed = None if removal.removed_us is None else _format_time(removal.removed_us)
    return {"kind": removal.kind, "path": removal.path, "bucket": removal.bucket, "parts": parts, "removed": removed}


def _format_time(time_us: int) -> str:
    return f"{datetime.fromtimestamp(time_us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%S}Z"
