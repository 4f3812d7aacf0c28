"""Choice of the worker for an activity on one topic: the part that runs in the activity.

The bundle owner does the work under its lease. A worker of the shared queue looks up the bundle owner. If another
worker is the bundle owner, the request is redirected. If there is no bundle owner, or if ZooKeeper does not answer, the
work is done without a lease. Claims and fences in SQL prevent wrong changes. Source: Pulsar's topic lookup.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, cast

from pydantic import Field
from typing_extensions import TypeAliasType

from activities.heartbeats import send_heartbeats
from logstore.catalog.log.topics import Topics
from logstore.errors import InvalidInput, LookupRefused, OutcomeUnknown, RetryableError, ServiceFailed, UnknownObject
from logstore.ownership import Lease
from logstore.ports.bundle_owners import OtherBundleOwner, TopicOwners
from logstore.positions import TopicId
from logstore.subjects import HasTopic
from logstore.validated_names import TopicName


def owner_task_queue(worker_id: str) -> str:
    return f"sexton-owner-{worker_id}"


class Route(StrEnum):
    """Worker for an activity, and the lease that the activity needs. The values are in workflow histories."""

    LOOKUP = "ASK"  # shared queue: look up the bundle owner; redirect if it is another worker
    OWNER = "OWNER"  # bundle owner's queue: work under the bundle owner's lease, or not at all
    ANYWHERE = "ANYWHERE"  # any worker, without a lease


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRoutedInput(HasTopic):
    topic: str = ""  # encoded; empty: no topic or several topics, so any worker
    place: Route = Route.ANYWHERE
    owner_patience_s: int = 10  # limit of a lookup, 1 or more


A = TypeVar("A", bound="OwnerRoutedActivities")
Q = TypeVar("Q", bound=OwnerRoutedInput)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedWork(Generic[R]):
    owner: str  # worker whose lease covered the work; "": no lease
    result: R
    answer: Literal["done"] = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRedirect:
    """Answer of a worker that did nothing, because another worker is the bundle owner."""

    owner: str
    answer: Literal["redirected"] = "redirected"


OwnerRoutedAnswer = TypeAliasType(
    "OwnerRoutedAnswer",
    Annotated[CompletedWork[R] | OwnerRedirect, Field(discriminator="answer")],
    type_params=(R,),
)
"""Answer of an activity that a bundle owner may serve."""


def resolve_lease_or_redirect(request: OwnerRoutedInput, owners: TopicOwners) -> Lease | OwnerRedirect | None:
    """Return the lease for the work, `None` for work without a lease, or a redirect to the bundle owner.

    For a request without a valid topic name, return `None`.

    Raises:
        NotOwner: The request was sent to this worker as the bundle owner, but this worker is not the bundle owner.
        LookupRefused: ZooKeeper refuses this worker.
    """
    if request.place is Route.ANYWHERE or not is_valid_topic_name(request.topic):
        return None
    name = TopicName.from_encoded(request.topic)
    if request.place is Route.OWNER:
        return owners.get_lease(name)
    try:
        with send_heartbeats():  # ZooKeeper may take longer than a heartbeat timeout
            owner = owners.find_owner(name, patience_s=request.owner_patience_s)
    except (RetryableError, OutcomeUnknown):
        return None
    except ServiceFailed as error:
        raise LookupRefused(str(error)) from error
    return OwnerRedirect(owner=owner.worker_id) if isinstance(owner, OtherBundleOwner) else owner


class OwnerRoutedActivities(Protocol):
    _owners: TopicOwners


def work_at_owner(work: Callable[[A, Q, Lease | None], R]) -> Callable[[A, Q], OwnerRoutedAnswer[R]]:
    """Make an activity of a method that works under a lease, or without one if the lease is `None`.

    The activity redirects the request if another worker is the bundle owner. It raises the errors of
    `resolve_lease_or_redirect`.
    """

    @wraps(work)
    def resolve_lease_and_work(self: A, request: Q) -> OwnerRoutedAnswer[R]:
        lease = resolve_lease_or_redirect(request, self._owners)
        if isinstance(lease, OwnerRedirect):
            return lease
        result = work(self, request, lease)
        return CompletedWork(owner=lease.worker_id if lease else "", result=result)

    # The SDK reads the types of the request and of the answer.
    signature, generic_answer = inspect.signature(work), cast("Any", OwnerRoutedAnswer)
    self_parameter, request_parameter, _ = signature.parameters.values()
    answer_type = generic_answer[signature.return_annotation]
    resolve_lease_and_work.__annotations__ = {"request": request_parameter.annotation, "return": answer_type}
    resolve_lease_and_work.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[self_parameter, request_parameter], return_annotation=answer_type
    )
    return resolve_lease_and_work


def is_valid_topic_name(name: str) -> bool:
    """Return whether an encoded topic name is valid. Empty and damaged names are invalid."""
    try:
        TopicName.from_encoded(name)
    except InvalidInput:
        return False
    return True


def require_topic_name_if_known(topics: Topics, topic_id: int, name: str) -> None:
    """Raise `InvalidInput` if the topic has another name. A topic's name never changes.

    Skip the check for an empty or invalid name, and for a topic that does not exist.
    """
    if not is_valid_topic_name(name):
        return
    try:
        topic = topics.get_topic_by_id(TopicId(topic_id))
    except UnknownObject:
        return  # the work itself reports this, or was done while the topic existed
    if topic.name != name:
        raise InvalidInput("topic", expected=f"the name of topic {topic_id}, {topic.name}", found=name)
