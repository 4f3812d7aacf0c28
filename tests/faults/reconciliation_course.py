"""The way of a reconciliation: what nobody refers to is planned, and removed, while storage misbehaves."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count, takewhile
from typing import Final, Self

from activities.bulk_jobs import catalog_id_file
from activities.pulsar.apply_certificates import ApplyCertificates
from logstore.log.ledger_object_keys import ledger_prefix, meta_key, segment_key
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.offload.tiered_copy import data_key
from logstore.ports.catalog.reconciliation import RunKind
from logstore.positions import LedgerId
from logstore.pulsar.cluster_transactions import AFTER_ABORT, BEFORE_ABORT
from logstore.reconciliation.findings import Finding, FindingKind, plan_result
from tests.driver.workflow_executions import SimulatedRunStatus
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.faults.main_job_operators import DELETION_POLICY, TEST_CAUSE, MainJobOperators
from tests.faults.simulated_world import TIERED_BUCKET
from tests.faults.topic_plans import TopicPlan
from tests.workflows.pulsar.cluster_plans import (
    abandoned_upload,
    orphan_ledger,
    orphan_managed_ledger,
    orphan_offload,
    plant_removable,
)
from workflows.pulsar.abort_transactions import AbortTransactions
from workflows.pulsar.apply_pulsar import ApplyPulsar
from workflows.pulsar.job_definitions import (
    ABORT_TRANSACTIONS,
    APPLY_PULSAR,
    PLAN_PULSAR,
    UNDO_PULSAR,
    AbortTransactionsInput,
    ApplyPulsarInput,
    PlanPulsarInput,
    UndoPulsarInput,
)
from workflows.pulsar.plan_pulsar import PlanPulsar
from workflows.pulsar.undo_pulsar import UndoPulsar
from workflows.reconciliation.apply_orphans import ApplyOrphans
from workflows.reconciliation.job_definitions import (
    APPLY_ORPHANS,
    RECONCILE_ORPHANS,
    SCRUB_LEDGERS,
    ApplyOrphansInput,
    ReconcileOrphansInput,
    ScrubLedgersInput,
)
from workflows.reconciliation.reconcile_orphans import ReconcileOrphans
from workflows.reconciliation.scrub_ledgers import ScrubLedgers

RECONCILIATION_PLANS: Final = (TopicPlan(name="persistent://shop/main/losing", ledgers=3, acknowledged={"billing": 0}),)
"""Beside whose ledgers stand objects that nobody registered."""

_ORPHAN_AGE_US: Final = 3 * 86_400 * 1_000_000
_ORPHAN_NUMBERS: Final = (1_000_007, 1_000_008, 1_000_009)  # of orphaned segments, above whatever a retry draws
_ABANDONED_UUID: Final = "abandoned"
_CLUSTER_ORPHANS: Final = (7, 8)
_IRREVERSIBLE_ORPHANS: Final = (orphan_offload(7), abandoned_upload(9), orphan_managed_ledger())
_OLD_JOURNAL: Final = "cluster-journals/apply-long-gone-"
_OLD_REMOVALS: Final = "cluster-removals/apply-long-gone-"
_TRANSACTIONS: Final = (1, 2, 3)  # of which the first one stays open


class ReconciliationOperators(MainJobOperators):
    """Operators who plan and apply."""

    def reconcile(self) -> Self:
        """Write, lose, plan, apply and scrub; then nothing that was lost is left."""
        return self.drive(self.write, self.lose, *self._steps_of_a_turn).sweep()

    def again(self) -> Self:
        """Plan and apply once more: the apply of the same plan does nothing."""
        self._turn += 1
        kept_prefixes = ("list", "once", "create", "troubles")
        self.memory = {name: answer for name, answer in self.memory.items() if name.startswith(kept_prefixes)}
        return self.drive(*self._steps_of_a_turn)

    @property
    def _steps_of_a_turn(self) -> list[Callable[[], None]]:
        return [
            self.plan,
            self.apply,
            self.scrub,
            self.plan_cluster,
            self.apply_cluster,
            self.undo_cluster,
            self.abort_transactions,
        ]

    def lose(self) -> None:
        """Let writers die after their uploads, long ago; and let a plan find that."""
        for plan in self.plans:
            ledgers = [ledger.ledger_id for ledger in self.memory[f"list {plan.name}"]]
            topic_id, create = self._topic(plan).topic_id, self._process.catalog.ledgers.create_ledger
            created = self._client(f"once {plan.name} ledger", partial(create, topic_id, application="sexton"))
            self._once(f"once {plan.name} lost", partial(self._create_orphans_of_ledger, int(ledgers[0]), created))

    def _create_orphans_of_ledger(self, ledger_id: int, created: LedgerStatement) -> None:
        world = self.world
        stored_object = next(listed_object for listed_object in world.store.list(f"ledgers/{ledger_id % 256:02x}/"))
        head = world.store.head(stored_object.key)
        assert head
        statement = LedgerStatement.from_metadata(head[1])
        for number in _ORPHAN_NUMBERS:
            key = segment_key(statement.ledger_id, number)
            world.store.put_if_absent(key, b"lost", metadata=statement.to_metadata())
            world.bulk.findings.append(_orphan_segment_finding(statement, key))
        upload = data_key(_ABANDONED_UUID, statement.ledger_id)
        world.tiered.unfinished.add(upload)
        world.tiered.begun_us[upload] = 1
        world.lost.add(upload)
        world.bulk.findings.append(_orphan_upload_finding(statement, upload))
        world.bulk.findings.append(_removed_ledger_finding(statement))
        self._create_orphan_ledger(created)
        catalog_id_mark = catalog_id_file(world.bulk.create_run_folder("plan-of-nobody"))
        catalog_id_mark.write_text(self._process.catalog.identities.catalog_id())
        world.bulk.page = 2
        world.store.now_us += _ORPHAN_AGE_US
        refused_key = segment_key(statement.ledger_id, _ORPHAN_NUMBERS[0])
        refusal = Fault(operation=StoreOperation.DELETE, kind=FaultKind.BEFORE, matches=lambda key: key == refused_key)
        world.store.plan(refusal)

    def _create_orphan_ledger(self, created: LedgerStatement) -> None:
        """The catalog has nothing of a ledger but that its id was given out; storage has all of it."""
        with closing(sqlite3.connect(self.world.database)) as connection:
            for table in ("ledger_copy", "ledger"):
                connection.execute(f"DELETE FROM {table} WHERE ledger_id = ?", (created.ledger_id,))
            connection.commit()
        for key in (meta_key(created.ledger_id, created.owner), segment_key(created.ledger_id, 0)):
            self.world.store.put_if_absent(key, b"lost", metadata=created.to_metadata())
            self.world.lost.add(key)
        kind, key = FindingKind.ORPHAN_LEDGER, ledger_prefix(created.ledger_id)
        finding = Finding(
            kind=kind, ledger_id=created.ledger_id, copy=CopyKind.LEDGER, bucket="warm", key=key, objects=2
        )
        self.world.bulk.findings.append(finding)

    def plan(self) -> None:
        """Plan once in each turn."""
        run_id = f"plan-{self._turn}"
        request = ReconcileOrphansInput(run_id=run_id, **TEST_CAUSE)
        self._start("plan", ReconcileOrphans, request, RECONCILE_ORPHANS.id(run_id))
        self._work()

    def scrub(self) -> None:
        """Scrub all topics, in every turn; what is damaged on a page is found once."""
        finding = Finding(kind=FindingKind.CORRUPT_DATA, ledger_id=LedgerId(1), copy=CopyKind.LEDGER, bucket="warm")
        self.world.bulk.damaged = {1: [finding]}
        scrubbed = self._start("scrub", ScrubLedgers, ScrubLedgersInput(**TEST_CAUSE), SCRUB_LEDGERS.id())
        self._work()
        assert self.driver.server.executions[scrubbed.workflow_id].status is SimulatedRunStatus.COMPLETED
        newest, *_ = self._process.catalog.reconciliation.list_runs(RunKind.SCRUB, limit=1)
        assert plan_result(newest.summary).findings["corrupt_data"] == 1

    def plan_cluster(self) -> None:
        """Plan a Pulsar cluster, in every turn; nothing is known there of what the store has lost."""
        run_id = f"pulsar-{self._turn}"
        ledgers = [orphan_ledger(ledger_id) for ledger_id in _CLUSTER_ORPHANS]
        self.world.bulk.cluster_findings = [ledgers[0], *_IRREVERSIBLE_ORPHANS, *ledgers[1:]]
        self._once(f"once cluster {self._turn}", self._plant_cluster_orphans)
        planned = self._start(
            "plan cluster", PlanPulsar, PlanPulsarInput(run_id=run_id, **TEST_CAUSE), PLAN_PULSAR.id(run_id)
        )
        self._work()
        assert self.driver.server.executions[planned.workflow_id].status is SimulatedRunStatus.COMPLETED
        newest, *_ = self._process.catalog.reconciliation.list_runs(RunKind.CLUSTER_PLAN, limit=1)
        result = plan_result(newest.summary)
        assert (result.findings["orphan_ledger"], result.incomplete) == (len(_CLUSTER_ORPHANS), [])

    def _plant_cluster_orphans(self) -> None:
        """Plant orphans, and the journal of an apply that the catalog has forgotten long ago."""
        self.world.cluster.ledgers |= dict.fromkeys(_CLUSTER_ORPHANS, b"ledger")
        plant_removable(self.world.cluster, _IRREVERSIBLE_ORPHANS)
        records = self.world.records
        now_us, records.now_us = records.now_us, 1
        for folder in (_OLD_JOURNAL, _OLD_REMOVALS):
            records.put_if_absent(f"{folder}{self._turn}/1.jsonl", b"", metadata={})
        records.now_us = now_us
        self.world.cluster.znode_states.clear()

    def apply_cluster(self) -> None:
        """Delete what the plan of the turn found in the cluster, by two applies. The journal has all of it."""
        run_id = f"pulsar-{self._turn}"
        for label, limit in (("apply cluster", 1), ("apply cluster again", 0)):
            request = ApplyPulsarInput(
                run_id=run_id,
                max_orphan_share=1.0,
                limit=limit,
                include_unconfirmed=True,
                include_irreversible=True,
                **TEST_CAUSE,
            )
            applied = self._start(label, ApplyPulsar, request, APPLY_PULSAR.id(run_id))
            self._work()
            assert self.driver.server.executions[applied.workflow_id].status is SimulatedRunStatus.COMPLETED
        self._once(f"once cluster {self._turn} applied", self._require_cluster_orphans_deleted)

    def _require_cluster_orphans_deleted(self) -> None:
        """Look once: the undo of the turn puts the ledgers back, and a crash in it repeats the apply."""
        cluster, run_id = self.world.cluster, f"pulsar-{self._turn}"
        assert not cluster.ledgers
        assert not cluster.parts
        assert cluster.lease[0] == "", "the lease is free again"
        assert not [key for key in self.world.records.keys if key.startswith((_OLD_JOURNAL, _OLD_REMOVALS))]
        journal = self._process.catalog.cluster_journal.list_ledgers(f"apply-{run_id}", after=-1, limit=100)
        deleted = {each.ledger_id: each.data for each in journal if each.deleted_us is not None}
        assert deleted == dict.fromkeys(_CLUSTER_ORPHANS, b"ledger")
        removals = self._process.catalog.cluster_journal.list_removals(f"apply-{run_id}", after=-1, limit=100)
        removed = {removal.path: removal.kind for removal in removals if removal.removed_us is not None}
        assert removed == {finding.key: finding.kind.value for finding in _IRREVERSIBLE_ORPHANS}
        certificate = ApplyCertificates(self.world.records).find_newest(f"apply-{run_id}")
        assert certificate
        assert certificate.removals == len(_CLUSTER_ORPHANS) + len(_IRREVERSIBLE_ORPHANS)

    def abort_transactions(self) -> None:
        """Abort two transactions of the cluster, of which one holds back consumers together with a third one."""
        run_id, transactions = f"abort-{self._turn}", self.world.cluster.transactions
        self._once(f"once transactions {self._turn}", lambda: transactions.add(*_TRANSACTIONS))
        aborted_ids = [f"0:{sequence}" for sequence in _TRANSACTIONS[1:]]
        request = AbortTransactionsInput(run_id=run_id, transactions=aborted_ids, **TEST_CAUSE)
        started = self._start("abort transactions", AbortTransactions, request, ABORT_TRANSACTIONS.id(run_id))
        self._work()
        assert self.driver.server.executions[started.workflow_id].status is SimulatedRunStatus.COMPLETED
        states = [transactions.transactions[sequence].state for sequence in _TRANSACTIONS]
        assert states == ["OPEN", "ABORTED", "ABORTED"]
        summary = self._process.catalog.reconciliation.get_run(run_id).summary
        assert {each["txn"]: each["outcome"] for each in summary["results"]} == dict.fromkeys(aborted_ids, "aborted")
        assert summary[BEFORE_ABORT].keys() == summary[AFTER_ABORT].keys() == set(aborted_ids)

    def undo_cluster(self) -> None:
        """Put back what the apply of the turn has deleted."""
        run_id, cluster = f"pulsar-{self._turn}", self.world.cluster
        request = UndoPulsarInput(run_id=run_id, **TEST_CAUSE)
        undone = self._start("undo cluster", UndoPulsar, request, UNDO_PULSAR.id(run_id))
        self._work()
        assert self.driver.server.executions[undone.workflow_id].status is SimulatedRunStatus.COMPLETED
        assert cluster.ledgers == dict.fromkeys(_CLUSTER_ORPHANS, b"ledger")
        assert cluster.lease[0] == "", "the lease is free again"

    def apply(self) -> None:
        """Apply the first plan, in every turn."""
        request = ApplyOrphansInput(run_id="plan-1", max_orphan_share=1.0, policy=DELETION_POLICY, **TEST_CAUSE)
        applied = self._start("apply", ApplyOrphans, request, APPLY_ORPHANS.id("plan-1"))
        self._work()
        assert self.driver.server.executions[applied.workflow_id].status is SimulatedRunStatus.COMPLETED
        remaining_keys = [
            finding.key
            for finding in self.world.bulk.findings
            if finding.key in {*self.world.store.keys, *self.world.tiered.unfinished}
        ]
        remaining_keys += sorted(self.world.lost & {*self.world.store.keys})
        assert not remaining_keys, f"{remaining_keys} were found, and are left"
        self._require_recorded_fates()

    def _require_recorded_fates(self) -> None:
        """The fates of each page were stored after the deletions. After a loss of the database there are none."""
        read_fates = partial(self._process.catalog.reconciliation.read_fates, "apply-plan-1")
        fates = [fate for page in takewhile(bool, map(read_fates, count())) for fate in page.items()]
        assert fates or self._turn > 1, "an apply that completed has recorded nothing"
        assert all(fate for _, fate in fates), f"{fates}: an apply that completed has decided more than it did"


def _orphan_segment_finding(statement: LedgerStatement, key: str) -> Finding:
    return Finding(
        kind=FindingKind.ORPHAN_SEGMENT,
        ledger_id=statement.ledger_id,
        copy=CopyKind.LEDGER,
        bucket="warm",
        key=key,
        topic=statement.owner.topic,
        objects=1,
        size_bytes=4,
    )


def _removed_ledger_finding(statement: LedgerStatement) -> Finding:
    """A ledger that somebody else has removed since."""
    removed_ledger = LedgerId(statement.ledger_id + 1_000)
    kind, key = FindingKind.ORPHAN_LEDGER, ledger_prefix(removed_ledger)
    return Finding(kind=kind, ledger_id=removed_ledger, copy=CopyKind.LEDGER, bucket="warm", key=key, objects=2)


def _orphan_upload_finding(statement: LedgerStatement, key: str) -> Finding:
    return Finding(
        kind=FindingKind.ORPHAN_OFFLOAD,
        ledger_id=statement.ledger_id,
        copy=CopyKind.OFFLOADED_LEDGER,
        bucket=TIERED_BUCKET,
        key=key,
        uuid=_ABANDONED_UUID,
    )
