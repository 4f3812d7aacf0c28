"""The way of delayed messages: sealed bucket by bucket, merged, dropped, cleared, sealed anew, and built from the log.

`judge` looks from outside, through snapshots: what a topic's list covers, its buckets hold, each message once, wherever
a process has died.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, Final, Self

from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_build_job import BuiltIndexFiles, BuiltTopicIndex
from logstore.delayed.snapshot_file import IndexSnapshotWriter
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import Component, LedgerStatement
from logstore.positions import Position, TopicId
from tests.faults.auditor import ExpectedTopic
from tests.faults.main_job_operators import TEST_CAUSE, MainJobOperators
from tests.faults.simulated_world import PART_BYTES
from tests.faults.topic_plans import BUCKET_LIMITS, TopicPlan
from workflows.delayed.build_delayed_index import BuildDelayedIndex
from workflows.delayed.job_definitions import (
    BUILD_DELAYED_INDEX,
    SEAL_BUCKETS,
    BuildDelayedIndexInput,
    SealBucketsInput,
)
from workflows.delayed.seal_buckets import SealBuckets

_SUBSCRIPTION: Final = "reader"  # without one, a log is trimmed, and buckets with it
_MERGED, _CLEARED = (
    TopicPlan(name=f"persistent://shop/main/{name}", ledgers=0, acknowledged={_SUBSCRIPTION: 0})
    for name in ("reminders", "alarms")
)
DELAYED_PLANS: Final = (_MERGED, _CLEARED)
_DUE_MS: Final = 4_000_000_000_000  # in the year 2096
_MAX_SEAL_ROUNDS: Final = 5
"""After which nothing is due any more; else `judge` says what is missing."""

_SEAL_COUNT: Final = 4  # of the first topic, each with a bucket


class DelayedMessageOperators(MainJobOperators):
    """Programs that delay messages, and the workflows that index them."""

    @property
    def expected(self) -> dict[str, ExpectedTopic]:
        """Nothing of what the auditor counts. See `judge`."""
        return {}

    def delay(self) -> Self:
        """All of it, and what must be so in the end."""
        self.world.store.part_bytes = PART_BYTES  # snapshots go in parts
        return self.drive(
            self._seal_until_merged,
            self._let_bucket_pass_and_drop,
            self._retire_and_seal_again,
            self._build_index,
            self._check_buckets,
        ).sweep()

    def again(self) -> Self:
        """Seal all once more: there is nothing left to do."""
        self._turn += 1
        return self.drive(partial(self._seal_all, "again"), self._check_buckets).sweep()

    def sweep(self) -> Self:
        """See `Operators`; then nothing is left of uploads that died, either."""
        swept = self.drive(lambda: self.trim_topics_separately("sweep", DELAYED_PLANS), registration_timeout_s=-1)
        self.wrong += [f"{key}: parts are left" for key in sorted(self.world.store.unfinished)]
        return swept

    def _enter(self) -> None:
        super()._enter()
        if self.crashes and f"create {_MERGED.name}" in self.memory:
            self.wrong += [
                f"after {self.crashes[-1]}: {sentence}" for sentence in self._find_unindexed_messages(_MERGED)
            ]

    # -- what programs and operators do

    def _seal_until_merged(self) -> None:
        """A bucket for each of some messages: with the third one they are too many, and are merged."""
        for plan in DELAYED_PLANS:
            self._client(f"subscribe {plan.name}", partial(self._subscribe, self._topic(plan), _SUBSCRIPTION))
        self._client("once upload", self._let_an_upload_die)
        for number in range(_SEAL_COUNT):
            self._say(_MERGED, number)
            if number == 1:
                topic = self._topic(_MERGED)
                self._client("roll", lambda: self._process.topic_logs.roll(topic))  # noqa: B023 - called here
            self._seal_merged_topic(number)

    def _let_bucket_pass_and_drop(self) -> None:
        """Two messages are enough for a bucket; it passes, and is dropped."""
        for number in range(BUCKET_LIMITS.messages):
            self._say(_CLEARED, number)
        self._seal_all("first")
        self._client("pass", self._make_buckets_due)
        self._seal_all("dropping")

    def _retire_and_seal_again(self) -> None:
        """All buckets of the topic are retired, and its log is looked through from the beginning."""
        for number in range(BUCKET_LIMITS.messages):
            self._say(_CLEARED, 10 + number)
        self._seal_all("second")
        topic_id = self._topic(_CLEARED).topic_id
        self._client("once clear", lambda: self._process.catalog.delayed.retire_all_buckets(topic_id, reason="tests"))
        self._seal_all("anew")

    def _build_index(self) -> None:
        """The index of one topic is built from its log, in the place of all its buckets."""
        self.world.bulk.indexes = self._write_built_index
        request = BuildDelayedIndexInput(run_id="indexes-1", **TEST_CAUSE)
        self._start("build", BuildDelayedIndex, request, BUILD_DELAYED_INDEX.id(request.run_id))
        self._work()

    def _write_built_index(self, files: BuiltIndexFiles) -> list[BuiltTopicIndex]:
        """What a bulk job makes of the topic: one bucket."""
        topic = self._topic(_CLEARED)
        listed = self._process.catalog.delayed.get_bucket_list(topic.topic_id)
        entries = list(self._process.topic_logs.scan(topic))
        first_position, last_position = entries[0].position, entries[-1].position
        rows = [(one.deliver_at_ms, one.position) for one in entries if one.deliver_at_ms is not None]
        writer = IndexSnapshotWriter(files.snapshot_path("one.parquet"), topic.topic_id, first_position, last_position)
        writer.add_rows(DelayedRows.from_messages(rows))
        writer.close()
        return [
            BuiltTopicIndex(
                topic_id=topic.topic_id,
                expected_version=listed.version,
                removed=tuple(one.bucket_id for one in listed.buckets),
                sealed_to=last_position,
                files=("one.parquet",),
            )
        ]

    def _say(self, plan: TopicPlan, number: int) -> None:
        """One message that is delayed and one that is not; later ones are due earlier."""
        delayed = NewEntry(payload=b"later", deliver_at_ms=_DUE_MS - number, sequence_id=0)
        produced = ProducedEntries(entries=[delayed, NewEntry(payload=b"now", sequence_id=1)], producer=f"p{number}")
        self._client(f"say {plan.name} {number}", partial(self._append, self._topic(plan), produced))

    def _seal_merged_topic(self, number: int) -> None:
        topic = self._topic(_MERGED)
        request = SealBucketsInput(topic_id=topic.topic_id, topic=topic.name, **TEST_CAUSE)
        self._lapse()
        self._start("seal", SealBuckets, request, f"{SEAL_BUCKETS.id(topic.topic_id)}-{number}")
        self._work()

    def _seal_all(self, name: str) -> None:
        """As the schedule does, again and again: what failed is due at the next look, once its claim has lapsed."""
        for look in range(_MAX_SEAL_ROUNDS):
            workflow_id = f"{SEAL_BUCKETS.id()}-{name}-{look}"  # a schedule appends its time
            self._start("seal all", SealBuckets, SealBucketsInput(**TEST_CAUSE), workflow_id)
            self._work()
            self._lapse()
            if not self._process.catalog.delayed.list_topics_with_work(BUCKET_LIMITS, after=TopicId(-1), limit=1):
                break

    def _lapse(self) -> None:
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            connection.execute("UPDATE delayed_index SET claim_until_us = 1 WHERE claim_until_us > 0")

    def _let_an_upload_die(self) -> None:
        """A creator died in mid-upload: its ledger is newborn, and storage keeps parts that no listing shows."""
        create, topic_id = self._process.catalog.components.create_component_ledger, self._topic(_MERGED).topic_id
        statement: LedgerStatement = create(topic_id, Component.DELAYED_INDEX, {}, application="sexton")
        self.world.store.unfinished.add(segment_key(statement.ledger_id, 0))

    def _make_buckets_due(self) -> None:
        with closing(sqlite3.connect(self.world.database)) as connection, connection:
            topic_condition = "topic_id = (SELECT topic_id FROM topic WHERE name = ?)"
            connection.execute(f"UPDATE delayed_bucket SET last_ms = 1 WHERE {topic_condition}", (_CLEARED.name,))

    # -- what must be so

    def _check_buckets(self) -> None:
        for plan in DELAYED_PLANS:
            self.wrong += self._find_unindexed_messages(plan)
        buckets = len(self._process.catalog.delayed.get_bucket_list(self._topic(_MERGED).topic_id).buckets)
        if buckets != BUCKET_LIMITS.buckets:
            self.wrong.append(f"{_MERGED.name}: expected {BUCKET_LIMITS.buckets} buckets, found {buckets}")
        built_messages = [
            bucket.messages
            for bucket in self._process.catalog.delayed.get_bucket_list(self._topic(_CLEARED).topic_id).buckets
        ]
        if built_messages != [2 * BUCKET_LIMITS.messages]:
            self.wrong.append(f"{_CLEARED.name}: expected one built bucket, found buckets of {built_messages} messages")
        message_count = sum(self._held(_CLEARED).values())
        if message_count != 2 * BUCKET_LIMITS.messages:
            self.wrong.append(f"{_CLEARED.name}: expected {2 * BUCKET_LIMITS.messages} messages, found {message_count}")

    def _find_unindexed_messages(self, plan: TopicPlan) -> Iterator[str]:
        """Messages that the list covers and that are not in exactly one bucket, with their own time."""
        sealed_to = self._process.catalog.delayed.get_bucket_list(self._topic(plan).topic_id).sealed_to
        stored = {(entry.deliver_at_ms, entry.position) for entry in self._process.topic_logs.scan(self._topic(plan))}
        expected = Counter(message for message in stored if message[0] is not None and message[1] <= sealed_to)
        bucket_messages = self._held(plan)
        if bucket_messages != expected:
            expected_text, text = sorted(expected, key=str), sorted(bucket_messages, key=str)
            yield f"{plan.name}: expected buckets of {expected_text}, found {text}"

    def _held(self, plan: TopicPlan) -> Counter[tuple[int | None, Position]]:
        messages: Counter[Any] = Counter()
        for bucket in self._process.catalog.delayed.get_bucket_list(self._topic(plan).topic_id).buckets:
            for rows in self._process.delayed.snapshots.iterate_rows(bucket):
                messages.update(zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True))
        return messages
