"""Operators and schedules: they start workflows, which a worker of the programs' process then works on.

The workflows are the real ones, on the driver of `tests/driver`. Its server is what outlives a process beside SQL and
objects: a run goes on where it was, by replay.
"""

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Self

from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch
from logstore.ports.catalog.log import Topic
from tests.driver.activity_worker import ActivityWorker
from tests.driver.simulated_server import SimulatedServer
from tests.driver.workflow_driver import AttemptScript, WorkflowDriver
from tests.driver.workflow_executions import Execution, SimulatedRunStatus
from tests.faults.acquiring_owner import AcquiringTopicOwners
from tests.faults.auditor import LONG_GONE_LEDGER, ExpectedTopic
from tests.faults.simulated_world import World
from tests.faults.topic_plans import MAIN_PLANS, TopicPlan
from tests.faults.writing_programs import WritingPrograms
from workers.assembly.activities import WorkerActivities
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.delete_topic import DeleteTopic
from workflows.deletion.job_definitions import (
    DELETE_LEDGERS,
    DELETE_TOPIC,
    SWEEP_DELETIONS,
    TRIM_TOPIC,
    TRIM_TOPICS,
    DeleteLedgersInput,
    DeleteTopicInput,
    DeletionPolicy,
    ExplicitDetach,
    SweepDeletionsInput,
    TrimTopicInput,
    TrimTopicsInput,
)
from workflows.deletion.sweep_deletions import SweepDeletions
from workflows.deletion.trim_topic import TrimTopic
from workflows.deletion.trim_topics import TrimTopics

TEST_CAUSE: Final[dict[str, Any]] = {"actor": "tests", "reason": "the main job"}
DELETION_POLICY: Final = DeletionPolicy(chunk=2, parallelism=2, max_attempts=6, retry_interval_s=1)


class MainJobOperators(WritingPrograms[World]):
    """Programs, and operators who start workflows."""

    def __init__(
        self,
        world: World,
        plans: Sequence[TopicPlan] = MAIN_PLANS,
        *,
        script: AttemptScript | None = None,
        long_history_after: int = 1_000_000,
        forgetful: bool = False,
    ) -> None:
        """Begin with an empty memory, and a server that nobody asked for anything.

        Args:
            world: What they work on, and what outlives their processes.
            plans: Its topics.
            script: What becomes of attempts.
            long_history_after: Activations after which a run is asked to continue as new.
            forgetful: Whether every activation is of a run that is replayed.
        """
        super().__init__(world, plans)
        server = SimulatedServer(long_history_after=long_history_after)
        self.driver = WorkflowDriver(server, script, replays_always=forgetful)
        self.deletes = False  # whole topics, at the end
        self._worker: ActivityWorker
        self._turn = 1

    def fork(self, world: World, **options: Any) -> Self:
        """The same so far, over a fork of its world; nothing was asked of the server yet."""
        forked = type(self)(world, self.plans, **options)
        forked.memory = dict(self.memory)
        return forked

    def _enter(self) -> None:
        owners = AcquiringTopicOwners(self._process.catalog.fences)
        self._worker = ActivityWorker(WorkerActivities(self._process, owners).all())

    def _died(self) -> None:
        self.driver.lose_worker()

    @property
    def expected(self) -> dict[str, ExpectedTopic]:
        """What must be true of its topics in the end."""
        return {plan.name: plan.expected_after_deletion if self.deletes else plan.expected for plan in self.plans}

    # -- courses

    def run(self) -> Self:
        """All of it, and at the end what a topic's next trim would do about newborn ledgers."""
        return self.drive(self.write, self.remove, self.redrive_and_sweep).sweep()

    def trim_all(self) -> Self:
        """Write what is not written yet, then trim all topics in one batch, which is paused for a while."""
        return self.drive(self.write, self.trim_topics, self.delete_picked_ledgers, self.redrive_and_sweep).sweep()

    def delete(self) -> Self:
        """Write what is not written yet, then delete every topic as a whole."""
        self.deletes = True
        return self.drive(self.write, self.delete_topics)

    def sweep(self) -> Self:
        """Trims that take any ledger for abandoned that is not attached."""
        return self.drive(lambda: self.trim_topics_separately("sweep", self.plans), registration_timeout_s=-1)

    def again(self) -> Self:
        """The same once more, as a user or a schedule would run it; what can be done once only is left out."""
        self._turn += 1
        self.writes_again = True
        kept_prefixes = ("list", "seek", "pick", "once", "tell", "troubles", *(["create"] if self.deletes else []))
        self.memory = {name: answer for name, answer in self.memory.items() if name.startswith(kept_prefixes)}
        return self.drive(self.delete_topics) if self.deletes else self.run()

    # -- what operators ask

    def remove(self) -> None:
        """Trim every topic, and delete one ledger by its id."""
        self.trim_topics_separately("trim", [plan for plan in self.plans if plan.picked is None])
        self.delete_picked_ledgers()

    def trim_topics_separately(self, label: str, plans: Sequence[TopicPlan]) -> None:
        """Trim topics, all at the same time."""
        for plan in plans:
            topic = self._topic(plan)
            request = TrimTopicInput(**_topic_arguments(topic), policy=DELETION_POLICY, **TEST_CAUSE)
            self._start(label, TrimTopic, request, TRIM_TOPIC.id(topic.topic_id))
        self._work()

    def delete_picked_ledgers(self) -> None:
        """Delete one ledger by its id, out of the middle."""
        for plan in self.plans:
            if plan.picked is not None:
                self._start_picked_deletion(self._topic(plan), plan.picked)
        self._work()

    def _start_picked_deletion(self, topic: Topic, place: int) -> None:
        listed = self._client(f"pick {topic.name}", lambda: self._process.catalog.ledgers.list_ledgers(topic.topic_id))
        batch_id = f"{topic.topic_id}-pick-{self._turn}"
        request = DeleteLedgersInput(
            batch_id=batch_id,
            catalog_epoch=self._process.catalog.ledgers.catalog_epoch(),
            detach=ExplicitDetach(ledger_ids=[int(listed[place].ledger_id)]),
            policy=DELETION_POLICY,
            **_topic_arguments(topic),
            **TEST_CAUSE,
        )
        self._start("pick", DeleteLedgers, request, DELETE_LEDGERS.id(batch_id))

    def trim_topics(self) -> None:
        """Trim all topics in one batch, a page for each two, and pause that batch for a while."""
        request = TrimTopicsInput(page=2, policy=DELETION_POLICY, **TEST_CAUSE)
        trim = self._start("trim all", TrimTopics, request, TRIM_TOPICS.id())
        self._work(until=lambda: bool(self._running_batches()) or not trim.is_open)
        self._tell("pause")
        self._work(until=lambda: not self.driver.server.ready())
        self._tell("resume")
        self._work()

    def _running_batches(self) -> list[Execution]:
        return [execution for execution in self.driver.server.running if execution.run.start.type == "delete-ledgers"]

    def _tell(self, update_name: str) -> None:
        """Ask the batch that runs for an update, and wait for the answer or for its end."""
        update_id, server = f"{self._turn} {update_name}", self.driver.server
        for batch in self._running_batches():
            server.update(batch.workflow_id, update_name, update_id=update_id)
            self._work(until=lambda: not batch.is_open or batch.updates[update_id] is not None)  # noqa: B023 - used here

    def delete_topics(self) -> None:
        """Delete every topic as a whole, all at the same time."""
        for plan in self.plans:
            topic = self._topic(plan)
            request = DeleteTopicInput(**_topic_arguments(topic), policy=DELETION_POLICY, **TEST_CAUSE)
            self._start("delete", DeleteTopic, request, DELETE_TOPIC.id(topic.topic_id))
        self._work()

    def redrive_and_sweep(self) -> None:
        """Redrive the dead letters and die before their workflow is started; then sweep, which finds them."""
        self._client("age", self._insert_old_finished_intent)
        redriven: DetachedBatch = self._client("redrive", self._redrive_dead_letters)
        if redriven.intents:
            deletions = self._process.catalog.deletions
            for at, tell in enumerate(
                (deletions.pause_batch, deletions.resume_batch, deletions.pause_batch, deletions.release_paused_batch)
            ):
                self._client(f"tell {at}", partial(tell, "redrive"))
        workflow_id = f"{SWEEP_DELETIONS.id()}-{self._turn}"  # a schedule appends its time
        self._start("sweep", SweepDeletions, SweepDeletionsInput(policy=DELETION_POLICY, **TEST_CAUSE), workflow_id)
        self._work()

    def _insert_old_finished_intent(self) -> None:
        columns = "row_id, ledger_id, state, outcome, finished_us, batch_id, copy, generation, application, component"
        more_columns = (
            "topic_id, topic, keys, context, segments, last_segment, ledger_created_us, size_bytes, epoch, attempts"
        )
        values = f"-1, {LONG_GONE_LEDGER}, 'DELETED', 'DELETED', 1, 'old', 'LEDGER', 1, 'sexton', 'MANAGED_LEDGER'"
        row = f"{values}, 1, 'persistent://shop/main/old', '{{}}', '{{}}', 0, -1, 1, 0, 1, 1, 0, 0, 1"
        columns = f"{columns}, {more_columns}, objects_deleted, bytes_deleted, created_us"
        insertion = f"INSERT OR IGNORE INTO pending_deletion ({columns})"
        with sqlite3.connect(self.world.database) as connection:
            connection.execute(f"{insertion} VALUES ({row})")
        connection.close()

    def _redrive_dead_letters(self) -> DetachedBatch:
        """Under one name, whoever repeats it, so that doing it again asks for nothing new."""
        return self._process.catalog.upkeep.redrive_dead_letters(
            None,
            batch_id="redrive",
            claim=Claim(workflow_id="delete-ledgers/redrive", run_id="", ttl_s=-1),
            cause=AuditCause(actor="tests", reason="mended", workflow_id="delete-ledgers/redrive"),
        )

    # -- the server

    def _start(self, label: str, workflow: type, request: object, workflow_id: str) -> Execution:
        """Start a workflow, once in each turn."""
        start_workflow = partial(self.driver.server.start, workflow, request, id=workflow_id)
        return self._client(f"{self._turn} {label} {workflow_id}", start_workflow)

    def _work(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Work until that is so, or until nothing is left to do and what was started has succeeded."""
        self.driver.run(self._worker, until=until)
        for execution in self.driver.server.executions.values():
            is_unsuccessful = execution.descent.parent is None and execution.status not in {
                SimulatedRunStatus.COMPLETED,
                SimulatedRunStatus.RUNNING,
            }
            assert not is_unsuccessful, (
                f"{execution.workflow_id} is {execution.status.name}: {execution.failure and execution.failure.message}"
            )


def _topic_arguments(topic: Topic) -> dict[str, Any]:
    return {"topic_id": topic.topic_id, "topic": topic.name}
