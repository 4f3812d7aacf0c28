"""Worker for the background work of a topic: its owner, under its lease, or any worker if the topic has no owner.

A worker with a task of the shared queue looks the owner up. It does the work if it is the owner or if there is none, so
that the usual task takes one activity. Otherwise it does nothing and returns a redirect, and a second activity does the
work. If ZooKeeper does not answer, the work is done without a lease: claims and fences in SQL keep it correct.

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
    """Return the task queue of one worker for work on the topics that it owns."""
    return f"sexton-owner-{worker_id}"


class Route(StrEnum):
    """Worker to which an activity is sent, and the lease that it needs there. Stored in histories of workflows."""

    LOOKUP = "ASK"  # shared queue: look the owner up; work if it is this worker or none, otherwise redirect
    OWNER = "OWNER"  # owner's queue: work under its lease, or not at all
    ANYWHERE = "ANYWHERE"  # any worker, without a lease


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWork:
    """Base class of requests that a topic's owner may serve."""

    topic: str = ""  # encoded; empty: no topic or several, without an owner
    place: Route = Route.ANYWHERE
    owner_patience_s: int = 10  # limit of a lookup, 1 or more


R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone(Generic[R]):
    """Result of work that was done."""

    owner: str  # worker whose lease covered the work; "": no lease
    result: R
    answer: Literal["done"] = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """Answer of a worker that did nothing, because another worker owns the topic."""

    owner: str
    answer: Literal["redirected"] = "redirected"


Answer = TypeAliasType(
    "Answer",
    Annotated[WorkDone[R] | Redirect, Field(discriminator="answer")],
    type_params=(R,),
)
"""Answer of an activity that a topic's owner may serve."""


def find_lease(request: TopicWork, owners: Owners) -> Lease | Redirect | None:
    """Return the lease for the work, `None` for work without a lease, or a redirect to another owner.

    Work without a valid topic name has no owner.

    Raises:
        NotOwner: The request was sent to this worker as the owner, which it is not or ceased to be.
        LookupRefused: ZooKeeper refuses this worker.
    """
    if request.place is Route.ANYWHERE or not is_topic_name(request.topic):
        return None
    name = TopicName.from_encoded(request.topic)
    if request.place is Route.OWNER:
        return owners.lease_of(name)
    try:
        with beating():  # ZooKeeper may take longer than a heartbeat timeout
            owner = owners.lookup(name, patience_s=request.owner_patience_s)
    except (RetryableError, OutcomeUnknown):
        return None
    except ServiceFailed as error:
        raise LookupRefused(str(error)) from error
    return Redirect(owner=owner.worker_id) if isinstance(owner, OtherOwner) else owner


def to_work_result(lease: Lease | None, result: R) -> WorkDone[R]:
    """Return the answer for work that was done under the lease, or without one."""
    return WorkDone(owner=lease.worker_id if lease else "", result=result)


def is_topic_name(name: str) -> bool:
    """Return whether an encoded name is valid. An empty or damaged one is not."""
    try:
        TopicName.from_encoded(name)
    except InvalidInput:
        return False
    return True


def check_topic_name(topics: Topics, topic_id: int, name: str) -> None:
    """Require that the topic of that id has the encoded name. An id and its name never change.

    Skip the check for an empty or invalid name, and for a topic that does not exist.

    Raises:
        InvalidInput: The topic has another name.
    """
    if not is_topic_name(name):
        return
    try:
        topic = topics.get_by_id(TopicId(topic_id))
    except UnknownObject:
        return  # the work itself reports it, or was done when the topic existed
    if topic.name != name:
        raise InvalidInput("topic", expected=f"the name of topic {topic_id}, {topic.name}", found=name)
