"""What the demo says of delayed messages: each way to break promise 6 is named."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import LedgerId, Position, TopicId
from workers.demo.delayed_messages import ReceivedDelayedMessages, check_delayed_messages
from workers.demo.direct_store_access import DirectStoreAccess

_ENDED_MS = 1_000
_TOPIC = Topic(topic_id=TopicId(1), name="reminders", state=TopicState.ACTIVE, policy=RetentionPolicy(), created_us=0)


@dataclass
class _Log:
    """What an auditor would find: two entries that are due, one at once, and two that wait in two buckets."""

    times: dict[tuple[int, int], int | None] = field(
        default_factory=lambda: {(3, 0): 500, (3, 1): 700, (3, 2): None, (3, 3): 2_000, (3, 4): 3_000}
    )
    held: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {7: [(3, 3)], 9: [(3, 4)]})
    retired: set[int] = field(default_factory=lambda: {4, 5})

    def read_delivery_times_ms(self, _: int) -> dict[tuple[int, int], int | None]:
        return self.times

    def read_index_buckets(self, _: int) -> dict[int, list[tuple[int, int]]]:
        return self.held

    def read_retired_buckets(self, _: int) -> set[int]:
        return self.retired


def _seen(log: _Log, *received: tuple[int, int]) -> tuple[bool, str]:
    """What is said where these entries were received, each at that time."""
    got = [(Position(LedgerId(3), entry), at_ms) for entry, at_ms in received]
    row = check_delayed_messages(
        cast("DirectStoreAccess", log), ReceivedDelayedMessages(topic=_TOPIC, received=got, ended_ms=_ENDED_MS)
    )
    return row.ok, row.seen


def test_delayed_messages_that_came_once_and_in_time_are_counted() -> None:
    """The last of them at the very millisecond at which it was due."""
    ok, seen = _seen(_Log(), (2, 10), (0, 501), (1, 700))
    assert ok, seen
    assert "3 messages delivered once, none early; 2 wait, each in one of 2 buckets" in seen


@pytest.mark.parametrize(
    ("received", "changes", "said"),
    [
        ([(2, 10), (0, 501)], {}, "entry (3, 1) was never delivered"),
        ([(2, 10), (0, 501), (1, 699)], {}, "entry 3:1 was delivered 1 ms early"),
        ([(2, 10), (0, 501), (1, 700), (0, 800)], {}, "entry (3, 0) was delivered 2 times"),
        ([(2, 10), (0, 501), (1, 700), (3, 900)], {}, "entry 3:3 was delivered 1100 ms early"),
        ([(2, 10), (0, 501), (1, 700)], {"held": {7: [(3, 3)], 9: []}}, "entry (3, 4) waits in 0 buckets"),
        ([(2, 10), (0, 501), (1, 700)], {"held": {7: [(3, 3), (3, 4)], 9: [(3, 4)]}}, "(3, 4) waits in 2 buckets"),
        ([(2, 10), (0, 501), (1, 700)], {"retired": set()}, "2 buckets and 0 retired ones after a merge of two"),
        ([(2, 10), (0, 501), (1, 700)], {"retired": {4, 7}}, "bucket 7 is listed and retired"),
    ],
)
def test_delayed_message_that_is_lost_early_or_doubled_is_named(
    received: list[tuple[int, int]], changes: dict[str, Any], said: str
) -> None:
    """A check that cannot fail is worth nothing."""
    ok, seen = _seen(_Log(**changes), *received)
    assert not ok
    assert said in seen
