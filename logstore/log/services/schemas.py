"""Schemas of topics. Each version's content is a ledger of its own.

Source: Pulsar's schema storage, whose schema id is the topic's name.
"""

import hashlib
from typing import Final

from logstore.errors import CatalogBusy, CorruptData, InvalidInput, MissingData, UnknownObject
from logstore.log.ledgers import Component
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, EntryDraft
from logstore.ports.catalog import Schemas, SchemaVersion, Topic
from logstore.positions import TopicId

MAX_SCHEMA_BYTES: Final = 1 << 20
"""Largest content of a schema, inclusive."""

_MAX_ATTEMPTS: Final = 5
"""A trim removes a newborn ledger only if its creator was very slow. That does not repeat by chance."""


class SchemaRegistry:
    """Schemas of topics. Any number of processes may use one."""

    def __init__(self, *, schemas: Schemas, contents: ComponentLedgers) -> None:
        self._schemas = schemas
        self._contents = contents

    def set(self, topic: Topic, content: bytes) -> SchemaVersion:
        """Make the content the newest version of the topic's schema, unless it is already.

        Only the newest version is compared: content of an older version becomes a new version.

        Idempotency: a repeated call finds its content as the newest version.

        Raises:
            InvalidInput: Empty, or more than `MAX_SCHEMA_BYTES`. Nothing changed.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: Not stored after bounded retries.
            OutcomeUnknown: Perhaps stored.
        """
        if not 0 < len(content) <= MAX_SCHEMA_BYTES:
            raise InvalidInput("schema", expected=f"1 to {MAX_SCHEMA_BYTES:,} bytes", found=len(content))
        digest = hashlib.sha256(content).hexdigest()
        for _ in range(_MAX_ATTEMPTS):
            newest = self._schemas.newest(topic.topic_id)
            if newest and newest.digest == digest:
                return newest
            written = self._write(topic, content, digest)
            if written:
                return written
        raise CatalogBusy(
            f"topic {topic.name}: {_MAX_ATTEMPTS} new schema ledgers were taken away before they were listed"
        )

    def all(self, topic_id: TopicId) -> list[SchemaVersion]:
        """Return every version, ascending."""
        return self._schemas.all(topic_id)

    def read(self, topic: Topic, version: int | None = None) -> tuple[SchemaVersion, bytes]:
        """Return a version, by default the newest, and its verified content.

        Raises:
            UnknownObject: The version does not exist.
            MissingData: Its ledger is listed, and no copy has it.
            CorruptData: The content has another digest.
            StoreUnavailable, CatalogBusy: Storage or catalog did not answer.
        """
        versions = self._schemas.all(topic.topic_id)
        schema_version = next(
            (candidate for candidate in reversed(versions) if version in {None, candidate.version}), None
        )
        if schema_version is None:
            expected = f"a version up to {versions[-1].version}" if versions else "a topic that has a schema"
            raise UnknownObject("version", expected=expected, found=version)
        content = self._contents.read(schema_version.ledger_id)
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

    def _write(self, topic: Topic, content: bytes, digest: str) -> SchemaVersion | None:
        draft = EntryDraft(
            topic_id=topic.topic_id,
            component=Component.SCHEMA_STORAGE,
            keys={"schema": topic.name},
            content=content,
            properties={"digest": digest},
        )

        def publish(created: CreatedLedger) -> SchemaVersion | None:
            return self._schemas.publish(
                topic.topic_id,
                created.ledger_id,
                digest=digest,
                content_bytes=len(content),
                size_bytes=created.size_bytes,
                sha256=created.sha256,
            )

        return self._contents.write(draft, publish)
