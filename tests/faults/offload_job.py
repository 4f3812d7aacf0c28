"""The way of tiered copies: offloaded, read from them alone, trimmed; with uploaders that died on the way.

The order of the steps is that of the workflows `offload-ledger` and `offload-topic`.
"""

from functools import partial
from typing import Final, Self

from activities.offload import PublishInput, RemovePrimariesInput, UploadInput
from logstore.offload.tiered import data_key
from logstore.ports.catalog import OffloadAnswer, Topic
from logstore.positions import LedgerId
from tests.fakes.objects import Fault, FaultKind, Operation
from tests.faults.job import Job
from tests.faults.scene import TopicPlan
from tests.faults.world import BUCKET, World

COLD: Final = (TopicPlan(name="persistent://shop/main/cold", ledgers=6, acknowledged={"billing": 2}),)
"""Of its closed ledgers the first four are offloaded, and the first two of these trimmed."""

_REPLACED, _REFUSED, _ABANDONED = 0, 1, 4  # places of ledgers whose first uploader dies, fails, dies for good
_OFFLOADED = range(4)
_PLACE = {"driver": "aws-s3", "bucket": BUCKET}
_TURNS = 5


class OffloadJob(Job[World]):
    """A job whose ledgers go to the tiered bucket before they are trimmed."""

    def write(self) -> None:
        """Write and acknowledge; then let uploaders die."""
        super().write()
        for plan in self.plans:
            ledgers = [it.ledger_id for it in self.history[f"list {plan.name}"]]
            self._once(f"once {plan.name} uploaders", partial(self._let_uploaders_die, ledgers))

    def remove(self) -> None:
        """Offload, remove primary copies, trim."""
        self.offload_all()
        super().remove()

    def clear(self) -> Self:
        """Write and offload what is not yet, then delete every topic with both kinds of copies."""
        self.deletes = True
        return self.drive(self.write, self.offload_all, self.delete_topics)

    def offload_all(self) -> None:
        """Offload some ledgers, and remove primary copies."""
        for plan in self.plans:
            topic = self._topic(plan)
            ledgers = [it.ledger_id for it in self.history[f"list {plan.name}"]]
            for place in _OFFLOADED:
                self._offload(ledgers[place])
            self._remove_primaries(topic)

    def _let_uploaders_die(self, ledgers: list[LedgerId]) -> None:
        """Two that died long ago, one of them in mid-upload, and a store that refuses one index once."""
        for place in (_REPLACED, _ABANDONED):
            uuid = f"dead-{place}"
            self._process.catalog.offloads.begin(ledgers[place], uuid=uuid, place=_PLACE, timeout_s=-180)
            self.world.tiered.unfinished.add(data_key(uuid, ledgers[place]))
        refused = f"-ledger-{ledgers[_REFUSED]}-index"
        fault = Fault(operation=Operation.PUT, kind=FaultKind.BEFORE, matches=lambda key: key.endswith(refused))
        self.world.tiered.plan(fault)

    def _offload(self, ledger_id: int) -> None:
        """As `offload-ledger` does."""
        workflow_id = f"offload-ledger/{ledger_id}"
        for turn in range(_TURNS):
            name, upload = f"{self.run_name} {workflow_id} {turn}", UploadInput(ledger_id=ledger_id, timeout_s=600)
            done = self._activity(f"{name} upload", workflow_id, lambda p: p.offload.upload, upload)
            if done.answer is not OffloadAnswer.BEGUN:
                return
            publish = PublishInput(ledger_id=ledger_id, uuid=done.uuid)
            found = self._activity(f"{name} publish", workflow_id, lambda p: p.offload.publish, publish)
            if found is not OffloadAnswer.BEGUN:
                return
        raise AssertionError(f"{workflow_id} does not come to an end")

    def _remove_primaries(self, topic: Topic) -> None:
        """As `offload-topic` does, in pages of three."""
        after = -1
        for page in range(_TURNS):
            left = self._remove_page(topic, page, after)
            if left is None:
                return
            after = left
        raise AssertionError(f"removal of primary copies of {topic.name} does not come to an end")

    def _remove_page(self, topic: Topic, page: int, after: int) -> int | None:
        batch_id = f"{topic.topic_id}-primaries-{self.run_name}-{page}"
        request = RemovePrimariesInput(
            topic_id=topic.topic_id,
            batch_id=batch_id,
            batch_workflow_id=f"delete-ledgers/{batch_id}",
            actor="tests",
            reason="the main job",
            after=after,
            limit=3,
        )
        workflow_id = f"offload-topic/{topic.topic_id}"
        found = self._activity(f"{batch_id} remove", workflow_id, lambda p: p.offload.remove_primaries, request)
        if found.intents:
            self._delete_ledgers(batch_id, found.catalog_epoch)
        return found.next_after
