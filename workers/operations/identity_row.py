"""`status`: which catalog this is, and which of the services are another's."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple

from temporalio.service import RPCError

from infra.catalog import open_catalog
from infra.coordination.identity import compare_path
from logstore.errors import CatalogMismatch, SextonError
from logstore.identity.markers import MarkerState
from logstore.identity.services.own_stores import OwnStore, OwnStores
from logstore.ports.catalog import Identities
from workers.assembly.adapters import own_buckets
from workers.client.connections import connect_client
from workers.identity import namespace
from workers.identity.stores import buckets_of
from workers.operations.owners import open_session
from workers.settings import Settings

IDENTITY: Final = "identity"


class _Standing(Enum):
    WELL = auto()
    FOREIGN = auto()
    UNTOLD = auto()


class _Seen(NamedTuple):
    standing: _Standing
    told: str


def identity_row(settings: Settings) -> Mapping[str, object]:
    """The catalog's id, and each service that is not its own, with what was expected and found; changes nothing."""
    try:
        with open_catalog(settings.database_url) as catalog:
            identities, catalog_id = catalog.identities, catalog.identities.catalog_id()
            seen = [_seen(name, look) for name, look in _looks(settings, identities)]
    except SextonError as error:
        return {"name": IDENTITY, "ok": False, "detail": f"cannot be told: {error}"}
    wrong = [one.told for one in seen if one.standing is _Standing.FOREIGN]
    silent = [one.told for one in seen if one.standing is _Standing.UNTOLD]
    if silent:
        wrong.append(f"cannot be told of {', '.join(silent)}: no answer, or a refusal")
    detail = "; ".join(wrong) or ", ".join(one.told for one in seen)
    return {"name": IDENTITY, "ok": not wrong, "detail": f"catalog {catalog_id}: {detail or 'no service is known'}"}


def _seen(name: str, look: Callable[[], bool]) -> "_Seen":
    """What to say of a service; why one cannot be told is said in the row of that service."""
    try:
        return _Seen(_Standing.WELL, name if look() else f"{name} (nobody's yet)")
    except CatalogMismatch as error:
        return _Seen(_Standing.FOREIGN, str(error))
    except (RPCError, SextonError):
        return _Seen(_Standing.UNTOLD, name)


def _looks(settings: Settings, identities: Identities) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Each service that is known, and how to ask whether it is the catalog's."""
    if settings.store_is_known:
        own = own_buckets(settings, OwnStores(identities), hasty=True)
        for role, bucket in buckets_of(settings):
            yield f"{role.value} bucket {bucket}", partial(_is_ours, own(role, bucket))
    if settings.ownership == "zookeeper" and settings.zookeeper:
        yield "zookeeper", lambda: _path(settings, identities.catalog_id())
    if settings.temporal_address:
        yield f"namespace {settings.temporal_namespace}", lambda: _namespace(settings, identities.catalog_id())


def _is_ours(store: OwnStore) -> bool:
    return store.look() is MarkerState.OURS


def _path(settings: Settings, catalog_id: str) -> bool:
    with open_session(settings) as session:
        return compare_path(session, catalog_id)


def _namespace(settings: Settings, catalog_id: str) -> bool:
    async def ask() -> bool:
        return await namespace.compare(await connect_client(settings), catalog_id)

    return asyncio.run(ask())
