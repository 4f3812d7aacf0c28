"""A namespace of a real Temporal serves one catalog, whoever comes first."""

import asyncio
import uuid

import pytest
from temporalio.client import Client, ScheduleActionStartWorkflow

from logstore.errors import CatalogMismatch
from workers import catalog_match
from workers.client.temporal_connection import connect_client
from workers.settings import Settings

pytestmark = pytest.mark.external_service

OURS, THEIRS = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"


@pytest.fixture(autouse=True)
def _nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared namespace as one that no catalog has claimed: under another name of the sign."""
    monkeypatch.setattr(catalog_match, "CATALOG_SCHEDULE", f"sign-{uuid.uuid4().hex}")


async def _sign(client: Client) -> tuple[bool, bool, str]:
    found = await client.get_schedule_handle(catalog_match.CATALOG_SCHEDULE).describe()
    action = found.schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow)
    return found.schedule.state.paused, bool(found.info.next_action_times), str((await found.memo())["catalog_id"])


def test_namespace_is_the_first_catalogs_for_ever(settings: Settings) -> None:
    """A second one is refused by both ids and the namespace; what says so never runs."""

    async def work() -> None:
        client = await connect_client(settings)
        assert not await catalog_match.compare_namespace_mark(client, OURS)
        for _ in range(2):
            await catalog_match.mark_namespace_as_own(client, OURS)
        assert await catalog_match.compare_namespace_mark(client, OURS)
        assert await _sign(client) == (True, False, OURS)
        for refuses in (catalog_match.mark_namespace_as_own, catalog_match.compare_namespace_mark):
            with pytest.raises(CatalogMismatch, match=f"default: expected .*{THEIRS}, found .*{OURS}"):
                await refuses(client, THEIRS)

    asyncio.run(work())


def test_two_catalogs_that_claim_at_once_end_with_one(settings: Settings) -> None:
    """The sign is put by one atomic call."""

    async def work() -> None:
        client = await connect_client(settings)
        claims = [catalog_match.mark_namespace_as_own(client, one) for one in (OURS, THEIRS) * 4]
        ended = await asyncio.gather(*claims, return_exceptions=True)
        *_, won = await _sign(client)
        assert [error is None for error in ended] == [one == won for one in (OURS, THEIRS) * 4], ended
        assert {type(error) for error in ended} == {type(None), CatalogMismatch}

    asyncio.run(work())
