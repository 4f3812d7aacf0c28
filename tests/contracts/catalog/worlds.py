"""What the suite runs on: a catalog, and what a test may do to it that no port allows."""

from collections.abc import Iterable
from typing import Any, Protocol

from sqlalchemy import event, text

from infra.catalog import Database, SqlCatalog
from logstore.ports.catalog import Cause, Claim, Commits, Cursors, Detached, Ledgers, Topics, TopicState
from logstore.positions import LedgerId, TopicId
from tests.fakes.catalog import FakeCatalog

CAUSE = Cause(actor="tests", reason="a test", workflow_id="w")


def claim(workflow_id: str = "w", *, ttl_s: float = 60.0) -> Claim:
    """A claim, live by default; a negative time is a claim that ended."""
    return Claim(workflow_id=workflow_id, run_id=f"{workflow_id}-run", ttl_s=ttl_s)


class Parts(Protocol):
    """The parts of a catalog that every implementation has."""

    @property
    def topics(self) -> Topics: ...  # noqa: D102
    @property
    def ledgers(self) -> Ledgers: ...  # noqa: D102
    @property
    def cursors(self) -> Cursors: ...  # noqa: D102
    @property
    def commits(self) -> Commits: ...  # noqa: D102


class World(Protocol):
    """A catalog and the hand of fate."""

    @property
    def catalog(self) -> Parts:
        """What is tested."""

    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        """Let the topic be deleted, or not."""

    def intents(self) -> list[LedgerId]:
        """Ledgers that an intent was filed for, ascending, one for each copy."""

    def detach(self, topic_id: TopicId, ledger_ids: Iterable[LedgerId]) -> None:
        """Phase one by force."""


class MemoryWorld:
    """The fake."""

    def __init__(self) -> None:
        self.catalog = FakeCatalog()

    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        """See `World`."""
        self.catalog.set_state(topic_id, state)

    def intents(self) -> list[LedgerId]:
        """See `World`."""
        return sorted(self.catalog.pending_deletion)

    def detach(self, topic_id: TopicId, ledger_ids: Iterable[LedgerId]) -> None:
        """See `World`."""
        self.catalog.detach(topic_id, ledger_ids)


class SqlWorld:
    """SQLite or PostgreSQL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = Database(url, pool_size=40)
        if self.database.is_sqlite:
            event.listen(self.database.engine, "connect", _hurry)
        self.catalog = SqlCatalog(self.database)
        self.batches = 0

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """Run one statement in a transaction of its own."""

        def work(connection: Any) -> list[Any]:
            done = connection.execute(text(statement), values)
            return list(done.all()) if done.returns_rows else []

        return self.database.write(work)

    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        """See `World`."""
        self.sql("UPDATE topic SET state = :state WHERE topic_id = :topic", state=state.value, topic=topic_id)

    def intents(self) -> list[LedgerId]:
        """See `World`."""
        return [LedgerId(row[0]) for row in self.sql("SELECT ledger_id FROM pending_deletion ORDER BY ledger_id")]

    def detach(self, topic_id: TopicId, ledger_ids: Iterable[LedgerId]) -> None:
        """See `World`."""
        self.phase_one(topic_id, list(ledger_ids), force=True)

    def phase_one(
        self,
        topic_id: TopicId,
        ledger_ids: list[LedgerId] | None = None,
        *,
        force: bool = False,
        batch_id: str = "",
        ttl_s: float = 60.0,
        by: str = "w",
    ) -> Detached:
        """Detach, under a batch id of its own unless one is given."""
        self.batches += 1
        return self.catalog.deletions.detach(
            topic_id,
            ledger_ids,
            force=force,
            batch_id=batch_id or f"batch-{self.batches}",
            claim=claim(by, ttl_s=ttl_s),
            cause=CAUSE,
        )


def _hurry(connection: Any, _: object) -> None:
    """No test here cuts the power, so none waits for the disk."""
    connection.execute("PRAGMA synchronous=OFF")
