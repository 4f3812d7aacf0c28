"""Faults of the Temporal server as `ServiceFailed`, and details in failures of jobs."""

from collections.abc import Mapping, Sequence
from typing import Final

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import ServiceFailed
from workflows import search_attributes

TRACE_ID: Final = "trace_id"
"""Key in the details of a failure."""

FIELD: Final = "field"
"""Key in the details of a failure. The value is the refused field of the input."""

CHECK_API_KEY_ADVICE: Final = "check temporal_api_key or temporal_api_key_file, and the namespace that the key is for"
_READ_LOG_ADVICE = "run `sexton up`, or read its log"
_FAULT_BY_STATUS = {
    RPCStatusCode.UNAVAILABLE: ("it does not answer", _READ_LOG_ADVICE),
    RPCStatusCode.DEADLINE_EXCEEDED: ("it does not answer in time", _READ_LOG_ADVICE),
    RPCStatusCode.CANCELLED: ("it does not answer in time", _READ_LOG_ADVICE),
    RPCStatusCode.RESOURCE_EXHAUSTED: ("it takes no more requests for now", "try again later"),
    RPCStatusCode.PERMISSION_DENIED: ("it refuses us", "ask its operator for access to the namespace"),
    RPCStatusCode.UNAUTHENTICATED: ("it does not know us", CHECK_API_KEY_ADVICE),
    RPCStatusCode.UNIMPLEMENTED: ("it lacks a call that is needed", "is a Temporal server at that address, and new?"),
    RPCStatusCode.INTERNAL: ("it failed", "read its log"),
    RPCStatusCode.UNKNOWN: ("it failed", "is a Temporal server at that address? Read its log"),
    RPCStatusCode.DATA_LOSS: ("it failed", "read its log"),
}


def explain_server_fault(error: RPCError) -> ServiceFailed | None:
    """Return the server's fault. Return `None` if the server works, but refuses this request."""
    problem, advice = _FAULT_BY_STATUS.get(error.status, ("", ""))
    if missing := _find_missing_namespace(error):
        problem = f"there is no namespace {missing}"
        advice = f"correct SEXTON_TEMPORAL_NAMESPACE, or run `temporal operator namespace create {missing}`"
    elif _lacks_search_attributes(error):
        types = {key.name: key.indexed_value_type.name.title().replace("_", "") for key in search_attributes.ALL}
        options = " ".join(f"--name {name} --type {value_type}" for name, value_type in types.items())
        problem = "the namespace lacks our search attributes"
        advice = f"run `temporal operator search-attribute create --namespace NAMESPACE {options}`"
    return ServiceFailed("temporal", problem, advice=advice) if problem else None


def _lacks_search_attributes(error: RPCError) -> bool:
    message = error.message if error.status is RPCStatusCode.INVALID_ARGUMENT else ""
    return "search attribute" in message and any(key.name in message for key in search_attributes.ALL)


def _find_missing_namespace(error: RPCError) -> str | None:
    for detail in error.grpc_status.details:
        failure = NamespaceNotFoundFailure()
        if detail.Unpack(failure):
            return failure.namespace
    return None


def find_detail(details: Sequence[object], key: str) -> str | None:
    values = (detail[key] for detail in details if isinstance(detail, Mapping) and key in detail)
    return next((str(value) for value in values), None)
