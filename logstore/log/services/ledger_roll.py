"""Roll: close a topic's last ledger and open the next one.

A new ledger gets its row first, then its statement in storage, and then a place in the list. If another process has
opened a ledger first, the newborn ledger gets an intent instead of a place (apache/pulsar#350).
"""

import logging
from dataclasses import dataclass
from typing import Final

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.errors import AlreadyExists, CatalogBusy
from logstore.failpoints import effect
from logstore.log.ledger_object_keys import meta_key
from logstore.log.ledgers import LedgerState, LedgerStatement
from logstore.log.services.segment_registration import report_abandoned_upload
from logstore.ports.catalog.log import Ledger
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId, TopicId
from logstore.retrying_clock import Clock

_MAX_ATTEMPTS: Final = 5
"""Maximum number of attempts of one roll. An attempt fails if a trim detaches the newborn ledger before the commit."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollPolicy:
    """Limits of a ledger. A roll is due when any limit is reached. The last segment may exceed a limit."""

    max_entries: int = 50_000
    max_size_bytes: int = 1 << 30
    max_age_s: float = 4 * 3600

    def is_due(self, ledger: Ledger, *, now_us: int) -> bool:
        """Return whether the next entries must go into a new ledger. A roll of an empty ledger is never due."""
        return ledger.entries > 0 and (
            ledger.entries >= self.max_entries
            or ledger.size_bytes >= self.max_size_bytes
            or now_us - ledger.created_us >= self.max_age_s * 1_000_000
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RollResult:
    closed: LedgerId | None  # None: this call closed no ledger
    opened: LedgerId  # open ledger, whichever process opened it


class Roller:
    """Opener of ledgers. A roll repeats failed attempts for at most `patience_s` seconds."""

    def __init__(
        self, *, ledgers: MessageLedgers, objects: ObjectStore, application: str, clock: Clock, patience_s: float
    ) -> None:
        self._ledgers = ledgers
        self._objects = objects
        self._application = application
        self._clock = clock
        self._patience_s = patience_s

    def roll(self, topic_id: TopicId) -> RollResult:
        for _ in range(_MAX_ATTEMPTS):
            last = self._ledgers.last_ledger(topic_id)
            if last and last.state is LedgerState.OPEN and not last.entries:
                return RollResult(closed=None, opened=last.ledger_id)
            opened = self._open_ledger_after(topic_id, last)
            if opened is not None:
                was_open = last is not None and last.state is LedgerState.OPEN
                return RollResult(closed=last.ledger_id if last and was_open else None, opened=opened)
            winner = self._ledgers.last_ledger(topic_id)
            if winner and (last is None or winner.ledger_id != last.ledger_id):
                return RollResult(closed=None, opened=winner.ledger_id)
        raise CatalogBusy(f"topic {topic_id}: {_MAX_ATTEMPTS} new ledgers were taken away before they joined its list")

    def open_next_ledger(self, topic_id: TopicId, last: Ledger | None) -> Ledger | None:
        """Try to open a ledger after `last`. Return the topic's last ledger, whichever process opened it."""
        self._open_ledger_after(topic_id, last)
        return self._ledgers.last_ledger(topic_id)

    def _open_ledger_after(self, topic_id: TopicId, last: Ledger | None) -> LedgerId | None:
        """Return the opened ledger, or `None` if another process was faster or storage already has the new id."""
        deadline_s = self._clock.monotonic_s() + self._patience_s
        statement = self._clock.retry(lambda: self._create_row(topic_id), deadline_s=deadline_s)
        after = last.ledger_id if last else None
        try:
            with report_abandoned_upload(self._ledgers, statement.ledger_id, epoch=statement.epoch, clock=self._clock):
                self._clock.retry(lambda: self._put_statement(statement), deadline_s=deadline_s)
                attached = self._clock.retry(lambda: self._attach(statement.ledger_id, after), deadline_s=deadline_s)
        except AlreadyExists:
            _LOG.error("ledger %s: storage holds another one of that id; taking the next id", statement.ledger_id)
            return None
        return statement.ledger_id if attached else None

    def _create_row(self, topic_id: TopicId) -> LedgerStatement:
        with effect("roll.create_row"):
            return self._ledgers.create_ledger(topic_id, application=self._application)

    def _put_statement(self, statement: LedgerStatement) -> None:
        key, body = meta_key(statement.ledger_id, statement.owner), statement.to_json()
        with effect("roll.put_meta"):
            try:
                self._objects.put_if_absent(key, body, metadata=statement.to_metadata())
            except AlreadyExists:
                stored = self._objects.get(key)
                if stored is None or stored.body != body:  # the id was used twice
                    raise

    def _attach(self, ledger_id: LedgerId, after: LedgerId | None) -> bool:
        with effect("roll.attach"):
            return self._ledgers.attach_ledger(ledger_id, after=after)
