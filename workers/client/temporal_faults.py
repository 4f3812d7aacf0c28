"""Errors of Temporal's client, told to an operator: the service, what is wrong, what to try."""

from typing import Final

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import ServiceFailed
from workflows import search_attributes

REFUSED_KEY: Final = "check temporal_api_key or temporal_api_key_file, and the namespace that the key is for"
_LOOK = "run `sexton up`, or read its log"
_OUTSIDE = {
    RPCStatusCode.UNAVAILABLE: ("it does not answer", _LOOK),
    RPCStatusCode.DEADLINE_EXCEEDED: ("it does not answer in time", _LOOK),
    RPCStatusCode.CANCELLED: ("it does not answer in time", _LOOK),
    RPCStatusCode.RESOURCE_EXHAUSTED: ("it takes no more requests for now", "try again later"),
    RPCStatusCode.PERMISSION_DENIED: ("it refuses us", "ask its operator for access to the namespace"),
    RPCStatusCode.UNAUTHENTICATED: ("it does not know us", REFUSED_KEY),
    RPCStatusCode.UNIMPLEMENTED: ("it lacks a call that is needed", "is a Temporal server at that address, and new?"),
    RPCStatusCode.INTERNAL: ("it failed", "read its log"),
    RPCStatusCode.UNKNOWN: ("it failed", "is a Temporal server at that address? Read its log"),
    RPCStatusCode.DATA_LOSS: ("it failed", "read its log"),
}


def temporal_fault(error: RPCError) -> ServiceFailed | None:
    """The fault of the service; None where it answered about what was asked, as that a workflow does not exist."""
    problem, advice = _OUTSIDE.get(error.status, ("", ""))
    if missing := _missing_namespace(error):
        problem = f"there is no namespace {missing}"
        advice = f"correct SEXTON_TEMPORAL_NAMESPACE, or run `temporal operator namespace create {missing}`"
    elif _lacks_attributes(error):
        types = {one.name: one.indexed_value_type.name.title().replace("_", "") for one in search_attributes.ALL}
        wanted = " ".join(f"--name {name} --type {kind}" for name, kind in types.items())
        problem = "the namespace lacks our search attributes"
        advice = f"run `temporal operator search-attribute create --namespace NAMESPACE {wanted}`"
    return ServiceFailed("temporal", problem, advice=advice) if problem else None


def _lacks_attributes(error: RPCError) -> bool:
    """Whether a start or a query was refused because of them; the server says it in a sentence alone."""
    told = error.message if error.status is RPCStatusCode.INVALID_ARGUMENT else ""
    return "search attribute" in told and any(one.name in told for one in search_attributes.ALL)


def _missing_namespace(error: RPCError) -> str | None:
    """The namespace that the server does not have, if that is what it said."""
    for detail in error.grpc_status.details:
        found = NamespaceNotFoundFailure()
        if detail.Unpack(found):
            return found.namespace
    return None
