"""`status`: which catalog this is, and which of the services are another's."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from temporalio.service import RPCError

from infra.catalog import open_catalog
from infra.coordination.identity import compare_path
from logstore.errors import CatalogMismatch, SextonError
from logstore.identity.markers import MarkerState
from logstore.identity.services.own_stores import OwnStore, OwnStores
from logstore.ports.catalog import Identities
from workers.assembly.buckets import own_buckets_by_name
from workers.client.connections import with_client
from workers.identity import namespace
from workers.identity.stores import buckets_of
from workers.operations.owners import open_session
from workers.settings import Settings

IDENTITY: Final = "identity"


def identity_row(settings: Settings) -> Mapping[str, object]:
    """The catalog's id, and each service that is not its own, with what was expected and found; changes nothing."""
    ours: list[str] = []
    foreign: list[str] = []
    untold: list[str] = []  # why is said in the row of that service
    try:
        with open_catalog(settings.database_url) as catalog:
            catalog_id = catalog.identities.catalog_id()
            for name, look in _looks(settings, catalog.identities):
                try:
                    ours.append(name if look() else f"{name} (nobody's yet)")
                except CatalogMismatch as error:
                    foreign.append(str(error))
                except (RPCError, SextonError):
                    untold.append(name)
    except SextonError as error:
        return {"name": IDENTITY, "ok": False, "detail": f"cannot be told: {error}"}
    if untold:
        foreign.append(f"cannot be told of {', '.join(untold)}: no answer, or a refusal")
    detail = "; ".join(foreign) or ", ".join(ours) or "no service is known"
    return {"name": IDENTITY, "ok": not foreign, "detail": f"catalog {catalog_id}: {detail}"}


def _looks(settings: Settings, identities: Identities) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Each service that is known, and how to ask whether it is the catalog's."""
    if settings.store_is_known:
        own = own_buckets_by_name(settings, OwnStores(identities), hasty=True)
        for role, bucket in buckets_of(settings):
            yield f"{role.value} bucket {bucket}", partial(_is_ours, own(role, bucket))
    if settings.ownership == "zookeeper" and settings.zookeeper:
        yield "zookeeper", lambda: _path(settings, identities.catalog_id())
    if settings.temporal_address:
        yield (
            f"namespace {settings.temporal_namespace}",
            lambda: with_client(settings, lambda client: namespace.compare(client, identities.catalog_id())),
        )


def _is_ours(store: OwnStore) -> bool:
    return store.look() is MarkerState.OURS


def _path(settings: Settings, catalog_id: str) -> bool:
    with open_session(settings) as session:
        return compare_path(session, catalog_id)
