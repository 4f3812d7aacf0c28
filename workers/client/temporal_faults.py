"""Errors of Temporal's client, told to an operator: the service, what is wrong, what to try."""

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import ServiceFailed

_LOOK = "see `sexton status`, or run `sexton up`"
_OUTSIDE = {
    RPCStatusCode.UNAVAILABLE: ("it does not answer", _LOOK),
    RPCStatusCode.DEADLINE_EXCEEDED: ("it does not answer in time", _LOOK),
    RPCStatusCode.CANCELLED: ("it does not answer in time", _LOOK),
    RPCStatusCode.RESOURCE_EXHAUSTED: ("it takes no more requests for now", "try again later"),
    RPCStatusCode.PERMISSION_DENIED: ("it refuses us", "ask its operator for access to the namespace"),
    RPCStatusCode.UNAUTHENTICATED: ("it refuses us", "ask its operator for access to the namespace"),
    RPCStatusCode.UNIMPLEMENTED: ("it lacks a call that is needed", "is a Temporal server at that address, and new?"),
    RPCStatusCode.INTERNAL: ("it failed", "read its log"),
    RPCStatusCode.UNKNOWN: ("it failed", "is a Temporal server at that address? Read its log"),
    RPCStatusCode.DATA_LOSS: ("it failed", "read its log"),
}


def temporal_fault(error: RPCError) -> ServiceFailed | None:
    """The fault of the service; None where it answered about what was asked, as that a workflow does not exist."""
    missing = missing_namespace(error)
    if missing is not None:
        problem = f"there is no namespace {missing}"
        advice = f"correct SEXTON_TEMPORAL_NAMESPACE, or run `temporal operator namespace create {missing}`"
        return ServiceFailed("temporal", problem, advice=advice)
    if error.status not in _OUTSIDE:
        return None
    problem, advice = _OUTSIDE[error.status]
    return ServiceFailed("temporal", problem, advice=advice)


def missing_namespace(error: RPCError) -> str | None:
    """The namespace that the server does not have, if that is what it said."""
    if error.status is not RPCStatusCode.NOT_FOUND:
        return None
    for detail in error.grpc_status.details:
        found = NamespaceNotFoundFailure()
        if detail.Unpack(found):
            return found.namespace
    return None
