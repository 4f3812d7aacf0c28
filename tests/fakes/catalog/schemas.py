"""Schema versions in memory."""

from typing import TYPE_CHECKING

from logstore.errors import PreconditionFailed
from logstore.failpoints import effect
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.log import SchemaVersion, TopicState
from logstore.positions import LedgerId, TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog


class FakeSchemas:
    """The `SchemaVersions` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def list_schema_versions(self, topic_id: TopicId) -> list[SchemaVersion]:
        with self._catalog.lock:
            return list(self._catalog.schema_rows.get(topic_id, []))

    def newest_schema_version(self, topic_id: TopicId) -> SchemaVersion | None:
        return next(reversed(self.list_schema_versions(topic_id)), None)

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
        with effect("catalog.publish_schema"), self._catalog.lock:
            row = self._catalog.components._find_newborn_or_reopen_intents(ledger_id)
            if row is None or row.state is LedgerState.CLOSED:
                return next(
                    (version for version in self.list_schema_versions(topic_id) if version.ledger_id == ledger_id), None
                )
            topic, newest = self._catalog.topic(topic_id), self.newest_schema_version(topic_id)
            if newest and newest.digest == digest:
                self._catalog.replace_ledger_by_intents(ledger_id, "")
                return newest
            if topic.state is not TopicState.ACTIVE:
                self._catalog.replace_ledger_by_intents(ledger_id, "")
                raise PreconditionFailed(f"topic {topic.name}: expected state ACTIVE, found {topic.state.value}")
            self._catalog.components._publish(row, size_bytes, sha256)
            schema_version = SchemaVersion(
                version=newest.version + 1 if newest else 0,
                ledger_id=ledger_id,
                digest=digest,
                size_bytes=content_bytes,
                created_us=self._catalog.now_us,
            )
            self._catalog.schema_rows.setdefault(topic_id, []).append(schema_version)
            return schema_version
