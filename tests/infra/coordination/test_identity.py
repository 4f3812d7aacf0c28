"""A path of ZooKeeper serves one catalog, whoever comes first."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from infra.coordination.ownership_nodes import CATALOG, check_path_belongs_to_catalog, claim_path_for_catalog
from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from logstore.errors import CatalogMismatch

pytestmark = pytest.mark.external_service

OURS, THEIRS = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"


@pytest.fixture
def session(ensemble: EnsembleOptions) -> Iterator[ZooKeeperSession]:
    """One that is open."""
    found = ZooKeeperSession(replace(ensemble, timeout_s=10.0), lambda _: None)
    yield found
    found.close()


def test_path_is_the_first_catalogs_for_ever(
    session: ZooKeeperSession, looker: KazooClient, ensemble: EnsembleOptions
) -> None:
    """Its node outlives every session; another catalog is refused by both ids and the path."""
    claim_path_for_catalog(session, OURS)
    claim_path_for_catalog(session, OURS)
    body, stat = looker.get(CATALOG)
    assert (body, stat.ephemeralOwner) == (OURS.encode(), 0)
    for compare in (claim_path_for_catalog, check_path_belongs_to_catalog):
        with pytest.raises(CatalogMismatch, match=f"catalog {THEIRS}, found that of catalog {OURS}") as refused:
            compare(session, THEIRS)
        assert ensemble.hosts in str(refused.value)
    assert check_path_belongs_to_catalog(session, OURS)


def test_looking_claims_nothing(session: ZooKeeperSession, looker: KazooClient) -> None:
    """Where no worker ever took part the path is nobody's."""
    assert not check_path_belongs_to_catalog(session, OURS)
    assert looker.exists(CATALOG) is None


def test_two_catalogs_that_claim_at_once_end_with_one(session: ZooKeeperSession, looker: KazooClient) -> None:
    """A create that finds the node compares it."""

    def claim(catalog_id: str) -> str:
        try:
            claim_path_for_catalog(session, catalog_id)
        except CatalogMismatch:
            return ""
        return catalog_id

    with ThreadPoolExecutor(8) as pool:
        won = set(pool.map(claim, [OURS, THEIRS] * 8)) - {""}
    assert won == {looker.get(CATALOG)[0].decode()}
