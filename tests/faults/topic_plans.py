"""What the main job of these tests writes and acknowledges, and what must therefore go and what must stay.

Expectations follow from the plan alone. Each topic has one producer, `writer`, whose entries are numbered from 0;
ledger `i` holds the entries from `i * PER_LEDGER` on.
"""

from dataclasses import dataclass, field
from enum import Enum

from logstore.delayed.index_buckets import SealAndMergeLimits
from tests.faults.auditor import ExpectedTopic

ENTRIES_PER_SEGMENT = 2
SEGMENTS_PER_LEDGER = 2
ENTRIES_PER_LEDGER = ENTRIES_PER_SEGMENT * SEGMENTS_PER_LEDGER
HOLED_SUBSCRIPTION = "holed"
HOLED_ENTRY = 2  # the entry of the last ledger that it has acknowledged in the end, and nothing else there
SCHEMA_CONTENTS = (b"first", b"second", b"first")
CURSOR_INLINE_BYTES = 20
"""What a cursor's row may hold: less than any bitmap takes."""
BUCKET_LIMITS = SealAndMergeLimits(messages=2, ledgers=50, idle_s=3_600, buckets=2)
"""Of delayed messages, of which these worlds have few."""


class StorageTrouble(Enum):
    """What storage does to a ledger that is to be deleted."""

    STUBBORN = "refuses one key twice, then obeys"
    HOPELESS = "refuses one key for ever"
    SQUATTED = "holds an object of another application under the ledger's prefix"
    LISTS_NOTHING_ONCE = "answers one listing with nothing although objects are there"
    OMITS_SEGMENT_ONCE = "leaves a segment out of one listing"
    SILENT = "answers no listing for as many tries as a chunk has"

    @property
    def deadly(self) -> bool:
        """Whether the ledger ends as a dead letter."""
        return self in {StorageTrouble.HOPELESS, StorageTrouble.SQUATTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """One topic."""

    name: str  # encoded
    ledgers: int
    acknowledged: dict[str, int]  # ledgers, from the first on, by subscription
    troubles: dict[int, StorageTrouble] = field(default_factory=dict)  # by place in the list
    picked: int | None = None  # place of a ledger to be deleted by id, out of the middle
    components: bool = False  # whether a cursor outgrows its row, and the topic has a schema
    neighbours: bool = False  # whether all ledgers but the first one stand side by side in one shard of the bucket

    @property
    def doomed(self) -> int:
        """How many ledgers retention lets go; the last one always stays."""
        if self.picked is not None:
            return 0
        return min(*self.acknowledged.values(), self.ledgers - 1)

    @property
    def subscriptions(self) -> list[str]:
        """Every subscription; the one with holes has them in the last ledger, which always stays."""
        return [*self.acknowledged, *([HOLED_SUBSCRIPTION] if self.components else [])]

    @property
    def expected(self) -> ExpectedTopic:
        """What must be true once everything has ended."""
        deleted_sequences = (
            range(0)
            if self.picked is None
            else range(self.picked * ENTRIES_PER_LEDGER, (self.picked + 1) * ENTRIES_PER_LEDGER)
        )
        return ExpectedTopic(
            first_kept_sequence=self.doomed * ENTRIES_PER_LEDGER,
            written=self.ledgers * ENTRIES_PER_LEDGER,
            hole=deleted_sequences,
            dead_letters=sum(trouble.deadly for trouble in self.troubles.values()),
            holed={HOLED_SUBSCRIPTION: frozenset({(self.ledgers - 1) * ENTRIES_PER_LEDGER + HOLED_ENTRY})}
            if self.components
            else {},
            schemas=SCHEMA_CONTENTS if self.components else (),
        )

    @property
    def expected_after_deletion(self) -> ExpectedTopic:
        """What must be true once the topic has been deleted as a whole."""
        written_entries = self.ledgers * ENTRIES_PER_LEDGER
        return ExpectedTopic(
            first_kept_sequence=written_entries,
            written=written_entries,
            dead_letters=sum(trouble.deadly for trouble in self.troubles.values()),
            gone=True,
        )


ORDERS = TopicPlan(
    name="persistent://shop/main/orders",
    ledgers=8,
    acknowledged={"archive": 7, "billing": 8},
    troubles={
        1: StorageTrouble.LISTS_NOTHING_ONCE,
        2: StorageTrouble.STUBBORN,
        3: StorageTrouble.HOPELESS,
        4: StorageTrouble.SQUATTED,
        5: StorageTrouble.OMITS_SEGMENT_ONCE,
    },
)
RETURNS = TopicPlan(
    name="persistent://shop/main/returns",
    ledgers=3,
    acknowledged={"billing": 3},
    troubles={0: StorageTrouble.SILENT, 1: StorageTrouble.SILENT},
    components=True,
)
UNREAD = TopicPlan(name="persistent://shop/main/unread", ledgers=2, acknowledged={"audit": 0, "billing": 2})
PICKED = TopicPlan(name="persistent://shop/main/picked", ledgers=3, acknowledged={"billing": 2}, picked=1)

MAIN_PLANS = (ORDERS, RETURNS, UNREAD, PICKED)

SHORT_PLANS = (TopicPlan(name="persistent://shop/main/short", ledgers=3, acknowledged={"billing": 2}, components=True),)

PAIR_PLANS = (
    TopicPlan(name="persistent://shop/main/left", ledgers=2, acknowledged={"billing": 1}),
    TopicPlan(
        name="persistent://shop/main/right",
        ledgers=4,
        acknowledged={"billing": 3},
        troubles={0: StorageTrouble.STUBBORN, 1: StorageTrouble.SQUATTED},
        components=True,
    ),
)

NEIGHBOUR_PLANS = (
    TopicPlan(
        name="persistent://shop/main/beside",
        ledgers=7,
        acknowledged={"billing": 7},
        troubles={2: StorageTrouble.SQUATTED, 3: StorageTrouble.OMITS_SEGMENT_ONCE},
        neighbours=True,
    ),
)
"""Of whose ledgers a chunk lists two by one walk through their shard."""

FOREIGN_OBJECTS = {
    "another-application/ledgers/00/0000000000000000/00000000.parquet": b"theirs",
    "ledgers/ff/00000000000fffff/0123456789abcdef.meta.json": b"theirs too",
    "ledgers/ff/00000000000fffff/00000000.parquet": b"and this",
    "readme.txt": b"mind the gap",
}
