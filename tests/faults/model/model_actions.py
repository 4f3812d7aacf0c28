"""How the model does things: calls of programs, attempts of activities, and what happens in between."""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final, TypeVar

from temporalio import activity

from logstore.deletion.intents import DeletionIntent
from logstore.errors import OutcomeUnknown, RetryableError, SextonError, TerminalError
from logstore.failpoints import SimulatedCrash
from logstore.log.ledger_object_keys import meta_key
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from tests.driver.workflow_driver import AttemptEnding
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.faults.model.model_observation import ModelObservation, observe_model
from tests.faults.model.model_workflows import ModelWorkflows
from tests.faults.model.model_world import ModelProcess, ModelWorld

T = TypeVar("T")

TOPICS: Final = ("orders", "returns")
CLAIM_LAPSE_S: Final = 130.0  # longer than any claim
ABANDON_TIMEOUT_S: Final = 700.0  # longer than any creator is waited for
MAX_STEPS: Final = 300  # steps that no workflow takes


class CallEnd(Enum):
    """How a call of a program ended."""

    ANSWERED = 0
    REFUSED = 1  # nothing changed
    UNSURE = 2  # it died, or was told of a failure: it may have happened


class InterludePlace(Enum):
    """Where something else may happen: just before a call reaches storage, or outcomes are recorded."""

    PUT = StoreOperation.PUT
    LIST = StoreOperation.LIST
    DELETE = StoreOperation.DELETE
    UPLOAD = "a put of a tiered copy"
    FINISH = "outcomes"


class Interlude(Enum):
    """What happens there."""

    CLAIMS_LAPSE = 1
    OVERTAKEN = 2  # the attempt is taken for dead, and its retry comes first
    TRIMMED = 3  # its workflow is, and a trim takes everything over
    ROLLED = 4  # by another program
    WOKEN = 5  # creators that fell asleep over their newborns
    SWEPT = 6  # its attempt is overtaken, and what that left behind is swept up at once


class ModelActions:
    """Programs `a` and `b`, workflows on a worker, and the world around them."""

    def __init__(self) -> None:
        """Begin with an empty house."""
        super().__init__()
        self.house = ModelWorld()
        self.house.store.before_delete = self.house.cold.before_delete = self._check_deleter_holds_intent
        self.workflows = ModelWorkflows(self.house.catalog)
        self.topics: dict[str, Topic] = {}
        self.forged: set[int] = set()
        self.wrong: list[str] = []
        self.seen: ModelObservation = observe_model(self.house, frozenset())
        self.asleep: list[LedgerStatement] = []  # newborns whose creators sleep
        self._planned_interlude: Interlude | None = None  # planned
        self._interrupted = False  # by an interlude, since the auditor looked

    def keep_every_promise(self) -> None:
        """Let the auditor look."""
        self.seen, self._interrupted = observe_model(self.house, frozenset(self.forged)), False

    def call(self, program: str, act: Callable[[ModelProcess], T]) -> tuple[CallEnd, T | None]:
        """Let a program make a call."""
        late_before = set(self.house.store.late)
        try:
            end, result = CallEnd.ANSWERED, act(self.house.process(program))
        except SimulatedCrash:
            self.house.bury(program)
            return CallEnd.UNSURE, None
        except (RetryableError, OutcomeUnknown):
            end, result = CallEnd.UNSURE, None
        except TerminalError:
            end, result = CallEnd.REFUSED, None
        self._tell(self.house.store.late - late_before)
        return end, result

    def _tell(self, new_late_keys: set[str]) -> None:
        """Who came too late has asked for phase two to look again, but a segment never had a `meta.json` beside it.

        What was put for another catalog is nobody's here; nor is what was put when its intent had been forgotten.
        """
        store, epoch = self.house.store, self.house.catalog.current_epoch
        keys_of_this_epoch = {key for key in new_late_keys if key in store.bodies and store.epoch_of(key) == epoch}
        store.late -= {key for key in new_late_keys if self._has_primary_intent(key) and not self._may_be_late(key)}
        store.told |= keys_of_this_epoch & store.late

    def _has_primary_intent(self, key: str) -> bool:
        """Whether the catalog has an intent for the ledger still, finished or not."""
        return any(
            _is_object_of_intent(row, key)
            for row in self.house.catalog.intent_rows.values()
            if row.copy is CopyKind.LEDGER
        )

    def _may_be_late(self, key: str) -> bool:
        ledger_id = int(key.split("/")[2], 16)
        component = self.house.catalog.statements[LedgerId(ledger_id)].owner.component.value
        return component == "MANAGED_LEDGER" and key.endswith(".parquet")

    def step(self, root: str | None = None, *, task_choice: int = 0, loses_answer: bool = False) -> bool:
        """Make one attempt for a workflow and what it started, or for any, and look; whether there was one to make."""
        script = self.workflows.script
        script.which, script.next = task_choice, AttemptEnding.UNHEARD if loses_answer else AttemptEnding.ANSWERED
        try:
            has_run = self.workflows.step(self.house.process("worker").worker, root=root)
        except SimulatedCrash:
            self.house.bury("worker")
            has_run = True
        self.keep_every_promise()
        return has_run

    def go_on(self, workflow_id: str, steps: int) -> None:
        """Make so many attempts for it, if there is so much to do."""
        for _ in range(steps):
            if not self.workflows.is_open(workflow_id) or not self.step(workflow_id):
                return

    def finish_work(self) -> None:
        """Drive every workflow to its end."""
        for _ in range(MAX_STEPS):
            if not self.step():
                return
        raise AssertionError(f"there is no end to {[one.workflow_id for one in self.workflows.running]}")

    def plan(self, place: InterludePlace, interlude: Interlude) -> None:
        """Let something else happen there, once. No request to storage takes longer than an upload's deletion waits."""
        slow = interlude in {Interlude.CLAIMS_LAPSE, Interlude.TRIMMED}
        if self._planned_interlude is not None or (slow and place is InterludePlace.UPLOAD):
            return
        self._planned_interlude = interlude
        if place is InterludePlace.FINISH:
            self.house.watched.before_finish = self._run_interlude
            return
        store = self.house.cold if place is InterludePlace.UPLOAD else self.house.store
        operation = StoreOperation.PUT if place is InterludePlace.UPLOAD else place.value
        store.plan(Fault(operation=operation, kind=FaultKind.CALL, action=self._run_interlude))

    def wake(self) -> None:
        """Let creators that fell asleep put their statements, and try to attach their newborns."""
        sleepers, self.asleep = self.asleep, []
        for statement in sleepers:
            key, topic_id = meta_key(statement.ledger_id, statement.owner), statement.owner.topic_id
            last_ledger = self.house.catalog.ledgers.last_ledger(topic_id)
            with suppress(SimulatedCrash, SextonError):
                self.house.store.put_if_absent(key, statement.to_json(), metadata=statement.to_metadata())
                self.house.catalog.ledgers.attach_ledger(
                    statement.ledger_id, after=last_ledger.ledger_id if last_ledger else None
                )
                if self._has_primary_intent(key):
                    self.house.store.late.discard(key)  # it has told phase two to look again

    def _run_interlude(self) -> None:
        interlude, self._planned_interlude, self._interrupted = self._planned_interlude, None, True
        self.house.watched.before_finish = None
        worker = "another worker"
        try:
            match interlude:
                case Interlude.CLAIMS_LAPSE:
                    self.house.catalog.advance(seconds=CLAIM_LAPSE_S)
                case Interlude.OVERTAKEN:
                    self._overtake(worker)
                case Interlude.TRIMMED:
                    self._trim_everything(worker)
                case Interlude.SWEPT:
                    self._overtake(worker)
                    self._run_workflow_on(self.workflows.sweep(id="a sweep"), worker)
                case Interlude.WOKEN:
                    self.wake()
                case Interlude.ROLLED:
                    for topic in self.topics.values():
                        self.house.process(worker).topic_logs.roll(topic)
        except (SimulatedCrash, RetryableError, OutcomeUnknown, TerminalError):
            self.house.bury(worker)
            self.workflows.driver.lose_worker()

    def _overtake(self, worker: str) -> None:
        self.workflows.driver.overtake(self.house.process(worker).worker)

    def _trim_everything(self, worker: str) -> None:
        self.house.catalog.advance(seconds=ABANDON_TIMEOUT_S)
        for topic in self.topics.values():
            trim = self.workflows.trim(int(topic.topic_id), topic.name, id=f"a trim of {topic.topic_id}")
            self._run_workflow_on(trim, worker)

    def _run_workflow_on(self, workflow_id: str, worker: str) -> None:
        for _ in range(MAX_STEPS):
            activity_worker = self.house.process(worker).worker
            if not self.workflows.is_open(workflow_id) or not self.workflows.step(activity_worker, root=workflow_id):
                return

    def mend(self) -> None:
        """Storage is well, and nothing is planned."""
        self.house.store.heal()
        self.house.cold.heal()
        self.house.watched.before_finish = None
        self._planned_interlude = None

    def forge(self, topic: str, ledger_number: int, *, component: str) -> None:
        """File an intent that no detach stands behind."""
        catalog, ledger_id = self.house.catalog, LedgerId(ledger_number)
        row = catalog.ledger_rows.get(ledger_id)
        catalog.intent_rows[catalog.next_row] = DeletionIntent(
            row_id=catalog.next_row,
            batch_id="",
            ledger_id=ledger_id,
            copy=CopyKind.LEDGER,
            generation=90 + catalog.next_row,
            application="sexton",
            component=component,
            topic_id=self.topics[topic].topic_id,
            topic=self.topics[topic].name,
            keys={},
            segments=len(catalog.segment_rows.get(ledger_id, [])),
            last_segment=row.last_segment if row else -1,
            ledger_created_us=row.created_us if row else 0,
        )
        self.forged.add(catalog.next_row)
        catalog.next_row += 1

    def position(self, topic: str, place: int, entry: int) -> Position:
        """An entry of a listed ledger, counted from the head; one behind the list where it is too short."""
        listed = self.seen.list_topic_ledgers(self.id(topic))
        ledger_id = listed[place] if place < len(listed) else max(listed, default=-1) + 1 + place
        return Position(LedgerId(ledger_id), entry)

    def ever(self, topic: str) -> list[int]:
        """Ledgers of the topic that are listed, and those that were."""
        detached_ids = {int(row.ledger_id) for row in self.seen.intents.values() if row.topic_id == self.id(topic)}
        return sorted(detached_ids | {*self.seen.list_topic_ledgers(self.id(topic))})

    def id(self, topic: str) -> int:
        """What the catalog calls it."""
        return int(self.topics[topic].topic_id)

    def _check_deleter_holds_intent(self, key: str) -> None:
        """Whoever deletes holds the row; two workflows never work on one."""
        if self._interrupted:
            return
        catalog, me = self.house.catalog, activity.info().workflow_id
        rows = [row for row in catalog.intent_rows.values() if _is_object_of_intent(row, key)]
        holders = [self.house.watched.holder(row) for row in rows]
        if me not in holders:
            self.wrong.append(f"{me} deletes {key}, which {holders} hold")


def _is_object_of_intent(row: DeletionIntent, key: str) -> bool:
    if row.copy is CopyKind.OFFLOADED_LEDGER:
        return key.startswith(f"{row.context['uuid']}-ledger-{row.ledger_id}")
    return f"/{row.ledger_id:016x}/" in key
