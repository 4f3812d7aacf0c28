"""Ports of ledgers and their segments."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from logstore.cursors.cursor_state import CursorState, VisibleLedgerSpan
from logstore.log.ledgers import Component, CopyKind, LedgerState, LedgerStatement
from logstore.log.producer_sequences import HighestSequenceIds
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    ledger_id: LedgerId
    topic_id: TopicId
    component: Component
    state: LedgerState
    entries: int
    size_bytes: int
    last_segment: int  # highest registered number; -1: none
    generation: int
    created_us: int
    closed_us: int | None
    copies: tuple[CopyKind, ...] = (CopyKind.LEDGER,)
    keys: Mapping[str, str] = field(default_factory=dict)  # identify the ledger owner, e.g. {"cursor": "billing"}

    @property
    def span(self) -> VisibleLedgerSpan:
        return VisibleLedgerSpan(self.ledger_id, self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Registered segment: entries `first_entry` (inclusive) to `first_entry + entries` (exclusive)."""

    ledger_id: LedgerId
    number: int
    first_entry: int
    entries: int
    size_bytes: int
    sha256: str | None = None  # SHA-256 of the object, hexadecimal; None: not known
    delayed: int = 0  # entries with a delivery time


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLedgerTotals:
    ledgers: int
    entries: int
    size_bytes: int
    first: Position | None  # first entry of the log; None: there is no entry
    last: Position | None  # last entry that readers may see; None: no entry is visible


class MessageLedgers(Protocol):
    def catalog_epoch(self) -> int: ...

    def list_ledgers(
        self, topic_id: TopicId, *, from_ledger: LedgerId | None = None, limit: int | None = None
    ) -> list[Ledger]:
        """Return the topic's message ledgers with ids from `from_ledger` on, inclusive, ascending."""

    def get_topic_totals(self, topic_id: TopicId) -> TopicLedgerTotals: ...

    def count_backlogs(self, topic_id: TopicId, states: Sequence[CursorState]) -> list[int]:
        """Return for each state the number of unacknowledged entries in listed ledgers. Each state costs some reads."""

    def last_ledger(self, topic_id: TopicId) -> Ledger | None: ...

    def last_ledgers(self, topic_ids: Collection[TopicId]) -> list[Ledger]:
        """Return the last ledger of each topic, in one read. Topics with an empty list are left out."""

    def create_ledger(self, topic_id: TopicId, *, application: str) -> LedgerStatement:
        """Insert the row of a new, unlisted ledger in state CREATING.

        Not idempotent. If the ledger is not attached within the registration timeout, a trim of the topic detaches it.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """

    def attach_ledger(self, ledger_id: LedgerId, *, after: LedgerId | None) -> bool:
        """Add a CREATING ledger to the end of its list as OPEN, and close `after`, the list's last ledger.

        The ledger is not attached if the last ledger is not `after`, or has a higher id than `ledger_id`. Instead, an
        intent is filed for the newborn ledger in the same transaction (apache/pulsar#350). Return whether the ledger is
        listed now, also after a repeated call. Raise `PreconditionFailed` if the topic is not ACTIVE.
        """

    def record_abandoned_upload(self, ledger_id: LedgerId, *, epoch: int) -> None:
        """Record that a process gives up an unregistered upload to the ledger. The upload may still arrive.

        If the catalog no longer has the ledger's primary copy, phase two may have missed the upload. The call then
        makes the copy's intents pending and unclaimed again, except dead letters. If the catalog still has the primary
        copy, nothing changes, because a later deletion lists all objects. Nothing changes either if `epoch` is not
        the catalog's epoch.

        Idempotency: each call only makes phase two search for objects once more.
        """

    def list_segments(self, ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        """Return the registered segments that have entries from `from_entry` on, ascending."""

    def find_segments_of_ranges(
        self, topic_id: TopicId, range_by_ledger: Mapping[LedgerId, range]
    ) -> list[tuple[Ledger, list[Segment]]]:
        """Return, in one read, the given ledgers that are listed, ascending, each with the segments in its range."""

    def producer_sequences(
        self, topic_id: TopicId, producers: Iterable[str]
    ) -> dict[str, HighestSequenceIds]: ...  # only producers with registered sequence ids


class LedgersOfAllComponents(Protocol):
    """Ledgers of all components of a topic. Ports of the single components publish these ledgers, as CLOSED."""

    def create_component_ledger(
        self, topic_id: TopicId, component: Component, keys: Mapping[str, str], *, application: str
    ) -> LedgerStatement:
        """Insert the row of a new, unlisted component ledger in state CREATING.

        `keys` identify the ledger owner within the topic, e.g. `{"cursor": "billing"}`. Each ledger owner has its own
        list. The first ledger of a ledger owner creates the list.

        Not idempotent. The topic's trim detaches a ledger that is never published.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """

    def list_ledgers(self, topic_id: TopicId) -> list[Ledger]:
        """Return listed ledgers of all components: message ledgers first, each list in its order."""

    def iterate_ledger_pages(
        self, topic_id: TopicId, *, component: Component | None = None
    ) -> Iterator[Sequence[Ledger]]:
        """Yield the ledgers of `list_ledgers`, or of one component, in pages that fit into memory.

        Each page is read on demand. A ledger that leaves its list meanwhile may be missing. No ledger appears twice.
        """
