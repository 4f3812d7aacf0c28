"""What is true of each ledger, by what the cluster's fill did and by what the broker itself says.

No code of Sexton's scan is used: a plan is compared with this.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.pulsar_cluster.cluster import RealCluster
from tests.pulsar_cluster.filling import NAMESPACE
from tests.pulsar_cluster.ledger_list import LedgerList, ListedLedger

DELETED: Final = "DELETED"

_QUIET_S: Final = 2.0
_MAX_QUIET_WAIT_S: Final = 60.0
_TABLE_SERVICE: Final = "bk-stream-storage-service"  # creates and deletes ledgers at any time
_TRANSACTION_LOG: Final = "pulsar/system/__transaction_log_0"
_COMPONENTS: Final = {"managed-ledger", "compacted-ledger", "schema", "delayed-index-bucket"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTruth:
    ledger_id: int
    referenced: bool
    why: str  # what refers to it, or the step that left it without a reference
    state: str  # `DELETED`: it does not exist, although something refers to it
    application: str
    component: str

    @property
    def is_orphan(self) -> bool:
        """Whether a plan has to call it an orphan: its metadata names a part of Pulsar."""
        return not self.referenced and self.application == "pulsar" and self.component in _COMPONENTS

    @property
    def is_static(self) -> bool:
        """Whether nobody changes it by himself. The table service creates and deletes its ledgers at any time."""
        return self.application != _TABLE_SERVICE

    @property
    def is_unattributed(self) -> bool:
        return not self.referenced and not self.is_orphan


@dataclass(kw_only=True)
class TruthKeeper:
    """Ledgers without references, by the step after which they were first seen so.

    References are what the broker says of each topic that it can load, what the fill got from an upload of a package,
    and what `keep` says.
    """

    cluster: RealCluster
    ledgers: LedgerList
    step_by_orphan: dict[int, str] = field(default_factory=dict)
    kept: dict[int, str] = field(default_factory=dict)

    def keep(self, ledger_ids: set[int], holder: str) -> None:
        """State a reference of which the broker does not tell."""
        self.kept |= dict.fromkeys(ledger_ids, holder)

    def attribute(self, step: str) -> None:
        """Wait until the cluster is quiet. Name the step for ledgers that have no reference now, and had one before."""
        unreferenced = self._wait_for_unreferenced()
        self.step_by_orphan = {each: self.step_by_orphan.get(each, step) for each in unreferenced}

    def collect(self, listed: Mapping[int, ListedLedger], deleted: set[int]) -> dict[int, LedgerTruth]:
        """Return the truth of each listed ledger, and of each one that was deleted although something refers to it.

        Raises:
            AssertionError: A ledger without a reference belongs to no step.
        """
        holders = {each.ledger_id: _TABLE_SERVICE for each in listed.values() if each.application == _TABLE_SERVICE}
        holders |= self.find_holders()
        unexplained = listed.keys() - holders.keys() - self.step_by_orphan.keys()
        assert not unexplained, f"ledgers {sorted(unexplained)} have no reference, and no step explains it"
        truth = [
            LedgerTruth(
                ledger_id=each.ledger_id,
                referenced=each.ledger_id in holders,
                why=holders.get(each.ledger_id) or self.step_by_orphan[each.ledger_id],
                state=each.state,
                application=each.application,
                component=each.component,
            )
            for each in [*listed.values(), *(ListedLedger(ledger_id, DELETED, {}) for ledger_id in deleted)]
        ]
        return {each.ledger_id: each for each in truth}

    def find_holders(self) -> dict[int, str]:
        """Return what refers to each referenced ledger, as the broker says."""
        return self.kept | {ledger_id: holder for ledger_id, holder in self._list_held_ledgers() if ledger_id >= 0}

    def _wait_for_unreferenced(self) -> set[int]:
        """Return the ledgers without a reference that stay the same for a while. The broker may just be at work."""
        deadline_s, since_s, before = time.monotonic() + _MAX_QUIET_WAIT_S, time.monotonic(), None
        while True:
            ids = self.ledgers.list_ids()
            unreferenced = ids - self.find_holders().keys()
            if unreferenced != before:
                since_s, before = time.monotonic(), unreferenced
            if time.monotonic() > since_s + _QUIET_S or time.monotonic() > deadline_s:
                return unreferenced
            time.sleep(0.2)

    def _list_held_ledgers(self) -> Iterator[tuple[int, str]]:
        for namespace in (NAMESPACE, "pulsar/system"):
            path = f"persistent/{namespace}?includeSystemTopic=true"
            for url in self.cluster.request_admin("GET", path, expected_errors=(404,)) or ():
                yield from self._list_ledgers_of_topic(url.removeprefix("persistent://"))
        yield from self._list_ledgers_of_coordinator()

    def _list_ledgers_of_coordinator(self) -> Iterator[tuple[int, str]]:
        """Yield the ledgers of the transaction log. Until a client has a transaction, no broker has loaded it."""
        loaded = self.cluster.request_admin(
            "GET", "/admin/v3/transactions/coordinatorInternalStats/0", expected_errors=(404,)
        )
        if loaded is not None:
            yield from _list_ledgers_of_log(loaded["transactionLogStats"])
            return
        stored = self.cluster.request_admin(
            "GET", f"persistent/{_TRANSACTION_LOG}/internal-info", expected_errors=(404,)
        )
        if stored is not None:
            yield from ((each["ledgerId"], f"messages of {_TRANSACTION_LOG}") for each in stored["ledgers"])
            for cursor, each in stored["cursors"].items():
                yield each["cursorsLedgerId"], f"cursor {cursor} of {_TRANSACTION_LOG}"

    def _list_ledgers_of_topic(self, topic: str) -> Iterator[tuple[int, str]]:
        stats = self.cluster.request_admin(
            "GET", f"persistent/{topic}/internalStats?metadata=true", expected_errors=(404,)
        )
        if stats is None:  # deleted meanwhile
            return
        yield from _list_ledgers_of_stats(stats, topic)
        local = topic.rpartition("/")[2]
        for cursor in stats["cursors"]:
            yield from ((each, f"bucket of {topic} {cursor}") for each in self.ledgers.list_buckets(local, cursor))
            path = f"/admin/v3/transactions/pendingAckInternalStats/{topic}/{cursor}"
            log = self.cluster.request_admin("GET", path, expected_errors=(404, 405, 500, 503))
            if log is not None:
                yield from _list_ledgers_of_log(log["pendingAckLogStats"])


def write_truth(path: Path, truth: Mapping[int, LedgerTruth]) -> None:
    """Write one line of JSON a ledger."""
    path.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in truth.values()), encoding="utf-8")


def read_truth(path: Path) -> dict[int, LedgerTruth]:
    rows = [LedgerTruth(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return {each.ledger_id: each for each in rows}


def _list_ledgers_of_log(log: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    yield from _list_ledgers_of_stats(log["managedLedgerInternalStats"], log["managedLedgerName"])


def _list_ledgers_of_stats(stats: Mapping[str, Any], name: str) -> Iterator[tuple[int, str]]:
    yield from ((each["ledgerId"], f"messages of {name}") for each in stats["ledgers"])
    yield from ((each["cursorLedger"], f"cursor {cursor} of {name}") for cursor, each in stats["cursors"].items())
    yield from ((each["ledgerId"], f"schema of {name}") for each in stats.get("schemaLedgers") or ())
    if stats.get("compactedLedger"):
        yield stats["compactedLedger"]["ledgerId"], f"compacted messages of {name}"
