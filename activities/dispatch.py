"""Where the background work of a topic runs: at its owner and under its lease, or anywhere if no worker owns it.

A worker that gets a task from the shared queue looks the owner up itself and goes on if that is itself, or if there
is none: so the usual task takes one activity, and no more than two. Work of another worker's topic is redirected, and
nothing is done.
Where ZooKeeper does not answer the work is done here, under no lease: claims and fences in SQL keep every promise.

Source: Pulsar's topic lookup, by which any broker redirects a client to the owner.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field
from typing_extensions import TypeAliasType

from activities.heartbeats import beating
from logstore.errors import InvalidInput, LookupRefused, OutcomeUnknown, RetryableError, ServiceFailed, UnknownObject
from logstore.names import TopicName
from logstore.ownership import Lease
from logstore.ports.catalog import Topics
from logstore.ports.owners import OtherOwner, Owners
from logstore.positions import TopicId


def owner_queue(worker_id: str) -> str:
    """The task queue of one worker: it gets the work on topics that this worker owns."""
    return f"sexton-owner-{worker_id}"


class Route(StrEnum):
    """To which worker an activity is sent, and which lease it needs there; running workflows hold these values."""

    LOOKUP = "ASK"  # on the shared queue: look the owner up; go on if it is this worker or none, otherwise redirect
    OWNER = "OWNER"  # on an owner's queue: under its lease, or not at all
    ANYWHERE = "ANYWHERE"  # without a lease, whichever worker owns the topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWork:
    """What every request has that may be served by a topic's owner."""

    topic: str = ""  # encoded; of none, or of several, without an owner
    place: Route = Route.ANYWHERE
    owner_patience_s: int = 10  # how long a lookup may take, 1 or more


R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkResult(Generic[R]):
    """The work was done."""

    owner: str  # under whose lease; "": under none
    result: R
    answer: Literal["done"] = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """Nothing was done, because the topic is another worker's."""

    owner: str
    answer: Literal["redirected"] = "redirected"


Answer = TypeAliasType(
    "Answer",
    Annotated[WorkResult[R] | Redirect, Field(discriminator="answer")],
    type_params=(R,),
)
"""What an activity answers that may be served by a topic's owner."""


def find_lease(request: TopicWork, owners: Owners) -> Lease | Redirect | None:
    """The lease under which the work is to be done here, None for none, or the topic's other owner.

    What is no name is in no bundle: its work has no owner.

    Raises:
        NotOwner: The request came as to the topic's owner, which this worker is not, or ceased to be.
        LookupRefused: ZooKeeper refuses this worker.
    """
    if request.place is Route.ANYWHERE or not is_topic_name(request.topic):
        return None
    name = TopicName.from_encoded(request.topic)
    if request.place is Route.OWNER:
        return owners.lease_of(name)
    try:
        with beating():  # ZooKeeper may make us wait for longer than a heartbeat timeout
            found = owners.lookup(name, patience_s=request.owner_patience_s)
    except (RetryableError, OutcomeUnknown):
        return None
    except ServiceFailed as error:
        raise LookupRefused(str(error)) from error
    return Redirect(owner=found.worker_id) if isinstance(found, OtherOwner) else found


def to_work_result(lease: Lease | None, result: R) -> WorkResult[R]:
    """The answer of work that was done, under the lease or under none."""
    return WorkResult(owner=lease.worker_id if lease else "", result=result)


def is_topic_name(name: str) -> bool:
    """Whether an encoded name can be a topic's; one that is empty or damaged names none."""
    try:
        TopicName.from_encoded(name)
    except InvalidInput:
        return False
    return True


def check_topic_name(topics: Topics, topic_id: int, name: str) -> None:
    """Refuse an encoded name that the topic of that id does not bear; ids and names stay together for ever.

    What is no name is any name. Of a topic that is gone nothing is said here.

    Raises:
        InvalidInput: It bears another.
    """
    if not is_topic_name(name):
        return  # none, or damaged in the catalog: no other topic was meant
    try:
        found = topics.get_by_id(TopicId(topic_id))
    except UnknownObject:
        return  # the work itself finds out, and may have been done when the topic was there
    if found.name != name:
        raise InvalidInput("topic", expected=f"the name of topic {topic_id}, {found.name}", found=name)
