"""Component ledgers, and the schemas of topics.

A component ledger is written as a whole (a row, a statement and one segment) and then published.

First the row is created. Then each object is stored, and proved by a HEAD request. To *publish* a ledger means to add
the ledger to a list, in a transaction of the component. A process that loses a race or dies leaves a newborn ledger.
The catalog files an intent for the newborn ledger (apache/pulsar#350).

The content of each schema version is in its own ledger. Source: Pulsar's schema storage, whose schema id is the topic's
name.
"""

import hashlib
import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final, TypeVar, cast

from logstore.catalog.log.component_ledgers import LedgersOfAllComponents, SchemaVersions
from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.errors import (
    AlreadyExists,
    CatalogBusy,
    CorruptData,
    InvalidInput,
    MissingData,
    UnknownObject,
    UploadTimedOut,
)
from logstore.failpoints import effect
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import meta_key, segment_key
from logstore.log.ledgers import Component, LedgerStatement
from logstore.log.segment_format import (
    DIGEST_FIELD,
    FOOTER_FIELD,
    decode_segment,
    digest_footer,
    encode_segment,
    sha256_hex,
)
from logstore.log.services.segment_placement import report_abandoned_upload
from logstore.log.services.segment_reader import build_digest_metadata, verify_segment_body
from logstore.log.services.upload_read_back import put_and_read_back, require_stored_object, reread_if_corrupt
from logstore.ports.catalog.log import SchemaVersion, Segment, Topic
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId, TopicId
from logstore.retrying_clock import Clock
from logstore.stop_checks import raise_if_stopped

_Published = TypeVar("_Published")

_MAX_LEDGER_IDS: Final = 3
"""Maximum number of ledger ids to try. If the catalog was restored, storage may already have ledgers with these ids."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedLedger:
    """Unlisted ledger whose objects are stored."""

    ledger_id: LedgerId
    epoch: int  # epoch of the catalog
    size_bytes: int  # size of the segment's object
    sha256: str  # SHA-256 of the segment's object, hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class _LedgerDraft:
    topic_id: TopicId
    component: Component
    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEntryLedgerDraft(_LedgerDraft):
    content: bytes
    properties: Mapping[str, str]  # for readers without the catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetLedgerDraft(_LedgerDraft):
    file: BinaryIO  # seekable; read from its beginning
    facts: Mapping[str, str]  # object metadata, for readers without the catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncodedDraft:
    content: bytes | BinaryIO
    size_bytes: int
    sha256: str
    metadata: dict[str, str]


class ComponentLedgers:
    """Writer and reader of component ledgers. Thread-safe.

    A write repeats failed attempts for at most `patience_s` seconds.
    """

    def __init__(
        self,
        *,
        components: LedgersOfAllComponents,
        ledgers: MessageLedgers,
        objects: ObjectStore,
        application: str,
        clock: Clock | None = None,
        patience_s: float = 600.0,
    ) -> None:
        self._components = components
        self._ledgers = ledgers
        self._objects = objects
        self._application = application
        self._clock = clock or Clock()
        self._patience_s = patience_s

    def write_and_publish(
        self, draft: OneEntryLedgerDraft | ParquetLedgerDraft, publish: Callable[[CreatedLedger], _Published]
    ) -> _Published:
        """Store the draft as a ledger and publish it.

        `publish` commits the component's transaction. `publish` must be idempotent, because it is repeated while its
        outcome is not known.

        Idempotency: each call makes a new ledger. A crash leaves at most an unlisted row, which the topic's next trim
        detaches.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, UploadUnproven: The ledger was not published, after several
                attempts.
            OutcomeUnknown: The ledger may be published.
        """
        deadline_s = self._clock.monotonic_s() + self._patience_s
        created = self._create_and_upload_ledger(draft, deadline_s)
        with report_abandoned_upload(self._ledgers, created.ledger_id, epoch=created.epoch, clock=self._clock):
            return self._clock.retry(lambda: publish(created), deadline_s=deadline_s)

    def write_unlisted(self, draft: OneEntryLedgerDraft | ParquetLedgerDraft) -> CreatedLedger:
        """Store the draft as an unlisted ledger, for a later transaction that publishes several ledgers.

        Raise the errors of `write_and_publish`. If the ledger is not published within the registration timeout, it
        counts as abandoned.
        """
        return self._create_and_upload_ledger(draft, self._clock.monotonic_s() + self._patience_s)

    def _create_and_upload_ledger(
        self, draft: OneEntryLedgerDraft | ParquetLedgerDraft, deadline_s: float
    ) -> CreatedLedger:
        segment = _encode_draft(draft, publish_ms=self._clock.now_us() // 1000)
        owner = (draft.topic_id, draft.component, draft.keys)
        create = partial(self._components.create_component_ledger, *owner, application=self._application)
        for _ in range(_MAX_LEDGER_IDS):
            statement = self._clock.retry(create, deadline_s=deadline_s)
            with report_abandoned_upload(self._ledgers, statement.ledger_id, epoch=statement.epoch, clock=self._clock):
                if self._put_objects_unless_id_taken(statement, segment, deadline_s):
                    return CreatedLedger(
                        ledger_id=statement.ledger_id,
                        epoch=statement.epoch,
                        size_bytes=segment.size_bytes,
                        sha256=segment.sha256,
                    )
        raise CatalogBusy(f"topic {draft.topic_id}: storage holds others of {_MAX_LEDGER_IDS} ledger ids in a row")

    def read(self, ledger_id: LedgerId) -> bytes | None:
        """Return the content of a listed ledger, or `None` if the segment's row or object does not exist.

        Raises:
            CorruptData: The segment's object differs from the segment's row.
            StoreUnavailable, CatalogBusy: Storage or catalog did not answer.
        """
        rows = self._ledgers.list_segments(ledger_id)
        if not rows:
            return None
        try:
            return reread_if_corrupt(lambda: self._read_segment(rows[0]))
        except CorruptData as error:
            advice = f"Run `sexton ledger explain {ledger_id}`: it says what to do"
            raise CorruptData(f"ledger {ledger_id} is corrupt: {error}. {advice}") from error

    def _read_segment(self, segment: Segment) -> bytes | None:
        key = segment_key(segment.ledger_id, segment.number)
        stored = self._objects.get(key)
        if stored is None:
            return None
        verify_segment_body(segment, stored)
        payloads = decode_segment(io.BytesIO(stored.body), columns=["payload"], name=key).column("payload")
        if len(payloads) != 1:
            raise CorruptData(f"{key}: expected one entry, found {len(payloads)}")
        return bytes(payloads[0].as_py())

    def _put_objects_unless_id_taken(
        self, statement: LedgerStatement, segment: _EncodedDraft, deadline_s: float
    ) -> bool:
        """Store the statement and the segment, and check that storage has both.

        Return `False` if storage already has another ledger with the ledger id of `statement`.
        """
        metadata, key = statement.to_metadata(), segment_key(statement.ledger_id, 0)
        own_meta_key, meta = meta_key(statement.ledger_id, statement.owner), statement.to_json()
        expected_metadata, content = metadata | segment.metadata, segment.content

        def proceed() -> None:
            raise_if_stopped()
            if self._clock.monotonic_s() >= deadline_s:
                raise UploadTimedOut(f"ledger {statement.ledger_id}: its time is over; nothing more is sent")

        def put_meta() -> None:
            with effect("component.put_meta"):
                put_and_read_back(self._objects, own_meta_key, meta, metadata=metadata)

        def put_segment() -> None:
            with effect("component.put_segment"):
                if isinstance(content, bytes):
                    put_and_read_back(self._objects, key, content, metadata=expected_metadata)
                else:
                    self._objects.put_file_if_absent(
                        key, content, metadata=expected_metadata, require_may_proceed=proceed
                    )
                    require_stored_object(self._objects, key, size_bytes=segment.size_bytes, metadata=expected_metadata)

        try:
            for put in (put_meta, put_segment):
                self._clock.retry(put, deadline_s=deadline_s)
        except AlreadyExists:
            _LOG.error("ledger %s: storage holds another one of that id; taking the next id", statement.ledger_id)
            return False
        return True


def _encode_draft(draft: OneEntryLedgerDraft | ParquetLedgerDraft, *, publish_ms: int) -> _EncodedDraft:
    if isinstance(draft, ParquetLedgerDraft):
        file = draft.file
        footer_digest, size_bytes = digest_footer(file), file.tell()
        file.seek(0)
        sha256 = hashlib.file_digest(cast("io.BufferedIOBase", file), "sha256").hexdigest()
        digest_metadata = {DIGEST_FIELD: sha256, FOOTER_FIELD: str(footer_digest), **draft.facts}
        return _EncodedDraft(content=file, size_bytes=size_bytes, sha256=sha256, metadata=digest_metadata)
    entry = NewEntry(payload=draft.content, properties=draft.properties)
    body = encode_segment([ProducedEntries(entries=[entry])], publish_ms=publish_ms)
    digest = sha256_hex(body)
    return _EncodedDraft(
        content=body, size_bytes=len(body), sha256=digest, metadata=build_digest_metadata(body, digest)
    )


MAX_SCHEMA_BYTES: Final = 1 << 20
"""Maximum size of the content of a schema, inclusive."""

_MAX_SCHEMA_ATTEMPTS: Final = 5
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
        for _ in range(_MAX_SCHEMA_ATTEMPTS):
            newest = self._schemas.newest_schema_version(topic.topic_id)
            if newest and newest.digest == digest:
                return newest
            written = self._write_schema_unless_abandoned(topic, content, digest)
            if written:
                return written
        raise CatalogBusy(
            f"topic {topic.name}: {_MAX_SCHEMA_ATTEMPTS} new schema ledgers were taken away before they were listed"
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
