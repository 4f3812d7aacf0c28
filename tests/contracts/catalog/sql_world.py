"""A catalog in SQL, and what fate does to it: statements behind the port's back."""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from sqlalchemy import event, text

from logstore.catalog import Catalog, Database, tables
from logstore.failpoints import SimulatedCrash
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.world import Audited, Rows, World


class SqlWorld(World):
    """Catalog in SQLite or PostgreSQL."""

    def __init__(self, url: str) -> None:
        """Open the catalog at `url`."""
        super().__init__()
        self.url = url
        self.database = Database(url, pool_size=40)
        if self.database.is_sqlite:
            event.listen(self.database.engine, "connect", _hurry)
        self._sql = Catalog(self.database)

    @property
    def catalog(self) -> Catalog:
        return self._sql

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """Run one statement in a transaction of its own."""

        def work(connection: Any) -> list[Any]:
            done = connection.execute(text(statement), values)
            return list(done.all()) if done.returns_rows else []

        return self.database.write(work)

    def deaths_in(self, step: Callable[[], object]) -> Iterator[int]:
        """Take the step again and again, dead before its first statement, its second, and so on, or its commit.

        Yields the number of each death, until the step is done.
        """
        left = 0

        def die(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise SimulatedCrash("statement")

        for moment in ("before_cursor_execute", "commit"):
            event.listen(self.database.engine, moment, die)
        for number in count(1):
            left = number
            try:
                step()
            except SimulatedCrash:
                left = 0
                yield number
            else:
                left = 0
                return

    def set_state(self, topic_id: TopicId, state: TopicState) -> None:
        self.sql("UPDATE topic SET state = :state WHERE topic_id = :topic", state=state.value, topic=topic_id)

    def intents(self) -> list[LedgerId]:
        return [LedgerId(row[0]) for row in self.sql("SELECT ledger_id FROM pending_deletion ORDER BY ledger_id")]

    def rows(self) -> Rows:
        return Rows(
            ledgers=self._column("SELECT ledger_id FROM ledger ORDER BY ledger_id"),
            copies=self._column("SELECT ledger_id FROM ledger_copy ORDER BY ledger_id"),
            segments=self._column("SELECT ledger_id FROM segment ORDER BY ledger_id"),
            versions=self._column("SELECT version FROM ledger_list ORDER BY list_id"),
            runs=self._column("SELECT run_id FROM run ORDER BY run_id"),
        )

    def _column(self, query: str) -> list[Any]:
        return [row[0] for row in self.sql(query)]

    def audited(self, act: str) -> list[Audited]:
        query = "SELECT act, actor, reason, workflow_id, detail FROM audit WHERE act = :act ORDER BY audit_id"
        rows = self.sql(query, act=act)
        told = [row._mapping for row in rows]
        return [Audited(**row | {"detail": _read(row["detail"])}) for row in map(dict, told)]

    def start_ids_at(self, ledger_id: LedgerId) -> None:
        self.sql("UPDATE catalog SET next_ledger_id = :id", id=ledger_id)
        self.sql("UPDATE record_log SET ledger_ceiling = :ceiling", ceiling=min(ledger_id + 1_000, 2**63 - 1))

    def age(self, ledger_id: LedgerId, *, seconds: int) -> None:
        earlier = "UPDATE ledger SET created_us = created_us - :us, closed_us = closed_us - :us WHERE ledger_id = :id"
        self.sql(earlier, us=seconds * 1_000_000, id=ledger_id)

    def delay_earlier(self, topic_id: TopicId, *, seconds: int) -> None:
        this = "UPDATE delayed_index SET changed_us = changed_us - :us WHERE topic_id = :id"
        self.sql(this, us=seconds * 1_000_000, id=topic_id)

    def close_ledger(self, ledger_id: LedgerId) -> None:
        self.sql("UPDATE ledger SET state = 'CLOSED', closed_us = 1 WHERE ledger_id = :id", id=ledger_id)

    def add_copy(self, ledger_id: LedgerId, state: CopyState, **context: str) -> None:
        self.sql(
            "INSERT INTO ledger_copy (ledger_id, kind, state, context)"
            " VALUES (:id, 'OFFLOADED_LEDGER', :state, :context)",
            id=ledger_id,
            state=state.value,
            context=json.dumps(context),
        )

    def remove_copy(self, ledger_id: LedgerId, kind: CopyKind) -> None:
        self.sql("DELETE FROM ledger_copy WHERE ledger_id = :id AND kind = :kind", id=ledger_id, kind=kind.value)

    def let_upload_end(self, ledger_id: LedgerId) -> None:
        """See `World`; the clock is the database's, so the times are moved instead."""
        for table in ("ledger_copy", "pending_deletion"):
            key = "kind" if table == "ledger_copy" else "generation"
            query = f"SELECT {key}, context FROM {table} WHERE ledger_id = :id"
            for found, context in self.sql(query, id=ledger_id):
                held = dict(_read(context))
                if "until_us" in held:
                    held["until_us"] = str(int(held["until_us"]) - 86_400_000_000)
                    this = f"UPDATE {table} SET context = :context WHERE ledger_id = :id AND {key} = :key"
                    self.sql(this, context=json.dumps(held), id=ledger_id, key=found)

    def say_upload_ends(self, ledger_id: LedgerId, until: str) -> None:
        this = "UPDATE ledger_copy SET context = :context WHERE ledger_id = :id AND kind = 'OFFLOADED_LEDGER'"
        for (context,) in self.sql(
            "SELECT context FROM ledger_copy WHERE ledger_id = :id AND kind = 'OFFLOADED_LEDGER'", id=ledger_id
        ):
            self.sql(this, context=json.dumps(dict(_read(context)) | {"until_us": until}), id=ledger_id)

    def swell(self, row_id: int, *, segments: int) -> None:
        self.sql("UPDATE pending_deletion SET segments = :count WHERE row_id = :row", count=segments, row=row_id)

    def forge(self, row_id: int, ledger_id: LedgerId, copy: CopyKind, *, generation: int = 1, **context: str) -> None:
        self.sql(
            "UPDATE pending_deletion SET ledger_id = :id, copy = :copy, context = :context, generation = :generation"
            " WHERE row_id = :row",
            id=ledger_id,
            copy=copy.value,
            context=json.dumps(context),
            generation=generation,
            row=row_id,
        )

    def forget_intents(self) -> None:
        self.sql("DELETE FROM pending_deletion")

    def left_of(self, topic_id: TopicId) -> dict[str, int]:
        """See `World`; a ledger in no list hangs on no topic, and is counted."""
        names = {name for name, table in tables.metadata.tables.items() if "topic_id" in table.c}
        names -= {"pending_deletion", "run", "audit", "tombstone"}
        query = "SELECT count(*) FROM {} WHERE topic_id = :topic"
        found = {name: self.sql(query.format(name), topic=topic_id)[0][0] for name in sorted(names)}
        of_nobody = "SELECT count(*) FROM ledger WHERE list_id NOT IN (SELECT list_id FROM ledger_list)"
        found["ledger"] = self.sql(of_nobody)[0][0]
        return {name: count for name, count in found.items() if count}

    def everything(self) -> object:
        tables = ("ledger", "ledger_list", "pending_deletion", "run", "audit", "bundle_fence")
        return [self.sql(f"SELECT * FROM {table}") for table in tables]

    def lapse(self, batch_id: str) -> None:
        self.sql("UPDATE run SET claim_until_us = 1 WHERE run_id = :batch", batch=batch_id)

    def end_earlier(self, *, days: int) -> None:
        for table in ("pending_deletion", "run"):
            self.sql(f"UPDATE {table} SET finished_us = finished_us - :us", us=days * 86_400_000_000)

    def exhaust(self, row_id: int) -> None:
        self.sql("UPDATE pending_deletion SET attempts = 10, keys_left = 3 WHERE row_id = :row", row=row_id)

    def unlist(self, ledger_id: LedgerId) -> None:
        self.sql("UPDATE ledger SET place = NULL WHERE ledger_id = :id", id=ledger_id)

    def remove_topic(self, topic_id: TopicId) -> None:
        self.sql("DELETE FROM topic WHERE topic_id = :id", id=topic_id)


def _read(detail: Any) -> Mapping[str, Any]:
    """SQLite keeps JSON as text."""
    return detail if isinstance(detail, dict) else json.loads(detail)


def _hurry(connection: Any, _: object) -> None:
    """No test here cuts the power, so none waits for the disk."""
    connection.execute("PRAGMA synchronous=OFF")
