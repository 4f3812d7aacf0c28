"""What the main job of these tests writes and acknowledges, and what must therefore go and what must stay.

Expectations follow from the plan alone. Each topic has one producer, `writer`, whose entries are numbered from 0;
ledger `i` holds the entries from `i * PER_LEDGER` on.
"""

from dataclasses import dataclass, field
from enum import Enum

from logstore.delayed.index_buckets import SealAndMergeLimits
from tests.faults.auditor import Expected

PER_SEGMENT = 2
SEGMENTS = 2
PER_LEDGER = PER_SEGMENT * SEGMENTS
HOLED = "holed"
HOLE = 2  # the entry of the last ledger that it has acknowledged in the end, and nothing else there
SCHEMAS = (b"first", b"second", b"first")
INLINE_BYTES = 20
"""What a cursor's row may hold: less than any bitmap takes."""
BUCKET_LIMITS = SealAndMergeLimits(messages=2, ledgers=50, idle_s=3_600, buckets=2)
"""Of delayed messages, of which these worlds have few."""


class Trouble(Enum):
    """What storage does to a ledger that is to be deleted."""

    STUBBORN = "refuses one key twice, then obeys"
    HOPELESS = "refuses one key for ever"
    SQUATTED = "holds an object of another application under the ledger's prefix"
    LISTED_EMPTY = "answers one listing with nothing although objects are there"
    LISTED_SHORT = "leaves a segment out of one listing"
    SILENT = "answers no listing for as many tries as a chunk has"

    @property
    def deadly(self) -> bool:
        """Whether the ledger ends as a dead letter."""
        return self in {Trouble.HOPELESS, Trouble.SQUATTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """One topic."""

    name: str  # encoded
    ledgers: int
    acknowledged: dict[str, int]  # ledgers, from the first on, by subscription
    troubles: dict[int, Trouble] = field(default_factory=dict)  # by place in the list
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
        return [*self.acknowledged, *([HOLED] if self.components else [])]

    @property
    def expected(self) -> Expected:
        """What must be true once everything has ended."""
        hole = range(0) if self.picked is None else range(self.picked * PER_LEDGER, (self.picked + 1) * PER_LEDGER)
        return Expected(
            first_kept=self.doomed * PER_LEDGER,
            written=self.ledgers * PER_LEDGER,
            hole=hole,
            dead_letters=sum(trouble.deadly for trouble in self.troubles.values()),
            holed={HOLED: frozenset({(self.ledgers - 1) * PER_LEDGER + HOLE})} if self.components else {},
            schemas=SCHEMAS if self.components else (),
        )

    @property
    def expected_once_deleted(self) -> Expected:
        """What must be true once the topic has been deleted as a whole."""
        written = self.ledgers * PER_LEDGER
        return Expected(
            first_kept=written,
            written=written,
            dead_letters=sum(trouble.deadly for trouble in self.troubles.values()),
            gone=True,
        )


ORDERS = TopicPlan(
    name="persistent://shop/main/orders",
    ledgers=8,
    acknowledged={"archive": 7, "billing": 8},
    troubles={
        1: Trouble.LISTED_EMPTY,
        2: Trouble.STUBBORN,
        3: Trouble.HOPELESS,
        4: Trouble.SQUATTED,
        5: Trouble.LISTED_SHORT,
    },
)
RETURNS = TopicPlan(
    name="persistent://shop/main/returns",
    ledgers=3,
    acknowledged={"billing": 3},
    troubles={0: Trouble.SILENT, 1: Trouble.SILENT},
    components=True,
)
UNREAD = TopicPlan(name="persistent://shop/main/unread", ledgers=2, acknowledged={"audit": 0, "billing": 2})
PICKED = TopicPlan(name="persistent://shop/main/picked", ledgers=3, acknowledged={"billing": 2}, picked=1)

TOPICS = (ORDERS, RETURNS, UNREAD, PICKED)

SHORT = (TopicPlan(name="persistent://shop/main/short", ledgers=3, acknowledged={"billing": 2}, components=True),)

PAIR = (
    TopicPlan(name="persistent://shop/main/left", ledgers=2, acknowledged={"billing": 1}),
    TopicPlan(
        name="persistent://shop/main/right",
        ledgers=4,
        acknowledged={"billing": 3},
        troubles={0: Trouble.STUBBORN, 1: Trouble.SQUATTED},
        components=True,
    ),
)

BESIDE = (
    TopicPlan(
        name="persistent://shop/main/beside",
        ledgers=7,
        acknowledged={"billing": 7},
        troubles={2: Trouble.SQUATTED, 3: Trouble.LISTED_SHORT},
        neighbours=True,
    ),
)
"""Of whose ledgers a chunk lists two by one walk through their shard."""

PLANTED = {
    "another-application/ledgers/00/0000000000000000/00000000.parquet": b"theirs",
    "ledgers/ff/00000000000fffff/0123456789abcdef.meta.json": b"theirs too",
    "ledgers/ff/00000000000fffff/00000000.parquet": b"and this",
    "readme.txt": b"mind the gap",
}
