"""Any order of appends, reads, seals, merges, drops, losses and crashes, against a sorted list.

Two subscriptions share a tracker; one of them comes late. Buckets are written as files in memory. The clock of seals
and merges is off by a little; that of the tracker says what is early. Storage may answer late: what was read is taken
over some steps later.

Promise 6; field cases 57 (a merge loses nothing), 58 (tracked implies schedulable), 59 (any limit of buckets), 62 (what
cannot be read is replayed from the log), 65 (adding twice) and 71 (memory follows what lives).
"""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from logstore.delayed.delayed_rows import DelayedRows, merge_sorted_sources
from logstore.delayed.index_buckets import IndexBucket, IndexBucketList, SealAndMergeLimits, find_pair_to_merge
from logstore.delayed.services.log_sealer import IndexBucketDraft
from logstore.delayed.tracker import IndexBucketSource, Tracker, open_index_buckets
from logstore.errors import CorruptData, StoreUnavailable
from logstore.positions import EARLIEST, LedgerId, Position
from tests.logstore.delayed.rows import Snapshots, take_due
from tests.state_machines import run_state_machine

_SLACK_MS = 5
"""A merge leaves out what was due so long ago; clocks are off by less."""

_TIMES = st.one_of(st.none(), st.integers(-10, 0), st.integers(1, 12), st.integers(1, 40))
_HEARD = st.booleans()
"""Whether the tracker hears of a change at once; else it does at some reload."""


class _Subscription:
    """Reads the log and is handed what is due. What it has is never taken twice."""

    def __init__(self) -> None:
        self.at = 0  # of the log
        self.has: set[Position] = set()


class Delivery(RuleBasedStateMachine):
    """One topic."""

    @initialize(
        buckets=st.integers(1, 4), messages=st.integers(1, 6), ledgers=st.integers(1, 3), least=st.integers(1, 3)
    )
    def begin(self, buckets: int, messages: int, ledgers: int, least: int) -> None:
        self.limits = SealAndMergeLimits(messages=messages, ledgers=ledgers, buckets=buckets)
        self.snapshots = Snapshots(segment_rows=(least, least + 2), step_ms=4)
        self.log: list[tuple[Position, int | None]] = []
        self.listed = IndexBucketList()
        self.next_id = 1_000
        self.now_ms = 100
        self.times: dict[Position, int] = {}
        self.subscriptions = [_Subscription()]
        self.restart()

    def restart(self) -> None:
        self.tracker = Tracker(self.snapshots)
        self.taken: set[Position] = set()
        self.segment: tuple[IndexBucketSource, DelayedRows | None] | None = None  # was read, and not taken over yet
        self.looked: tuple[IndexBucketList, dict[LedgerId, IndexBucketSource | None]] | None = None
        self.rewind(self.tracker.load_list_and_pop_rewinds(self.listed))

    @rule()
    def read_segment(self) -> None:
        """Storage is asked for what is due, and answers late."""
        if self.segment is None and (rows := self.tracker.bucket_to_read(self.now_ms)):
            with suppress(StoreUnavailable):
                self.segment = rows, rows.read_next_segment()

    @rule()
    def read_list(self) -> None:
        """Another list may be there when this one is loaded."""
        if self.looked is None:
            with suppress(StoreUnavailable):
                self.looked = (
                    self.listed,
                    open_index_buckets(self.tracker.find_unopened_buckets(self.listed), self.snapshots),
                )

    def take_over(self) -> None:
        """What was read, in the order in which it may come."""
        if self.looked:
            self.rewind(self.tracker.load_list_and_pop_rewinds(*self.looked))
        if self.segment:
            self.tracker.load_bucket_segment(*self.segment)
            self.rewind(self.tracker.pop_rewinds())
        self.looked = self.segment = None

    def rewind(self, positions: list[Position]) -> None:
        for position in positions:
            index = next(number for number, (at, _) in enumerate(self.log) if at >= position)
            for one in self.subscriptions:
                one.at = min(one.at, index)

    @rule(times=st.lists(_TIMES, min_size=1, max_size=6), roll=st.booleans())
    def append(self, times: list[int | None], roll: bool) -> None:
        last = self.log[-1][0] if self.log else Position(LedgerId(0), -1)
        ledger = LedgerId(last.ledger_id + 1) if roll else last.ledger_id
        first = 0 if roll else last.entry_id + 1
        for number, time in enumerate(times):
            position = Position(ledger, first + number)
            deliver_at_ms = None if time is None else self.now_ms + time
            self.log.append((position, deliver_at_ms))
            if deliver_at_ms is not None:
                self.times[position] = deliver_at_ms

    @rule(times=st.lists(_TIMES, min_size=3, max_size=6), after_ms=st.integers(0, 12), limit=st.integers(1, 8))
    def round(self, times: list[int | None], after_ms: int, limit: int) -> None:
        """What a topic does most of the time."""
        self.append(times, roll=len(times) > 4)
        self.receive(after_ms, limit, 30)
        self.seal(30, -1, heard=True)
        self.receive(after_ms, limit, 30)
        if len(self.listed.buckets) > self.limits.buckets:
            self.merge_two(heard=True)
        self.receive(0, limit, 30)

    @rule(after_ms=st.integers(0, 12), limit=st.integers(1, 8), read=st.integers(0, 30))
    def receive(self, after_ms: int, limit: int, read: int) -> None:
        """Take what is due and hand it to all; then each one reads on."""
        self.now_ms += after_ms
        self.take_over()
        before = {bucket.bucket_id for bucket in self.tracker.lost_buckets}
        expected = sorted((self.times[at], at) for at in self.tracked() if self.times[at] <= self.now_ms)[:limit]
        try:
            rows = take_due(self.tracker, self.now_ms, limit)
        except StoreUnavailable:
            assert self.snapshots.errors or self.snapshots.damaged
            return
        found = list(zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True))
        lost = {bucket.bucket_id for bucket in self.tracker.lost_buckets} - before
        if not lost and not self.unanswered():
            assert found == expected
        assert all(self.times[at] == time <= self.now_ms for time, at in found)
        positions = {at for _, at in found}
        assert len(positions) == len(found)
        assert not positions & self.taken
        self.taken |= positions
        for one in self.subscriptions:
            one.has |= positions
        self.rewind(self.tracker.pop_rewinds())
        for one in self.subscriptions:
            self.read(one, read)

    def read(self, one: _Subscription, count: int) -> None:
        for position, deliver_at_ms in self.log[one.at : one.at + count]:
            one.at += 1
            if self.tracker.contains(position) or position in one.has:
                continue
            if deliver_at_ms is None or deliver_at_ms <= self.now_ms:
                one.has.add(position)
                continue
            assert self.tracker.track_unless_due(position, deliver_at_ms)
            size = self.tracker.messages
            assert self.tracker.track_unless_due(position, deliver_at_ms)
            assert self.tracker.messages == size

    @precondition(lambda self: len(self.subscriptions) == 1 and len(self.log) > 8)
    @rule()
    def second_subscription_comes(self) -> None:
        self.subscriptions.append(_Subscription())

    @rule(kind=st.sampled_from(["crash", "clear", "build", "storage"]), number=st.integers(0, 3), heard=_HEARD)
    def trouble(self, kind: str, number: int, heard: bool) -> None:
        """What is rare; one rule, for else it would happen more often than all the rest."""
        if kind == "crash":
            self.crash(number + 1)
        elif kind == "clear":
            self.switch((), EARLIEST, heard)
        elif kind == "build":
            self.build(number, heard)
        else:
            self.storage_fails(number)

    def crash(self, every: int) -> None:
        """The tracker and what was not acknowledged are gone; reading begins at the first entry that is not."""
        for one in self.subscriptions:
            one.has = set(sorted(one.has)[::every])
            one.at = next((n for n, (at, _) in enumerate(self.log) if at not in one.has), len(self.log))
        try:
            self.restart()
        except StoreUnavailable:
            self.snapshots.errors.clear()
            self.restart()

    @rule()
    def reload(self) -> None:
        """A running tracker hears that the list changed, at any time after the change."""
        self.take_over()
        before, listed = self.tracked(), self.tracker.bucket_list
        try:
            self.rewind(self.tracker.load_list_and_pop_rewinds(self.listed))
        except StoreUnavailable:
            assert self.snapshots.errors
            assert (self.tracked(), self.tracker.bucket_list) == (before, listed)

    @rule(part=st.integers(1, 20), skew=st.integers(-2, 2), heard=_HEARD)
    def seal(self, part: int, skew: int, heard: bool) -> None:
        """Look through the log up to some segment's end."""
        behind = [one for one in self.log if one[0] > self.listed.sealed_to][:part]
        if not behind:
            return
        born, gathering = list[IndexBucket](), IndexBucketDraft(first=behind[0][0])
        for position, time in behind:
            wanted = time is not None and time > self.now_ms + skew
            gathering.add_segment(DelayedRows.from_messages([(time or 0, position)] if wanted else []), last=position)
            if gathering.is_full(self.limits):
                born.append(self.stored(gathering.merge_rows(), gathering.first, position))
                gathering = IndexBucketDraft(first=Position(position.ledger_id, position.entry_id + 1))
        if gathering.messages:
            born.append(self.stored(gathering.merge_rows(), gathering.first, behind[-1][0]))
        self.switch((*self.listed.buckets, *born), behind[-1][0], heard)

    def stored(self, rows: DelayedRows, first: Position, last: Position) -> IndexBucket:
        self.next_id += 1
        return self.snapshots.put(self.next_id, rows, first, last)

    def switch(self, buckets: tuple[IndexBucket, ...], sealed_to: Position, heard: bool) -> None:
        gone = {one.bucket_id for one in self.listed.buckets} - {one.bucket_id for one in buckets}
        for bucket_id in gone:
            self.snapshots.files.pop(bucket_id, None)
        self.listed = IndexBucketList(version=self.listed.version + 1, sealed_to=sealed_to, buckets=buckets)
        if heard:
            self.reload()

    @rule(heard=_HEARD)
    def merge_two(self, heard: bool) -> None:
        pair = find_pair_to_merge(self.listed.buckets)
        if pair is None:
            return
        try:
            sources = [self.rows_of(bucket) for bucket in pair]
        except (CorruptData, KeyError):
            return
        except StoreUnavailable:
            return
        from_ms = self.now_ms - _SLACK_MS
        merged = DelayedRows.concatenate(list(merge_sorted_sources([iter(rows) for rows in sources], from_ms=from_ms)))
        pending = DelayedRows.merge([DelayedRows.concatenate(rows) for rows in sources])
        assert merged == pending.slice(pending.count_due(from_ms - 1))
        born = (self.stored(merged, pair[0].first, pair[1].last),) if len(merged) else ()
        at = self.listed.buckets.index(pair[0])
        self.switch((*self.listed.buckets[:at], *born, *self.listed.buckets[at + 2 :]), self.listed.sealed_to, heard)

    def rows_of(self, bucket: IndexBucket) -> list[DelayedRows]:
        if bucket.bucket_id not in self.snapshots.files:
            raise KeyError
        return [self.snapshots.read_segment(bucket, number) for number in range(bucket.segments)]

    @rule(heard=_HEARD)
    def drop_passed(self, heard: bool) -> None:
        kept = tuple(one for one in self.listed.buckets if one.last_ms > self.now_ms - _SLACK_MS)
        if len(kept) < len(self.listed.buckets):
            self.switch(kept, self.listed.sealed_to, heard)

    def build(self, cut: int, heard: bool) -> None:
        """All buckets anew, from the whole log, by a clock that is behind: what was taken meanwhile may come again."""
        rows = [(time, at) for at, time in self.log if time is not None and time > self.now_ms - 2]
        parts = [rows[:cut], rows[cut:]] if cut else [rows]
        born = tuple(self.stored(DelayedRows.from_messages(part), part[0][1], part[-1][1]) for part in parts if part)
        self.taken -= {at for time, at in rows if time <= self.now_ms}
        self.switch(born, self.log[-1][0] if self.log else EARLIEST, heard)

    def storage_fails(self, number: int) -> None:
        """A snapshot vanishes, its footer or one of its segments cannot be read, or nobody answers."""
        if not self.listed.buckets:
            return
        bucket_id = self.listed.buckets[-1].bucket_id
        if number == 0:
            self.snapshots.files.pop(bucket_id, None)
        elif number == 1:
            self.snapshots.errors[bucket_id] = CorruptData("damaged")
        elif number == 2:
            self.snapshots.damaged[(bucket_id, 1)] = CorruptData("damaged")
        else:
            self.snapshots.errors[bucket_id] = StoreUnavailable("nobody answers")
            self.snapshots.damaged[(self.listed.buckets[0].bucket_id, 0)] = StoreUnavailable("nobody answers")

    @precondition(lambda self: self.snapshots.errors or self.snapshots.damaged)
    @rule()
    def mend(self) -> None:
        """All that is there can be read."""
        self.snapshots.errors.clear()
        self.snapshots.damaged.clear()

    def unanswered(self) -> bool:
        errors = [*self.snapshots.errors.values(), *self.snapshots.damaged.values()]
        return any(isinstance(error, StoreUnavailable) for error in errors)

    def tracked(self) -> set[Position]:
        return {
            Position(ledger_id, entry) for ledger_id, bits in self.tracker.tracked_entries().items() for entry in bits
        }

    @invariant()
    def counts_equal_sets(self) -> None:
        tracked = self.tracked()
        assert len(tracked) == self.tracker.messages
        assert all(self.tracker.contains(position) for position in tracked)
        assert not tracked & self.taken
        assert tracked <= self.times.keys()
        next_ms = self.tracker.next_ms()
        assert not tracked or (next_ms is not None and next_ms <= min(self.times[position] for position in tracked))

    def teardown(self) -> None:
        """In the end every subscription has every message, and settled buckets are not more than the limit."""
        if not hasattr(self, "log"):
            return
        self.mend()
        last_ms = max([self.now_ms, *self.times.values()])
        while self.now_ms <= last_ms:
            self.now_ms += 3
            for _ in range(len(self.log) + 1):
                self.receive(0, 4, len(self.log))
        for one in self.subscriptions:
            assert one.has == {position for position, _ in self.log}
        assert not self.tracked()
        assert self.tracker.memory_bytes <= 400 * len(self.taken) + 400
        self.settle()

    def settle(self) -> None:
        """Merging brings any number of buckets to any limit."""
        self.snapshots = Snapshots()
        self.now_ms = 0
        self.listed = replace(self.listed, buckets=(), sealed_to=EARLIEST)
        self.append([50] * 7, roll=True)
        self.seal(10_000, 0, heard=False)
        while len(self.listed.buckets) > self.limits.buckets:
            self.merge_two(heard=False)
        assert self.listed.messages == sum(1 for time in self.times.values() if time > 0)


def test_no_delayed_message_is_lost_early_or_handed_out_twice() -> None:
    """In any order of what happens to its topic."""
    run_state_machine(Delivery, 0, examples=100, steps=40)


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(1, 5))
def test_no_delayed_message_is_lost_early_or_handed_out_twice_however_long(number: int) -> None:
    """The same, with more and longer examples."""
    run_state_machine(Delivery, number, examples=300, steps=60)  # 1,000 take a quarter of an hour
