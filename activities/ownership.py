"""Where the background work of a topic runs: at its owner and under its lease, or anywhere if nobody owns it.

A worker that gets a task from the shared queue looks for the owner itself and goes on if that is itself, or nobody: so
the usual task takes one activity, and no more than two. What it finds of another worker it answers, and does nothing.

Source: Pulsar's topic lookup, by which any broker redirects a client to the owner.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from activities.beating import beating
from activities.defined import defined
from logstore.errors import InvalidInput, OutcomeUnknown, RetryableError, ServiceFailed
from logstore.names import TopicName
from logstore.ownership import Lease
from logstore.ports.owners import OtherOwner, Owners


def owner_queue(worker_id: str) -> str:
    """The task queue that one worker polls, for work that is its own as an owner."""
    return f"sexton-owner-{worker_id}"


class Place(StrEnum):
    """What a worker is to know of ownership before it works on a topic."""

    ASK = "ASK"  # on the shared queue: who is the owner? Here or nobody: go on. Another one: say so
    OWNER = "OWNER"  # on an owner's queue: under its lease, or not at all
    ANYWHERE = "ANYWHERE"  # without a lease, whoever owns the topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWork:
    """What every request has that may be served by a topic's owner."""

    topic: str = ""  # encoded; of none, or of several, with nobody to ask for
    place: Place = Place.ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Nothing was done, for the work is another worker's."""

    worker_id: str = ""  # whose; "": ZooKeeper could not be asked


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """What every answer to such a request has."""

    owner: str = ""  # under whose lease it was done; "": under none
    elsewhere: Elsewhere | None = None  # then nothing was done, and the rest says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpInput:
    """Which topic."""

    topic: str  # encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Who owned a topic a moment ago."""

    worker_id: str  # "": nobody


UNKNOWN: Final = Elsewhere()


class Leases:
    """The lease that a request is served under, at this worker."""

    def __init__(self, owners: Owners) -> None:
        """Take what this worker knows of ownership."""
        self._owners = owners

    def of(self, work: TopicWork) -> Lease | Elsewhere | None:
        """What to write under, None for nothing; or who should be asked.

        A name that is none belongs to no bundle: its work needs no owner, and is nobody else's.

        Raises:
            NotOwner: The request came as to its owner, and this worker is not.
        """
        name = _name(work)
        if name is None or work.place is Place.ANYWHERE:
            return None
        return self._owners.lease_of(name) if work.place is Place.OWNER else self._asked(name)

    def _asked(self, name: TopicName) -> Lease | Elsewhere | None:
        try:
            with beating():  # ZooKeeper may make us wait for longer than a heartbeat timeout
                found = self._owners.placement(name)
        except (RetryableError, OutcomeUnknown, ServiceFailed):
            return UNKNOWN  # never read as "nobody": the workflow waits until somebody can be asked
        return Elsewhere(worker_id=found.worker_id) if isinstance(found, OtherOwner) else found


def _name(work: TopicWork) -> TopicName | None:
    try:
        return TopicName.from_encoded(work.topic) if work.topic else None
    except InvalidInput:
        return None


def owner_of(lease: Lease | None) -> str:
    """What `TopicAnswer.owner` says of work under `lease`."""
    return lease.worker_id if lease else ""


class Ownership:
    """Who owns what, for workflows."""

    def __init__(self, *, owners: Owners) -> None:
        """Take what this worker knows of ownership."""
        self._owners = owners

    @defined(name="ownership.look_up")
    @beating()
    def look_up(self, request: LookUpInput) -> Located:
        """Say who owns the topic, once ZooKeeper can be asked.

        Idempotency: reads only.
        Heartbeat: while ZooKeeper is asked.
        Raises: StoreUnavailable, SessionLost, ServiceFailed (retry, without end: never read as "nobody");
            InvalidInput (terminal).
        """
        found = self._owners.placement(TopicName.from_encoded(request.topic))
        return Located(worker_id=found.worker_id if found else "")
