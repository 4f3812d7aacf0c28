"""Ledgers, their segments, and their port."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from logstore.cursors.state import CursorState, LedgerSpan
from logstore.log.ledgers import Component, CopyKind, LedgerState, LedgerStatement
from logstore.log.producers import ProducerSequence
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A ledger row."""

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
    keys: Mapping[str, str] = field(default_factory=dict)  # of its component, e.g. {"cursor": "billing"}

    @property
    def span(self) -> LedgerSpan:
        """What cursors need of it."""
        return LedgerSpan(self.ledger_id, self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A registered segment: entries `first_entry` (inclusive) to `first_entry + entries` (exclusive)."""

    ledger_id: LedgerId
    number: int
    first_entry: int
    entries: int
    size_bytes: int
    sha256: str | None = None  # of the object, hexadecimal; None: not known
    delayed: int = 0  # entries with a delivery time


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTotals:
    """Sums over a topic's data ledgers."""

    ledgers: int
    entries: int
    size_bytes: int
    first: Position | None  # the first entry of any; None: there is none
    last: Position | None  # that readers may see; None: nothing


class Ledgers(Protocol):
    """Ledgers of a topic's data list and their segments."""

    def epoch(self) -> int:
        """The catalog's epoch; a rebuilt catalog has another."""

    def list_ledgers(
        self, topic_id: TopicId, *, from_ledger: LedgerId | None = None, limit: int | None = None
    ) -> list[Ledger]:
        """The topic's data ledgers, in list order, which is ascending by id.

        Args:
            topic_id: The topic.
            from_ledger: The first id wanted, inclusive, listed or not; None: from the first one.
            limit: The most ledgers to return; None: all.
        """

    def totals(self, topic_id: TopicId) -> TopicTotals:
        """Sums over the topic's data ledgers, read as one row however many they are."""

    def backlogs(self, topic_id: TopicId, states: Sequence[CursorState]) -> list[int]:
        """How many listed entries each cursor has not acknowledged; reads a row or two for each."""

    def last_ledger(self, topic_id: TopicId) -> Ledger | None:
        """The list's last ledger, or None when the list is empty."""

    def last_ledgers(self, topic_ids: Collection[TopicId]) -> list[Ledger]:
        """The last ledger of each of the topics that has one, as `last`, in one read."""

    def create(self, topic_id: TopicId, *, application: str) -> LedgerStatement:
        """Take the next ledger id and insert the row, CREATING and in no list yet.

        Not idempotent: a row that is never attached is detached again by the topic's next trim, after
        `registration_timeout`, so a repeated call leaves nothing behind for ever.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def attach(self, ledger_id: LedgerId, *, after: LedgerId | None) -> bool:
        """CREATING → OPEN at the end of its list, closing the list's last ledger, which must still be `after`.

        Returns whether this ledger is in its list now (true again when repeated). When another ledger came
        first, or the list's last has a higher id, the newborn is detached in the same transaction: its deletion
        intent is filed (apache/pulsar#350).

        Raises:
            PreconditionFailed: The topic is not ACTIVE.
        """

    def abandon_upload(self, ledger_id: LedgerId, *, epoch: int) -> None:
        """A process that has uploaded to the ledger, or perhaps has, gives up: it registers nothing of that.

        If the catalog no longer has the ledger's primary copy, the intents of that copy are opened again, and no
        workflow holds them: the upload may have landed behind phase two's back. Otherwise nothing changes, because
        whatever deletes the copy later lists all of it; nor where the epoch is another one, or the copy's intent is a
        dead letter or gone.

        Idempotency: phase two looks once more each time, and at an object that it has deleted it finds nothing.
        """

    def segments(self, ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        """Registered segments that hold entries at or after `from_entry`, ascending."""

    def find_segments(self, topic_id: TopicId, wanted: Mapping[LedgerId, range]) -> list[tuple[Ledger, list[Segment]]]:
        """Those of the ledgers that are listed, ascending, each with its segments that hold entries of its range.

        However many they are, they are read at once.
        """

    def producer_sequences(self, topic_id: TopicId, producers: Iterable[str]) -> dict[str, ProducerSequence]:
        """How far registered sequence ids are, of those producers that have one."""


class Components(Protocol):
    """Every ledger of a topic, whichever component it belongs to.

    A component's owner (a cursor, a topic's schema) has a list of its own, made when its first ledger is created.
    Its ledgers are written whole: they are published CLOSED, by the port of the component.
    """

    def create(
        self, topic_id: TopicId, component: Component, keys: Mapping[str, str], *, application: str
    ) -> LedgerStatement:
        """Take the next ledger id and insert the row, CREATING and not listed yet.

        Not idempotent: as with `Ledgers.create`, a row that is never published is detached by the topic's trim.

        Args:
            topic_id: Whose.
            component: What kind of ledger.
            keys: What makes its owner unique within the topic, e.g. `{"cursor": "billing"}`.
            application: As it stands in storage's own statement.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def list_ledgers(self, topic_id: TopicId) -> list[Ledger]:
        """Listed ledgers of all components: the data ledgers first, each list in its order."""

    def iterate_pages(self, topic_id: TopicId, *, component: Component | None = None) -> Iterator[Sequence[Ledger]]:
        """The same ledgers, or those of one component, in pages that each fit into memory.

        A page is read when it is drawn. A ledger that leaves its list meanwhile may be missing, none comes twice.
        """
