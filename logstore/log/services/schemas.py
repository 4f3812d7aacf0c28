"""Schemas of topics. The content of each schema version is in its own ledger.

Source: Pulsar's schema storage, whose schema id is the topic's name.
"""

import hashlib
from typing import Final

from logstore.catalog.log.component_ledgers import SchemaVersions
from logstore.errors import CatalogBusy, CorruptData, InvalidInput, MissingData, UnknownObject
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, OneEntryLedgerDraft
from logstore.ports.catalog.log import SchemaVersion, Topic
from logstore.positions import TopicId

MAX_SCHEMA_BYTES: Final = 1 << 20
"""Maximum size of the content of a schema, inclusive."""

_MAX_ATTEMPTS: Final = 5
"""Maximum number of attempts of one `set`. An attempt fails if a trim detaches the newborn ledger of a slow `set`."""


class SchemaRegistry:
    def __init__(self, *, schemas: SchemaVersions, component_ledgers: ComponentLedgers) -> None:
        self._schemas = schemas
        self._component_ledgers = component_ledgers

    def set(self, topic: Topic, content: bytes) -> SchemaVersion:
        """Make `content` the newest schema version of the topic. Idempotent.

        If the newest schema version has this content, return that schema version. If only an older schema version has
        this content, create a new schema version.

        Raises:
            InvalidInput: The content is empty, or has more than `MAX_SCHEMA_BYTES`. Nothing changed.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: The schema was not stored, after several attempts.
            OutcomeUnknown: The schema may be stored.
        """
        if not 0 < len(content) <= MAX_SCHEMA_BYTES:
            raise InvalidInput("schema", expected=f"1 to {MAX_SCHEMA_BYTES:,} bytes", found=len(content))
        digest = hashlib.sha256(content).hexdigest()
        for _ in range(_MAX_ATTEMPTS):
            newest = self._schemas.newest_schema_version(topic.topic_id)
            if newest and newest.digest == digest:
                return newest
            written = self._write_schema_unless_abandoned(topic, content, digest)
            if written:
                return written
        raise CatalogBusy(
            f"topic {topic.name}: {_MAX_ATTEMPTS} new schema ledgers were taken away before they were listed"
        )

    def all(self, topic_id: TopicId) -> list[SchemaVersion]:
        return self._schemas.list_schema_versions(topic_id)

    def read(self, topic: Topic, version: int | None = None) -> tuple[SchemaVersion, bytes]:
        """Return a schema version, by default the newest, and its verified content.

        Raises:
            UnknownObject: The schema version does not exist.
            MissingData: The ledger of the schema version is listed, but has no object.
            CorruptData: The content does not match the digest in the catalog.
            StoreUnavailable, CatalogBusy: Storage or catalog did not answer.
        """
        versions = self._schemas.list_schema_versions(topic.topic_id)
        schema_version = next(
            (candidate for candidate in reversed(versions) if version in {None, candidate.version}), None
        )
        if schema_version is None:
            expected = f"a version up to {versions[-1].version}" if versions else "a topic that has a schema"
            raise UnknownObject("version", expected=expected, found=version)
        content = self._component_ledgers.read(schema_version.ledger_id)
        if content is None:
            raise MissingData(
                f"topic {topic.name}: schema ledger {schema_version.ledger_id} is listed and no copy holds it"
            )
        digest = hashlib.sha256(content).hexdigest()
        if digest != schema_version.digest:
            raise CorruptData(
                f"schema ledger {schema_version.ledger_id}: expected digest {schema_version.digest}, found {digest}"
            )
        return schema_version, content

    def _write_schema_unless_abandoned(self, topic: Topic, content: bytes, digest: str) -> SchemaVersion | None:
        draft = OneEntryLedgerDraft(
            topic_id=topic.topic_id,
            component=Component.SCHEMA_STORAGE,
            keys={"schema": topic.name},
            content=content,
            properties={"digest": digest},
        )

        def publish(created: CreatedLedger) -> SchemaVersion | None:
            return self._schemas.publish_schema_version(
                topic.topic_id,
                created.ledger_id,
                digest=digest,
                content_bytes=len(content),
                size_bytes=created.size_bytes,
                sha256=created.sha256,
            )

        return self._component_ledgers.write_and_publish(draft, publish)
