"""Workers that own topics, beside the one that serves the shared queue."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from activities.owner_routing import owner_task_queue
from logstore.ports.bundle_owners import TopicOwners
from tests.fakes.owners import FakeBundleOwnership, FakeOwners
from tests.workflows.workflow_harness import Activity, WorkflowHarness


class Neighbours:
    """The workers of one house and what each sees of ownership; their names are of this house alone."""

    def __init__(self, house: WorkflowHarness) -> None:
        """Begin with a topic that nobody owns."""
        self.house = house
        self.ownership = FakeBundleOwnership(house.world.catalog.fences)

    def name(self, letter: str) -> str:
        """The worker id of neighbour `letter`; queues are on one server for all tests."""
        return f"{letter}-{self.house.queue}"

    def queue(self, letter: str) -> str:
        """The owner queue of a neighbour."""
        return owner_task_queue(self.name(letter))

    def moves_in(self, letter: str) -> None:
        """A neighbour acquires the bundle of the house's topic."""
        self.ownership.acquire(self.name(letter), self.house.world.topic.name)

    def sees(self, letter: str) -> FakeOwners:
        """Ownership as a neighbour sees it."""
        return FakeOwners(self.ownership, self.name(letter))

    def shared(self, letter: str = "s", *, replacements: Sequence[Activity] = ()) -> AbstractAsyncContextManager[Any]:
        """A neighbour on the shared queue, with all workflows."""
        return self.house.worker(replacements=self.at(self.sees(letter), replacements))

    def owner(
        self,
        letter: str,
        *,
        owners: TopicOwners | None = None,
        replacements: Sequence[Activity] = (),
        without: str = "",
    ) -> AbstractAsyncContextManager[Any]:
        """A neighbour on its owner queue, with activities alone."""
        activities = [one for one in self.at(owners or self.sees(letter), replacements) if one.__name__ != without]
        return self.house.serve(self.queue(letter), activities)

    def at(self, owners: TopicOwners, replacements: Sequence[Activity] = ()) -> list[Activity]:
        """What a topic's owner serves, at a worker that sees ownership so."""
        deletion = self.house.world.deletion_activities_with_owners(owners)
        real: list[Activity] = [
            deletion.detach,
            deletion.delete_chunk,
            deletion.hand_over_chunk,
            deletion.claim_and_delete_copy,
            deletion.dead_letter_intent,
            deletion.close_and_certify_batch,
        ]
        replaced = {one.__name__ for one in replacements}
        return [one for one in real if one.__name__ not in replaced] + list(replacements)

    def visits(self, type_: str) -> list[str]:
        """Where attempts of an activity ran, in order: `shared`, or the letter of the owner."""
        shared = self.house.queue
        prefix, suffix = owner_task_queue(""), f"-{shared}"
        found = [one.queue for one in self.house.attempts(type_)]
        return ["shared" if one == shared else one.removeprefix(prefix).removesuffix(suffix) for one in found]
