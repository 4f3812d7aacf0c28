"""Schema versions in SQL."""

from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from logstore.catalog import tables as t
from logstore.catalog.deletion.intent_rows import replace_ledgers_by_intents
from logstore.catalog.engine.database import CatalogAdapter
from logstore.catalog.engine.dialect_sql import dataclass_from_row
from logstore.catalog.log.component_ledgers import lock_topic_or_reopen_intent, read_newborn_or_reopen_intent
from logstore.catalog.log.ledger_rows import lock_component_list, publish_component_ledger
from logstore.errors import PreconditionFailed
from logstore.failpoints import effect
from logstore.log.ledgers import Component
from logstore.ports.catalog.log import SchemaVersion, TopicState
from logstore.positions import LedgerId, TopicId

_V = t.schema_version.c


class SchemaVersions(CatalogAdapter):
    def list_schema_versions(self, topic_id: TopicId) -> list[SchemaVersion]:
        query = select(t.schema_version).where(_V.topic_id == topic_id).order_by(_V.version)
        return [
            dataclass_from_row(SchemaVersion, row)
            for row in self._db.read(lambda connection: connection.execute(query).all())
        ]

    def newest_schema_version(self, topic_id: TopicId) -> SchemaVersion | None:
        return self._db.read(lambda connection: _read_newest_version(connection, topic_id))

    def publish_schema_version(
        self,
        topic_id: TopicId,
        ledger_id: LedgerId,
        *,
        digest: str,
        content_bytes: int,
        size_bytes: int,
        sha256: str | None = None,
    ) -> SchemaVersion | None:
        """Publish a newborn schema ledger as the next schema version. The ledger becomes listed and CLOSED.

        If the newest schema version has the same digest, the method returns this schema version and files an intent for
        the newborn ledger. Otherwise, if the topic is not ACTIVE, the method also files an intent and raises
        `PreconditionFailed`. A repeated call returns the same schema version. The method returns `None` if the newborn
        ledger was detached meanwhile. The caller then writes another ledger.

        `digest` and `content_bytes` describe the content. `size_bytes` and `sha256` describe the segment's object.
        Digests are SHA-256, hexadecimal.

        The error of a refusal is raised after the commit, because the transaction files the newborn ledger's intent.
        """

        def publish_or_file_intent(connection: Connection) -> SchemaVersion | PreconditionFailed | None:
            topic = lock_topic_or_reopen_intent(connection, topic_id, ledger_id)
            if topic is None:
                return None
            list_id = lock_component_list(connection, topic_id, Component.SCHEMA_STORAGE, {"schema": topic.name})
            row = read_newborn_or_reopen_intent(connection, ledger_id, list_id)
            if row is None or row.place is not None:
                return _read_newest_version(connection, topic_id, _V.ledger_id == ledger_id)
            newest, now_us = _read_newest_version(connection, topic_id), self._db.now_us(connection)
            is_known = newest is not None and newest.digest == digest
            if is_known or topic.state is not TopicState.ACTIVE:
                replace_ledgers_by_intents(connection, t.ledger.c.ledger_id == ledger_id, batch_id="", now_us=now_us)
                expected = f"topic {topic.name}: expected state ACTIVE, found {topic.state.value}"
                return newest if is_known else PreconditionFailed(expected)
            publish_component_ledger(connection, row, size_bytes=size_bytes, sha256=sha256, now_us=now_us)
            version = SchemaVersion(
                version=0 if newest is None else newest.version + 1,
                ledger_id=ledger_id,
                digest=digest,
                size_bytes=content_bytes,
                created_us=now_us,
            )
            connection.execute(insert(t.schema_version).values(topic_id=topic_id, **asdict(version)))
            return version

        with effect("catalog.publish_schema"):
            result = self._db.write(publish_or_file_intent)
        if isinstance(result, PreconditionFailed):
            raise result
        return result


def remove_schema_versions(connection: Connection, topic_id: TopicId) -> int:
    return connection.execute(delete(t.schema_version).where(_V.topic_id == topic_id)).rowcount


def remove_schema_versions_where(connection: Connection, condition: ColumnElement[bool]) -> dict[LedgerId, TopicId]:
    rows = connection.execute(delete(t.schema_version).where(condition).returning(_V.ledger_id, _V.topic_id))
    return {LedgerId(row.ledger_id): TopicId(row.topic_id) for row in rows}


def _read_newest_version(
    connection: Connection, topic_id: TopicId, *conditions: ColumnElement[bool]
) -> SchemaVersion | None:
    query = select(t.schema_version).where(_V.topic_id == topic_id, *conditions).order_by(_V.version.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else dataclass_from_row(SchemaVersion, row)
