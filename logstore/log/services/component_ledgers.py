"""Ledgers of components, written whole: a statement, one segment, and the transaction that makes them exist.

A component ledger is stored as a data ledger is: `meta.json` first, then its segments, here exactly one with one
entry. It is created in two phases, as it is deleted in two: its row first, and only when all of it is in storage
does the component's own transaction list it. Who loses that race, or dies before it, leaves a newborn that the
catalog files an intent for (apache/pulsar#350).
"""

import io
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from logstore.clock import Clock
from logstore.errors import AlreadyExists, CatalogBusy, CorruptData
from logstore.failpoints import effect
from logstore.log.entries import NewEntry, ProducedEntries, decode_segment, encode_segment
from logstore.log.ledgers import Component, LedgerStatement, digest_of, meta_key, segment_key
from logstore.log.services.registration import telling
from logstore.log.services.segment_file import check_whole, vouching
from logstore.ports.catalog import Components, Ledgers
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId, TopicId

_Published = TypeVar("_Published")

_TRIES: Final = 3
"""Ids that storage may hold already: after the catalog went back, several in a row."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedLedger:
    """A ledger whose objects are stored and which is in no list yet."""

    ledger_id: LedgerId
    size_bytes: int  # of its segment
    sha256: str  # of its segment, hexadecimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A component ledger to be written."""

    topic_id: TopicId
    component: Component
    keys: Mapping[str, str]
    content: bytes
    properties: Mapping[str, str]  # beside the content, for a reader without the catalog


class ComponentLedgers:
    """Writes component ledgers and reads them back. Threads share one; any number of processes may run."""

    def __init__(
        self,
        *,
        components: Components,
        ledgers: Ledgers,
        objects: ObjectStore,
        application: str,
        clock: Clock | None = None,
        patience_s: float = 600.0,
    ) -> None:
        """Work on a catalog and the primary bucket.

        Args:
            components: Where rows are created.
            ledgers: Where segments are looked up.
            objects: The primary bucket.
            application: Whose ledgers these are, in storage's own statement.
            clock: For tests; the process's own by default.
            patience_s: No retry later than this after a write began.
        """
        self._components = components
        self._ledgers = ledgers
        self._objects = objects
        self._application = application
        self._clock = clock or Clock()
        self._patience_s = patience_s

    def write(self, draft: Draft, publish: Callable[[CreatedLedger], _Published]) -> _Published:
        """Store the content as a ledger and publish it.

        Idempotency: each call makes a ledger of its own. A crash leaves at most a row that is in no list, which
        the topic's next trim detaches; `publish` is repeated when its outcome is not known.

        Args:
            draft: Whose ledger, and what it holds.
            publish: The component's transaction, safe to repeat.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy: Bounded retries were not enough.
            OutcomeUnknown: Perhaps published.
        """
        deadline_s = self._clock.monotonic_s() + self._patience_s
        entry = NewEntry(payload=draft.content, properties=draft.properties)
        body = encode_segment([ProducedEntries(entries=[entry])], publish_ms=self._clock.now_us() // 1000)
        digest = digest_of(body)
        whose = (draft.topic_id, draft.component, draft.keys)
        create = partial(self._components.create, *whose, application=self._application)
        for _ in range(_TRIES):
            statement = self._clock.patiently(create, deadline_s=deadline_s)
            with telling(self._ledgers, statement.ledger_id, epoch=statement.epoch, clock=self._clock):
                if self._put(statement, body, digest, deadline_s):
                    newborn = CreatedLedger(ledger_id=statement.ledger_id, size_bytes=len(body), sha256=digest)
                    return self._clock.patiently(lambda born=newborn: publish(born), deadline_s=deadline_s)  # type: ignore[misc]
        raise CatalogBusy(f"topic {draft.topic_id}: storage holds others of {_TRIES} ledger ids in a row")

    def read(self, ledger_id: LedgerId) -> bytes | None:
        """The content of a listed ledger, or None when its row or its object is gone.

        Raises:
            CorruptData: The object is not what the row says.
            StoreUnavailable, CatalogBusy: Nobody answered.
        """
        rows = self._ledgers.segments(ledger_id)
        key = segment_key(ledger_id, 0)
        stored = self._objects.get(key) if rows else None
        if stored is None:
            return None
        check_whole(rows[0], stored)
        found = decode_segment(io.BytesIO(stored.body), columns=["payload"], name=key).column("payload")
        if len(found) != 1:
            raise CorruptData(f"{key}: expected one entry, found {len(found)}")
        return bytes(found[0].as_py())

    def _put(self, statement: LedgerStatement, body: bytes, digest: str, deadline_s: float) -> bool:
        """Whether both objects are stored; not when storage holds another ledger of that id."""
        metadata = statement.to_metadata()

        def put_meta() -> None:
            with effect("component.put_meta"):
                key = meta_key(statement.ledger_id, statement.owner)
                self._objects.put_if_absent(key, statement.to_json(), metadata=metadata)

        def put_segment() -> None:
            with effect("component.put_segment"):
                key = segment_key(statement.ledger_id, 0)
                self._objects.put_if_absent(key, body, metadata=metadata | vouching(body, digest))

        try:
            for put in (put_meta, put_segment):
                self._clock.patiently(put, deadline_s=deadline_s)
        except AlreadyExists:
            _LOG.error("ledger %s: storage holds another one of that id; taking the next id", statement.ledger_id)
            return False
        return True
