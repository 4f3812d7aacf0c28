"""Tiered copies in SQL: begin, publish, abandon and read them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, select

from logstore.catalog import tables as t
from logstore.catalog.audit_log import AuditedLedgers, insert_audit_row
from logstore.catalog.deletion.intent_queries import count_filed_intents
from logstore.catalog.deletion.intent_rows import replace_copies_by_intents, take_over_stalled_intents
from logstore.catalog.deletion.run_rows import fingerprint_request, insert_batch_run, lock_then_find_earlier_detach
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import cast_to_text, is_one_of, parse_offload_context_or_empty
from logstore.catalog.log.ledger_rows import insert_writing_copy, publish_copy, read_message_list_id
from logstore.catalog.log.topics import read_topic, share_lock_active_topic
from logstore.catalog.offload.upload_ends import (
    TIERED,
    build_ledger_statement,
    end_upload_and_file_intent,
    read_tiered_copy,
)
from logstore.errors import PreconditionFailed, UnknownObject, Unsupported
from logstore.log.ledgers import Component, CopyKind, CopyState, LedgerState, require_named_topic
from logstore.offload.tiered_copy import CopyLengths, UploadStart, context_after_upload, decide_upload_start
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch
from logstore.ports.catalog.log import Topic, TopicState
from logstore.ports.catalog.offload import OffloadStart, OffloadStartOutcome, PublishedTieredCopy, ReadableCopies
from logstore.positions import LedgerId, TopicId

_LIVE = CopyState.LIVE.value
_primary, _tiered = t.ledger_copy.alias("primary_copy"), t.ledger_copy.alias("tiered_copy")
_GONE = OffloadStart(answer=OffloadStartOutcome.GONE)


class _UploadAttempt(NamedTuple):
    uuid: str
    driver_metadata: Mapping[str, str]
    timeout_us: int


class Offloads(CatalogAdapter):
    """Tiered copies of message ledgers. Every change locks the ledger's list and raises its list version."""

    @in_write_transaction("catalog.begin_offload")
    def begin_offload(
        self,
        connection: Connection,
        ledger_id: LedgerId,
        *,
        uuid: str,
        driver_metadata: Mapping[str, str],
        timeout_s: float,
        topic: str | None = None,
    ) -> OffloadStart:
        """Assign the ledger's tiered copy to this upload attempt, for at most `timeout_s` plus `UPLOAD_GRACE_S`.

        The ledger must be listed and closed, with a LIVE primary copy. The same transaction replaces an unpublished
        copy of an earlier attempt by an intent. While a copy is being written, its ledger cannot be detached
        (apache/pulsar#13219).

        `uuid` identifies only this attempt. The attempt must send nothing after `timeout_s`. `driver_metadata` is
        driver, bucket, endpoint and region. A deletion finds the copy by this metadata (apache/pulsar#16687). `topic`
        is the encoded name that the ledger's topic must have.

        Idempotency: keyed by `uuid`. A repeated call does not extend the attempt's time.

        Raises:
            InvalidInput: The ledger belongs to another topic. Nothing changed.
            PreconditionFailed: The topic is not ACTIVE, the ledger is not CLOSED, or its primary copy is not LIVE.
            Unsupported: The ledger is a component ledger.
        """
        row = _read_listed_ledger(connection, ledger_id)
        if row is None:
            return _GONE
        owner = share_lock_active_topic(connection, row.topic_id)
        require_named_topic(ledger_id, owner.name, topic)
        if row.component != Component.MANAGED_LEDGER.value:
            raise Unsupported(f"ledger {ledger_id}: expected a ledger of messages, found one of {row.component}")
        list_id = read_message_list_id(connection, row.topic_id, lock=True)
        row = _read_listed_ledger(connection, ledger_id)
        if row is None:
            return _GONE
        attempt = _UploadAttempt(uuid=uuid, driver_metadata=driver_metadata, timeout_us=int(timeout_s * 1_000_000))
        return self._begin_upload(connection, owner, row, list_id, attempt)

    def _begin_upload(
        self, connection: Connection, topic: Topic, row: Row[Any], list_id: int, attempt: _UploadAttempt
    ) -> OffloadStart:
        statement, now_us = build_ledger_statement(topic, row), self._db.now_us(connection)
        copy = read_tiered_copy(connection, row.ledger_id)
        tiered = (copy.state, parse_offload_context_or_empty(copy.context)) if copy else None
        start = decide_upload_start(
            row.ledger_id,
            attempt.uuid,
            tiered=tiered,
            ledger_state=row.state,
            read_primary_state=lambda: _read_primary_state(connection, row),
        )
        context = tiered[1] if tiered else {}
        if start is UploadStart.ANEW:
            context = {**attempt.driver_metadata, "uuid": attempt.uuid, "until_us": str(now_us + attempt.timeout_us)}
            is_ledger = t.ledger.c.ledger_id == row.ledger_id
            replace_copies_by_intents(connection, list_id, TIERED, is_ledger, batch_id="", now_us=now_us)
            insert_writing_copy(connection, list_id, row.ledger_id, TIERED, context)
        answer = OffloadStartOutcome.ALREADY if start is UploadStart.ALREADY else OffloadStartOutcome.BEGUN
        return OffloadStart(answer=answer, statement=statement, entries=row.entries, context=context)

    @in_write_transaction("catalog.publish_offload")
    def publish_tiered_copy(
        self, connection: Connection, ledger_id: LedgerId, uuid: str, *, lengths: CopyLengths | None = None
    ) -> bool:
        """Make the attempt's copy LIVE, and return whether the copy is LIVE now.

        The copy must still belong to the attempt, the ledger must be listed, and its topic must be ACTIVE. Otherwise
        the call files an intent for the attempt's uploads. Phase two may delete these uploads at once, because storage
        has answered all requests. `lengths` are added to the offload context.

        Idempotency: keyed by `uuid`. The result is the same as long as the copy exists.
        """
        list_id, state = _lock_topic_and_list(connection, ledger_id)
        copy = read_tiered_copy(connection, ledger_id)
        is_own = copy is not None and parse_offload_context_or_empty(copy.context).get("uuid") == uuid
        if copy is not None and is_own and copy.state == _LIVE:
            return True
        if copy is not None and is_own and list_id is not None and state is TopicState.ACTIVE:
            context = context_after_upload(parse_offload_context_or_empty(copy.context), None) | (
                lengths.to_context() if lengths else {}
            )
            publish_copy(connection, list_id, ledger_id, TIERED, context)
            return True
        end_upload_and_file_intent(
            connection, list_id, ledger_id, uuid, until_us=None, now_us=self._db.now_us(connection)
        )
        return False

    @in_write_transaction("catalog.abandon_offload")
    def abandon_offload(self, connection: Connection, ledger_id: LedgerId, uuid: str) -> None:
        """File an intent for the attempt's uploads, unless it is filed already. A LIVE copy does not change.

        Phase two deletes the uploads after `UPLOAD_GRACE_S`, because a request without an answer may still arrive. If
        phase two may have worked on an earlier intent and missed objects, the call files one more intent.

        Idempotency: keyed by `uuid`.
        """
        list_id, _ = _lock_topic_and_list(connection, ledger_id)
        now = self._db.now_us(connection)
        end_upload_and_file_intent(connection, list_id, ledger_id, uuid, until_us=now, now_us=now)

    @in_read_transaction
    def find_readable_copies(self, connection: Connection, ledger_id: LedgerId) -> ReadableCopies | None:
        """Return the LIVE copies, or `None` if the ledger is not listed."""
        c = t.ledger_copy.c
        query = select(c.kind, cast_to_text(c.context)).where(c.ledger_id == ledger_id, c.state == _LIVE)
        if _read_listed_ledger(connection, ledger_id) is None:
            return None
        live = {row.kind: parse_offload_context_or_empty(row.context) for row in connection.execute(query)}
        return ReadableCopies(primary=CopyKind.LEDGER.value in live, tiered=live.get(TIERED.value))

    def require_offloadable(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> None:
        """Check that the ledgers can be offloaded.

        Raises:
            UnknownObject: A ledger is not in the topic's list of message ledgers.
            PreconditionFailed: A ledger is not CLOSED.
        """
        for ledger_id in self.find_unlisted_ledgers(topic_id, ledger_ids):
            raise UnknownObject("ledger", expected="a ledger in the topic's list", found=ledger_id)

    def find_unlisted_ledgers(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        """Return the unlisted ledgers, ascending. Raise `PreconditionFailed` if a listed ledger is not CLOSED."""
        state_by_ledger = {row.ledger_id: row.state for row in self._read_listed_rows(topic_id, ledger_ids, [])}
        for ledger_id, state in sorted(state_by_ledger.items()):
            if state != LedgerState.CLOSED.value:
                raise PreconditionFailed(f"ledger {ledger_id}: expected state CLOSED, found {state}")
        return sorted(set(ledger_ids) - state_by_ledger.keys())

    def list_offload_candidates(
        self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, after: LedgerId, limit: int
    ) -> list[LedgerId]:
        """Return listed, CLOSED ledgers with entries and no LIVE tiered copy, with ids above `after`, ascending."""
        c, ledger = t.ledger_copy.c, t.ledger.c
        has_tiered = exists().where(c.ledger_id == ledger.ledger_id, c.kind == TIERED.value, c.state == _LIVE)
        conditions = [
            ledger.state == LedgerState.CLOSED.value,
            ledger.entries > 0,
            ledger.ledger_id > after,
            ~has_tiered,
        ]
        return [
            LedgerId(row.ledger_id) for row in self._read_listed_rows(topic_id, ledger_ids, conditions, limit=limit)
        ]

    @in_read_transaction
    def _read_listed_rows(
        self,
        connection: Connection,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        conditions: Sequence[ColumnElement[bool]],
        limit: int | None = None,
    ) -> Sequence[Any]:
        ledger = t.ledger.c
        is_requested = [] if ledger_ids is None else [is_one_of(connection, ledger.ledger_id, ledger_ids)]
        is_listed = (ledger.list_id == read_message_list_id(connection, topic_id), ledger.place.is_not(None))
        query = select(ledger.ledger_id, ledger.state).where(*is_listed, *is_requested, *conditions)
        return connection.execute(query.order_by(ledger.ledger_id).limit(limit)).all()

    @in_read_transaction
    def list_removable_primaries(
        self,
        connection: Connection,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        after: LedgerId,
        limit: int,
    ) -> list[PublishedTieredCopy]:
        """Return the tiered copies of listed ledgers that have two LIVE copies, ascending by ledger.

        The primary copy may be removed after the tiered copy was checked in storage. The ledger ids are above `after`.
        """
        topic = read_topic(connection, topic_id)
        condition = _match_removable_primaries(connection, read_message_list_id(connection, topic_id), ledger_ids)
        rows = connection.execute(
            _select_ledgers_with_tiered_copy(condition & (t.ledger.c.ledger_id > after)).limit(limit)
        ).all()
        return [
            PublishedTieredCopy(
                statement=build_ledger_statement(topic, row),
                entries=row.entries,
                context=parse_offload_context_or_empty(row.tiered_context),
            )
            for row in rows
        ]

    @in_write_transaction("catalog.remove_primaries")
    def detach_primary_copies(
        self,
        connection: Connection,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        proved_uuid_by_ledger: Mapping[LedgerId, str],
        batch_id: str,
        claim: Claim,
        cause: AuditCause,
    ) -> DetachedBatch:
        """Detach only the primary copies. The ledgers stay listed and are read from their tiered copies.

        One transaction files intents for the primary copies and writes an audit row. The transaction selects a ledger
        if the uuid of its LIVE tiered copy is in `proved_uuid_by_ledger`. The caller must have just checked these
        copies in storage (apache/pulsar#22839). Stalled intents of primary copies move to the batch. Raise
        `UnknownObject` if the topic does not exist.

        With `ledger_ids`, only these ledgers are considered. `claim` is for the workflow that does phase two.

        Idempotency: keyed by `batch_id`. A repeated call returns the first result. A call that changed nothing is not
        recorded.
        """
        request = fingerprint_request(f"primaries/{topic_id}", ledger_ids)

        def lock() -> tuple[Topic, int]:
            return read_topic(connection, topic_id, share_lock=True), read_message_list_id(
                connection, topic_id, lock=True
            )

        locked = lock_then_find_earlier_detach(connection, batch_id, request, lock)
        if isinstance(locked, DetachedBatch):
            return locked
        topic, list_id = locked
        now_us = self._db.now_us(connection)
        taken_over_intents = take_over_stalled_intents(
            connection, topic_id, ledger_ids, batch_id=batch_id, now_us=now_us, copy=CopyKind.LEDGER
        )
        ids = _filter_proved_ledgers(connection, list_id, ledger_ids, proved_uuid_by_ledger)
        to_delete = is_one_of(connection, t.ledger.c.ledger_id, ids)
        filed_intents = replace_copies_by_intents(
            connection, list_id, CopyKind.LEDGER, to_delete, batch_id=batch_id, now_us=now_us, cause=cause
        )
        result = DetachedBatch(batch_id=batch_id, ledgers=len(ids), intents=filed_intents + taken_over_intents)
        if result.intents:
            insert_batch_run(connection, result, topic_id, claim, now_us, request=request)
        if ids:
            insert_audit_row(
                connection,
                "remove-primaries",
                cause,
                at_us=now_us,
                topic_id=topic_id,
                topic=topic.name,
                run_id=batch_id,
                detail={},
                span=AuditedLedgers.from_ids(ids),
            )
        return replace(result, filed_counts=count_filed_intents(connection, batch_id, now_us) if ids else ())

    def now_us(self) -> int:
        """Return the catalog's time in microseconds since 1970."""
        return self._db.read(self._db.now_us)


def _read_listed_ledger(connection: Connection, ledger_id: LedgerId) -> Row[Any] | None:
    """Return the ledger's row, with topic and component of its list, or `None` if the ledger is not listed."""
    joined = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id)
    columns = (t.ledger, t.ledger_list.c.topic_id, t.ledger_list.c.component)
    query = select(*columns).select_from(joined).where(t.ledger.c.ledger_id == ledger_id, t.ledger.c.place.is_not(None))
    return connection.execute(query).first()


def _lock_topic_and_list(connection: Connection, ledger_id: LedgerId) -> tuple[int | None, TopicState | None]:
    """Lock topic, then list. Return list id and topic state. For an unlisted ledger, both are `None`."""
    row = _read_listed_ledger(connection, ledger_id)
    try:
        topic = read_topic(connection, row.topic_id, share_lock=True) if row else None
        list_id = read_message_list_id(connection, topic.topic_id, lock=True) if topic else None
    except UnknownObject:
        return None, None
    if topic is None or _read_listed_ledger(connection, ledger_id) is None:
        return None, None
    return list_id, topic.state


def _read_primary_state(connection: Connection, row: Row[Any]) -> str | None:
    c = t.ledger_copy.c
    primary = select(c.state).where(c.ledger_id == row.ledger_id, c.kind == CopyKind.LEDGER.value)
    return connection.execute(primary).scalar_one_or_none()


def _match_removable_primaries(
    connection: Connection, list_id: int, ledger_ids: Sequence[LedgerId] | None
) -> ColumnElement[bool]:
    c = _primary.c
    has_primary = exists().where(c.ledger_id == t.ledger.c.ledger_id, c.kind == CopyKind.LEDGER.value, c.state == _LIVE)
    condition = (t.ledger.c.list_id == list_id) & t.ledger.c.place.is_not(None) & has_primary
    condition &= t.ledger.c.state == LedgerState.CLOSED.value
    return condition if ledger_ids is None else condition & is_one_of(connection, t.ledger.c.ledger_id, ledger_ids)


def _select_ledgers_with_tiered_copy(condition: ColumnElement[bool]) -> Select[Any]:
    c = _tiered.c
    is_live = (c.ledger_id == t.ledger.c.ledger_id) & (c.kind == TIERED.value) & (c.state == _LIVE)
    source = t.ledger.join(t.ledger_list, t.ledger_list.c.list_id == t.ledger.c.list_id).join(_tiered, is_live)
    columns = (t.ledger, t.ledger_list.c.component, cast_to_text(c.context, "tiered_context"))
    return select(*columns).select_from(source).where(condition).order_by(t.ledger.c.ledger_id)


def _filter_proved_ledgers(
    connection: Connection,
    list_id: int,
    ledger_ids: Sequence[LedgerId] | None,
    proved_uuid_by_ledger: Mapping[LedgerId, str],
) -> list[LedgerId]:
    condition = _match_removable_primaries(connection, list_id, ledger_ids) & is_one_of(
        connection, t.ledger.c.ledger_id, proved_uuid_by_ledger
    )
    uuid_by_ledger = {
        row.ledger_id: parse_offload_context_or_empty(row.tiered_context).get("uuid")
        for row in connection.execute(_select_ledgers_with_tiered_copy(condition))
    }
    return [
        LedgerId(ledger_id)
        for ledger_id, uuid in uuid_by_ledger.items()
        if uuid == proved_uuid_by_ledger[LedgerId(ledger_id)]
    ]
