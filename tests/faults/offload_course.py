"""The way of tiered copies: offloaded, read from them alone, trimmed; with uploaders that died on the way."""

from collections.abc import Sequence
from functools import partial
from typing import Final, Self

from logstore.offload.tiered_copy import data_key
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.faults.main_job_operators import DELETION_POLICY, TEST_CAUSE, MainJobOperators
from tests.faults.simulated_world import TIERED_BUCKET
from tests.faults.topic_plans import TopicPlan
from workflows.offload.job_definitions import OFFLOAD_TOPIC, OffloadAsk, OffloadLimits, OffloadTopicInput
from workflows.offload.offload_topic import OffloadTopic

OFFLOAD_PLANS: Final = (TopicPlan(name="persistent://shop/main/cold", ledgers=6, acknowledged={"billing": 2}),)
"""Of its closed ledgers the first four are offloaded, and the first two of these trimmed."""

_REPLACED, _REFUSED, _ABANDONED = 0, 1, 4  # places of ledgers whose first uploader dies, fails, dies for good
_OFFLOADED_PLACES = range(4)
_DRIVER_METADATA = {"driver": "aws-s3", "bucket": TIERED_BUCKET}


class OffloadOperators(MainJobOperators):
    """Operators who let ledgers go to the tiered bucket before they are trimmed."""

    def write(self) -> None:
        """Write and acknowledge; then let uploaders die."""
        super().write()
        for plan in self.plans:
            ledgers = [ledger.ledger_id for ledger in self.memory[f"list {plan.name}"]]
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
            ledgers = [ledger.ledger_id for ledger in self.memory[f"list {plan.name}"]]
            self._offload_topic(topic, ledgers)

    def _let_uploaders_die(self, ledgers: list[LedgerId]) -> None:
        """Two that died long ago, one of them in mid-upload, and a store that refuses one index once."""
        for place in (_REPLACED, _ABANDONED):
            uuid = f"dead-{place}"
            self._process.catalog.offloads.begin_offload(
                ledgers[place], uuid=uuid, driver_metadata=_DRIVER_METADATA, timeout_s=-180
            )
            self.world.tiered.unfinished.add(data_key(uuid, ledgers[place]))
        refused = f"-ledger-{ledgers[_REFUSED]}-index"
        fault = Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE, matches=lambda key: key.endswith(refused))
        self.world.tiered.plan(fault)

    def _offload_topic(self, topic: Topic, ledgers: Sequence[LedgerId]) -> None:
        ask = OffloadAsk(
            ledger_ids=[int(ledgers[place]) for place in _OFFLOADED_PLACES], delete_primary=True, **TEST_CAUSE
        )
        policy = OffloadLimits(timeout_s=600)
        request = OffloadTopicInput(
            topic_id=topic.topic_id, topic=topic.name, asks=[ask], policy=policy, deletion=DELETION_POLICY
        )
        self._start("offload", OffloadTopic, request, OFFLOAD_TOPIC.id(topic.topic_id))
        self._work()
