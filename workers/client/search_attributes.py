"""Search attributes in the namespace: registered by `up`, required by every worker at its start."""

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import PreconditionFailed
from workflows import search_attributes


async def missing(client: Client) -> dict[str, "IndexedValueType.ValueType"]:
    """Those of ours that the namespace lacks, by name, with their types."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    present = (await client.operator_service.list_search_attributes(request)).custom_attributes
    return {
        key.name: IndexedValueType.ValueType(key.indexed_value_type)
        for key in search_attributes.ALL
        if key.name not in present
    }


async def register(client: Client) -> None:
    """Add what is missing; repeating it is harmless."""
    wanted = await missing(client)
    if not wanted:
        return
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


async def require(client: Client) -> None:
    """Refuse to work in a namespace where jobs could not be found.

    Raises:
        PreconditionFailed: Attributes are missing; names them.
    """
    absent = await missing(client)
    if absent:
        names = ", ".join(sorted(absent))
        raise PreconditionFailed(f"namespace {client.namespace}: expected search attributes, missing {names}")
