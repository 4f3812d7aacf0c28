"""The client: what it refuses before it asks."""

import asyncio
from pathlib import Path

import pytest

from logstore.errors import InvalidInput, ServiceFailed
from logstore.ports.catalog import Topic, TopicState
from logstore.positions import LedgerId, TopicId
from logstore.retention import RetentionPolicy
from workers.client import Sexton
from workers.connections import connect_client
from workers.settings import Settings
from workflows.limits import MOST_IDS

_TOPIC = Topic(
    topic_id=TopicId(1), name="persistent://a/b/c", state=TopicState.ACTIVE, policy=RetentionPolicy(), created_us=0
)


def test_connect_client_where_nobody_listens_names_the_service(tmp_path: Path) -> None:
    """Workers and programs get the same clear sentence as commands do."""
    settings = Settings(home=tmp_path, temporal_address="127.0.0.1:1")
    with pytest.raises(ServiceFailed, match=r"temporal: no answer at 127\.0\.0\.1:1"):
        asyncio.run(connect_client(settings))


@pytest.mark.parametrize("ids", [[], range(MOST_IDS + 1)])
def test_delete_ledgers_of_none_or_too_many_is_refused(tmp_path: Path, ids: list[int]) -> None:
    """Bad input is refused before anything is started."""
    sexton = Sexton(None, Settings(home=tmp_path))  # type: ignore[arg-type]  # nothing is asked of it
    with pytest.raises(InvalidInput, match="ledger"):
        asyncio.run(sexton.delete_ledgers(_TOPIC, [LedgerId(one) for one in ids]))


def test_close_gives_threads_time_to_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving the block rests, with the processor free for the SDK's threads, also where the block fails."""
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    async def fail() -> None:
        async with Sexton(None, Settings(home=tmp_path)):  # type: ignore[arg-type]  # nothing is asked of it
            raise InvalidInput("ledger", expected="one", found="none")

    monkeypatch.setattr("workers.client.asyncio.sleep", rest)
    with pytest.raises(InvalidInput):
        asyncio.run(fail())
    assert rests
    assert rests[0] >= 0.1
