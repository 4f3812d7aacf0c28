"""What others do between the jobs of a plan is never a finding, even where no age protects it."""

from uuid import uuid4

import pytest

from logstore.deletion.intents import DeletionState, Outcome
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import AuditCause, Claim, IntentResult
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from tests.spark.reconciliation.conftest import Plan
from tests.spark.reconciliation.damage import Damaged

pytestmark = pytest.mark.external_service

_CAUSE = AuditCause(actor="tests", reason="a test", workflow_id="w")


class _Others:
    """A writer, a trim and an offload, each a step further whenever they are called."""

    def __init__(self, store: Damaged) -> None:
        self._store = store
        self._written, _ = store.topic("written", ledgers=1)
        self._trimmed, self._doomed = store.topic("trimmed", ledgers=11)
        _, self._offloads = store.topic("offloads", ledgers=11)
        self._begun: tuple[LedgerId, str] | None = None

    def step(self, _: str = "") -> None:
        """One of each."""
        self._append()
        self._delete()  # what the step before detached
        self._detach(self._doomed.pop(0))
        self._delete()
        self._detach(self._doomed.pop(0))
        self._offload()

    def _append(self) -> None:
        topic: Topic = self._written
        topic_logs = self._store.log.topic_logs
        topic_logs.append(topic, ProducedEntries(entries=[NewEntry(payload=b"more")]))
        topic_logs.roll(topic)
        topic_logs.append(topic, ProducedEntries(entries=[NewEntry(payload=b"and more")]))

    def _detach(self, ledger_id: LedgerId) -> None:
        batch_id = f"trim-{ledger_id}"
        claim = Claim(workflow_id="w", run_id="r", ttl_s=60)
        self._store.log.catalog.phase_one.detach_ledgers(
            self._trimmed.topic_id, [ledger_id], force=True, batch_id=batch_id, claim=claim, cause=_CAUSE
        )

    def _delete(self) -> None:
        """What is detached."""
        deletions, storage = self._store.log.catalog.deletions, self._store.log.storages[CopyKind.LEDGER]
        for intent in deletions.list_intents(DeletionState.PENDING, limit=100):
            storage.remove_copies({intent.row_id: storage.inspect_copy(intent)}, on_progress=lambda _: None)
            assert deletions.record_outcomes(
                [IntentResult(row_id=intent.row_id, outcome=Outcome.DELETED)], holder=f"trim-{intent.ledger_id}"
            )

    def _offload(self) -> None:
        """Publish what was uploaded in the step before, and one at once; upload one for the step after."""
        catalog = self._store.log.catalog
        if self._begun:
            catalog.offloads.publish_tiered_copy(*self._begun)
        self._store.offload(self._offloads.pop(0), str(uuid4()))
        self._begun = self._offloads.pop(0), str(uuid4())
        assert self._store.log.offloader.upload_and_prove(*self._begun, timeout_s=600).evidence


def test_writer_trim_and_offload_between_the_jobs_make_no_finding(store: Damaged, plan: Plan) -> None:
    others = _Others(store)
    others.step()
    assert plan(others.step) == []
