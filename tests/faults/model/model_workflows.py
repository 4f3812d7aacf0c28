"""The workflows of the model: the real classes on the driver, whose server has the catalog's clock."""

from collections.abc import Callable
from typing import Any, Final

from activities.deletion.phase_two_steps import delete_ledger_workflow_id
from logstore.deletion.intents import IntentKey
from tests.driver.activity_worker import ActivityWorker
from tests.driver.simulated_server import SimulatedServer
from tests.driver.workflow_driver import AttemptEnding, AttemptScript, WorkflowDriver
from tests.driver.workflow_executions import ActivityAttempt, ActivityTask, Execution
from tests.fakes.catalog import FakeCatalog
from workflows.deletion.delete_ledger import DeleteLedger
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.delete_topic import DeleteTopic
from workflows.deletion.job_definitions import (
    DELETE_LEDGERS,
    DELETE_TOPIC,
    SWEEP_DELETIONS,
    TRIM_TOPIC,
    TRIM_TOPICS,
    DeleteLedgerInput,
    DeleteLedgersInput,
    DeleteLedgersProgress,
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
from workflows.offload.job_definitions import (
    OFFLOAD_LEDGER,
    OFFLOAD_TOPIC,
    OffloadAsk,
    OffloadLedgerInput,
    OffloadLimits,
    OffloadTopicInput,
)
from workflows.offload.offload_ledger import OffloadLedger
from workflows.offload.offload_topic import OffloadTopic

_TEST_CAUSE: Final[dict[str, Any]] = {"actor": "tests", "reason": "the model"}
_RETRY_INTERVAL_S: Final = 60
_DELETION_POLICY: Final = DeletionPolicy(chunk=2, parallelism=2, max_attempts=4, retry_interval_s=_RETRY_INTERVAL_S)
_OFFLOAD_POLICY: Final = OffloadLimits(timeout_s=300, attempts=3)
_LONG_HISTORY_AFTER: Final = 30  # activations after which a run goes on as a new one


class CatalogClock:
    """The server's clock is the catalog's, so that claims lapse while attempts wait."""

    def __init__(self, catalog: FakeCatalog) -> None:
        """Take whose."""
        self._catalog = catalog

    def now_ns(self) -> int:
        return self._catalog.now_us * 1_000

    def skip_to(self, moment_ns: int) -> None:
        self._catalog.now_us = max(self._catalog.now_us, -(-moment_ns // 1_000))


class ChosenNextScript(AttemptScript):
    """The next attempt is the one that was chosen, and ends as was chosen; then all goes its way again."""

    def __init__(self) -> None:
        """Nothing is chosen."""
        self.which = 0
        self.next = AttemptEnding.ANSWERED

    def choose(self, ready: list[ActivityTask]) -> ActivityTask:  # type: ignore[override]  # ready to be chosen from
        task_choice, self.which = self.which, 0
        return ready[task_choice % len(ready)]

    def ending(self, attempt: ActivityAttempt) -> AttemptEnding:
        del attempt
        ending, self.next = self.next, AttemptEnding.ANSWERED
        return ending


class ModelWorkflows:
    """What runs, and what operators start."""

    def __init__(self, catalog: FakeCatalog) -> None:
        """Begin with none."""
        self._catalog = catalog
        self.script = ChosenNextScript()
        self.server = SimulatedServer(CatalogClock(catalog), long_history_after=_LONG_HISTORY_AFTER)
        self.driver = WorkflowDriver(self.server, self.script)
        self._seen_answers = 0
        self._numbers = iter(range(1, 1_000_000))

    @property
    def running(self) -> list[Execution]:
        """What has not ended, oldest first."""
        return self.server.running

    def certified(self) -> list[str]:
        """Batches that were certified since somebody looked."""
        new_answers, self._seen_answers = self.driver.answered[self._seen_answers :], len(self.driver.answered)
        return [
            attempt.workflow_id.removeprefix("delete-ledgers/")
            for attempt in new_answers
            if attempt.type == "deletion.certify"
        ]

    def trim(self, topic_id: int, topic: str, *, id: str = "") -> str:  # noqa: A002 - its name
        """Start `trim-topic`, or join it."""
        request = TrimTopicInput(topic_id=topic_id, topic=topic, policy=_DELETION_POLICY, **_TEST_CAUSE)
        return self._start(TrimTopic, request, id or TRIM_TOPIC.id(topic_id))

    def trim_all(self) -> str:
        """Start `trim-topics`, or join it: a page for each topic."""
        return self._start(
            TrimTopics, TrimTopicsInput(page=1, policy=_DELETION_POLICY, **_TEST_CAUSE), TRIM_TOPICS.id()
        )

    def delete(self, topic_id: int, topic: str, ledger_ids: list[int], *, force: bool) -> str:
        """Start `delete-ledgers` for given ledgers."""
        batch = self._batch_input_factory(f"{topic_id}-{next(self._numbers)}", topic_id, topic)
        return self._start_batch(batch(detach=ExplicitDetach(ledger_ids=ledger_ids, force=force)))

    def redrive(self, claim: Callable[[str], int]) -> None:
        """Take dead letters into a batch by `claim`, which answers with their number, and start `delete-ledgers`."""
        batch_id = f"redrive-{next(self._numbers)}"
        count = claim(batch_id)
        if count:
            self._start_batch(self._batch_input_factory(batch_id, 0, "")(carried=DeleteLedgersProgress(intents=count)))

    def offload(self, ledger_id: int, topic: str) -> str:
        """Start `offload-ledger`, or join it."""
        request = OffloadLedgerInput(ledger_id=ledger_id, topic=topic, policy=_OFFLOAD_POLICY)
        return self._start(OffloadLedger, request, OFFLOAD_LEDGER.id(ledger_id))

    def remove_primaries(self, topic_id: int, topic: str) -> str:
        """Start `offload-topic`, or join it: every closed ledger gets a tiered copy, and loses its primary one."""
        ask = OffloadAsk(delete_primary=True, **_TEST_CAUSE)
        request = OffloadTopicInput(
            topic_id=topic_id, topic=topic, asks=[ask], policy=_OFFLOAD_POLICY, deletion=_DELETION_POLICY
        )
        return self._start(OffloadTopic, request, OFFLOAD_TOPIC.id(topic_id))

    def delete_topic(self, topic_id: int, topic: str) -> str:
        """Start `delete-topic`, or join it."""
        request = DeleteTopicInput(topic_id=topic_id, topic=topic, policy=_DELETION_POLICY, **_TEST_CAUSE)
        return self._start(DeleteTopic, request, DELETE_TOPIC.id(topic_id))

    def sweep(self, *, id: str = "") -> str:  # noqa: A002 - its name
        """Start `sweep-deletions`, or join it."""
        request = SweepDeletionsInput(policy=_DELETION_POLICY, **_TEST_CAUSE)
        return self._start(SweepDeletions, request, id or SWEEP_DELETIONS.id())

    def claim_and_delete_copy(self, key: IntentKey, topic: str) -> str:
        """Start `delete-ledger`, or join it."""
        request = DeleteLedgerInput(
            key=key,
            topic=topic,
            catalog_epoch=self._catalog.current_epoch,
            max_attempts=_DELETION_POLICY.max_attempts,
            retry_interval_s=_RETRY_INTERVAL_S,
        )
        return self._start(DeleteLedger, request, delete_ledger_workflow_id(key))

    def step(self, worker: ActivityWorker, *, root: str | None = None) -> bool:
        """Make one attempt for a workflow or for what it started, or for any; whether there was anything to do."""
        return self.driver.step(worker, root=root)

    def is_open(self, workflow_id: str) -> bool:
        """Whether it runs."""
        return self.server.executions[workflow_id].is_open

    def _batch_input_factory(self, batch_id: str, topic_id: int, topic: str) -> Callable[..., DeleteLedgersInput]:
        def made(**options: Any) -> DeleteLedgersInput:
            return DeleteLedgersInput(
                batch_id=batch_id,
                topic_id=topic_id,
                topic=topic,
                catalog_epoch=self._catalog.current_epoch,
                policy=_DELETION_POLICY,
                **_TEST_CAUSE,
                **options,
            )

        return made

    def _start_batch(self, request: DeleteLedgersInput) -> str:
        return self._start(DeleteLedgers, request, DELETE_LEDGERS.id(request.batch_id))

    def _start(self, workflow: type, request: object, workflow_id: str) -> str:
        self.server.start(workflow, request, id=workflow_id)
        return workflow_id
