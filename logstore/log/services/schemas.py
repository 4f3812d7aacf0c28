"""Schemas of topics: each version's content is a ledger of its own.

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
"""Of a schema's content, inclusive."""

_TRIES: Final = 5
"""A trim takes a newborn away when its creator was slower than the trim's patience: not twice in a row by chance."""


class SchemaRegistry:
    """The schema of every topic. Any number of processes may set one."""

    def __init__(self, *, schemas: Schemas, contents: ComponentLedgers) -> None:
        """Keep versions in `schemas`, write and read their ledgers with `contents`."""
        self._schemas = schemas
        self._contents = contents

    def set(self, topic: Topic, content: bytes) -> SchemaVersion:
        """Make the content the topic's newest version; where it is that already, nothing happens.

        Only the newest version is compared: a schema that comes back after another one is a version of its own.

        Idempotency: repeated, it finds its content as the newest version.

        Raises:
            InvalidInput: Empty, or more than `MAX_SCHEMA_BYTES`; nothing changed.
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: Not stored; bounded retries were not enough.
            OutcomeUnknown: Perhaps stored.
        """
        if not 0 < len(content) <= MAX_SCHEMA_BYTES:
            raise InvalidInput("schema", expected=f"1 to {MAX_SCHEMA_BYTES:,} bytes", found=len(content))
        digest = hashlib.sha256(content).hexdigest()
        for _ in range(_TRIES):
            newest = self._schemas.newest(topic.topic_id)
            if newest and newest.digest == digest:
                return newest
            made = self._write(topic, content, digest)
            if made:
                return made
        raise CatalogBusy(f"topic {topic.name}: {_TRIES} new schema ledgers were taken away before they were listed")

    def all(self, topic_id: TopicId) -> list[SchemaVersion]:
        """Every version, ascending."""
        return self._schemas.all(topic_id)

    def read(self, topic: Topic, version: int | None = None) -> tuple[SchemaVersion, bytes]:
        """A version, the newest by default, and its content, which is compared with its digest.

        Raises:
            UnknownObject: There is no such version.
            MissingData: Its ledger is listed and no copy holds it.
            CorruptData: The content is not what was set.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        versions = self._schemas.all(topic.topic_id)
        found = next((one for one in reversed(versions) if version in {None, one.version}), None)
        if found is None:
            known = f"a version up to {versions[-1].version}" if versions else "a topic that has a schema"
            raise UnknownObject("version", expected=known, found=version)
        content = self._contents.read(found.ledger_id)
        if content is None:
            raise MissingData(f"topic {topic.name}: schema ledger {found.ledger_id} is listed and no copy holds it")
        digest = hashlib.sha256(content).hexdigest()
        if digest != found.digest:
            raise CorruptData(f"schema ledger {found.ledger_id}: expected digest {found.digest}, found {digest}")
        return found, content

    def _write(self, topic: Topic, content: bytes, digest: str) -> SchemaVersion | None:
        draft = EntryDraft(
            topic_id=topic.topic_id,
            component=Component.SCHEMA_STORAGE,
            keys={"schema": topic.name},
            content=content,
            properties={"digest": digest},
        )

        def publish(born: CreatedLedger) -> SchemaVersion | None:
            return self._schemas.publish(
                topic.topic_id,
                born.ledger_id,
                digest=digest,
                content_bytes=len(content),
                size_bytes=born.size_bytes,
                sha256=born.sha256,
            )

        return self._contents.write(draft, publish)
