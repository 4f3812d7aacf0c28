"""Topics that the demo trims, the checks of its promises about them, and its report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Self

from logstore.catalog.deletion.phase_two_queue import PhaseTwoQueue
from logstore.deletion.intents import Outcome
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CorruptData, NotOwner
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.services import TopicLogs
from logstore.ownership import BundleId, Lease
from logstore.ports.catalog.deletion import IntentResult
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from logstore.validated_names import TopicName
from workers.assembly.log_store import LogStore
from workers.demo.direct_store_access import BucketContents, DirectStoreAccess
from workers.human_readable_values import select_fields

FenceByBundle = Mapping[int, tuple[int, str]]
"""Number of acquisitions, and the worker that acquired the bundle last, by bundle."""

_FLIP_POSITIONS = (0.1, 0.5, 0.9)  # as shares of an object's length
_NO_CHANGE: Final = IntentResult(
    row_id=-1, outcome=Outcome.DELETED
)  # a write that changes nothing, but needs a valid lease
_REFUSED_INTENT = ("DEAD_LETTERED", "METADATA_MISMATCH")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseResult:
    promise: str
    ok: bool
    seen: str

    @classmethod
    def from_problems(cls, promise: str, problems: Sequence[str], evidence: str) -> Self:
        return cls(promise=promise, ok=not problems, seen=problems[0] if problems else evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    promises: Sequence[PromiseResult]
    orphans: PromiseResult
    damage: PromiseResult  # result of the check with flipped bits
    counts: dict[str, int]
    ui: str
    home: str
    is_kept: bool  # the stack still runs
    seconds: float

    @property
    def ok(self) -> bool:
        return all(row.ok for row in (*self.promises, self.orphans, self.damage))

    @property
    def rows(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = [
            {"promise": row.promise, "held": "yes" if row.ok else "NO", "seen": row.seen}
            for row in (*self.promises, self.orphans, self.damage)
        ]
        rows.append(
            {"promise": "Web UI", "held": "", "seen": self.ui if self.is_kept else f"{self.ui} (--keep leaves it up)"}
        )
        if self.is_kept:
            stop = f"sexton --home {self.home} down && rm -r {self.home}"
            rows.append({"promise": "to stop it", "held": "", "seen": stop})
        return rows

    def to_json(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            **self.counts,
            "promises": [select_fields(row, "promise ok seen") for row in self.promises],
            "orphans": select_fields(self.orphans, "ok seen"),
            "flipped_bits": select_fields(self.damage, "ok seen"),
            **select_fields(self, "ui home"),
            "running": self.is_kept,
            "seconds": round(self.seconds, 1),
        }


_ENTRIES_PER_SEGMENT = 4
_SEGMENTS_PER_LEDGER = 3

AcknowledgementPlan = Callable[[int], dict[str, int]]
"""Function that takes the number of ledgers and returns how many of them each subscription acknowledges."""

_PLANS: tuple[tuple[str, AcknowledgementPlan], ...] = (
    ("all-read", lambda n: {"billing": n}),
    ("one-slow", lambda n: {"billing": n, "archive": n // 2}),
    ("unread", lambda _: {"audit": 0}),
)


@dataclass(slots=True)
class WrittenTopic:
    topic: Topic
    kind: str
    payloads: dict[LedgerId, list[bytes]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)  # number of acknowledged ledgers, by subscription
    contested: set[LedgerId] = field(default_factory=set)  # ledgers with a foreign object under their prefix

    @property
    def to_delete(self) -> list[LedgerId]:
        """Ledgers that every subscription has acknowledged, except the last ledger, which always stays."""
        return list(self.payloads)[: min(*self.acknowledged.values(), len(self.payloads) - 1)]

    @property
    def deletable(self) -> list[LedgerId]:
        """Ledgers in `to_delete` without a foreign object. Sexton must refuse to delete the other ledgers."""
        return [ledger_id for ledger_id in self.to_delete if ledger_id not in self.contested]

    @property
    def needed(self) -> list[LedgerId]:
        return list(self.payloads)[len(self.to_delete) :]


def create_topic_with_subscriptions(log: LogStore, name: str, *subscriptions: str) -> Topic:
    encoded = TopicName.parse(f"persistent://demo/shop/{name}").encoded
    topic = log.catalog.topics.create_topic(encoded, RetentionPolicy())
    for subscription in subscriptions:
        log.subscriptions.subscribe(topic.topic_id, subscription, latest=False)
    return topic


def count_deletable_ledgers(topics: int, ledgers: int) -> list[int]:
    plans = (_PLANS[number % len(_PLANS)][1] for number in range(topics))
    return [min(*plan(ledgers).values(), ledgers - 1) for plan in plans]


def write_topics(log: LogStore, *, topics: int, ledgers: int, say: Callable[[str], None]) -> Iterator[WrittenTopic]:
    for number in range(topics):
        kind, plan = _PLANS[number % len(_PLANS)]
        say(f"topic {number + 1} of {topics}: {ledgers} ledgers, {kind}")
        acknowledged = {name: min(count, ledgers) for name, count in plan(ledgers).items()}
        topic = create_topic_with_subscriptions(log, f"{kind}-{number}", *acknowledged)
        written = WrittenTopic(topic=topic, kind=kind, acknowledged=acknowledged)
        for index in range(ledgers):
            _write_ledger(log, written, index)
        _acknowledge_ledgers(log, written)
        yield written


def _write_ledger(log: LogStore, written: WrittenTopic, index: int) -> None:
    if index:
        log.topic_logs.roll(written.topic)  # there is no roll after the last ledger, which stays open
    for part in range(_SEGMENTS_PER_LEDGER):
        payloads = [f"{written.topic.name} {index} {part} {entry}".encode() for entry in range(_ENTRIES_PER_SEGMENT)]
        new_entries = [NewEntry(payload=payload) for payload in payloads]
        result = log.topic_logs.append(written.topic, ProducedEntries(entries=new_entries))
        if result.first is not None:  # None only for a duplicate, which needs a producer
            written.payloads.setdefault(result.first.ledger_id, []).extend(payloads)


def _acknowledge_ledgers(log: LogStore, written: WrittenTopic) -> None:
    for subscription, count in written.acknowledged.items():
        ledgers = list(written.payloads)[:count]
        if not ledgers:
            continue
        entry_count = len(written.payloads[ledgers[0]])
        positions = tuple(Position(ledgers[0], entry) for entry in reversed(range(entry_count)))
        last = Position(ledgers[-1], len(written.payloads[ledgers[-1]]) - 1)
        log.subscriptions.acknowledge(written.topic.topic_id, subscription, positions=positions)
        log.subscriptions.acknowledge(written.topic.topic_id, subscription, up_to=last)


def check_needed_ledgers(
    store_access: DirectStoreAccess, before: BucketContents, after: BucketContents, topics: Sequence[WrittenTopic]
) -> PromiseResult:
    """Check promise 1: needed ledgers are listed, their objects are unchanged, and all entries are readable."""
    problems: list[str] = []
    entry_count = 0
    for written in topics:
        unlisted = set(written.needed) - store_access.read_listed_ledgers(written.topic.topic_id)
        problems += [f"ledger {ledger_id} is not listed" for ledger_id in sorted(unlisted)]
        for ledger_id in written.needed:
            keys = before.keys_of_ledger(ledger_id)
            problems += [f"{key} changed" for key in keys if after.etags.get(key) != before.etags[key]]
            if store_access.read_payloads(ledger_id) != written.payloads[ledger_id]:
                problems.append(f"ledger {ledger_id} reads differently")
            entry_count += len(written.payloads[ledger_id])
    ledger_count = sum(len(written.needed) for written in topics)
    evidence = f"{ledger_count} ledgers untouched, all {entry_count} entries read back"
    return PromiseResult.from_problems("1 nothing in use is deleted", problems, evidence)


def check_deleted_ledgers(
    store_access: DirectStoreAccess, before: BucketContents, after: BucketContents, topics: Sequence[WrittenTopic]
) -> PromiseResult:
    """Check promise 2: detached ledgers are gone from list and storage, or are dead letters with a reason."""
    intents = store_access.read_intents()
    deletable = [ledger_id for written in topics for ledger_id in written.deletable]
    contested = [ledger_id for written in topics for ledger_id in sorted(written.contested)]
    problems = [f"{key} is still there" for ledger_id in deletable for key in after.keys_of_ledger(ledger_id)]
    for written in topics:
        still_listed = set(written.to_delete) & store_access.read_listed_ledgers(written.topic.topic_id)
        problems += [f"ledger {ledger_id} is still listed" for ledger_id in sorted(still_listed)]
    expected: dict[int, tuple[str, str | None]] = dict.fromkeys(deletable, ("DELETED", "DELETED"))
    expected |= dict.fromkeys(contested, _REFUSED_INTENT)
    for ledger_id in sorted({*expected, *intents}):
        intent = intents.get(ledger_id)
        # The killed worker may have deleted the objects before it died.
        was_gone = intent == ("DELETED", "ALREADY_GONE") and ledger_id in deletable
        if intent != expected.get(ledger_id) and not was_gone:
            problems.append(f"intent of ledger {ledger_id}: expected {expected.get(ledger_id)}, found {intent}")
    problems += [
        f"{key} of a refused ledger is gone"
        for ledger_id in contested
        for key in before.keys_of_ledger(ledger_id)
        if key not in after.etags
    ]
    refusals = f"; {len(contested)} refused, kept whole and listed as a dead letter" if contested else ""
    evidence = f"{len(deletable)} ledgers detached and deleted, 0 objects of them left{refusals}"
    text = problems[0] if problems else evidence
    return PromiseResult(promise="2 what is detached is deleted", ok=not problems and bool(deletable), seen=text)


def check_foreign_objects(before: BucketContents, after: BucketContents, planted: Sequence[str]) -> PromiseResult:
    problems = [f"{key} was touched" for key in planted if after.etags.get(key) != before.etags[key]]
    evidence = f"{len(planted)} objects of others untouched"
    return PromiseResult.from_problems("3 nothing of others is touched", problems, evidence)


def check_fences_after_takeover(deletions: PhaseTwoQueue, before: FenceByBundle, after: FenceByBundle) -> PromiseResult:
    """Check promise 7: leases of the killed worker are refused, and leases of the next bundle owner are accepted."""
    refused = sum(not _is_lease_accepted(deletions, *lease) for lease in before.items())
    accepted = sum(_is_lease_accepted(deletions, *lease) for lease in after.items())
    ok = refused == len(before) > 0 and accepted == len(after)
    dead_leases = f"{refused} of the killed worker's {len(before)}"
    live_leases = f"{accepted} of its successor's {len(after)}"
    evidence = f"{dead_leases} leases refused, {live_leases} accepted"
    return PromiseResult(promise="7 only the owner writes", ok=ok, seen=evidence)


def _is_lease_accepted(deletions: PhaseTwoQueue, bundle: int, fence: tuple[int, str]) -> bool:
    lease = Lease(bundle=BundleId(bundle), fence=fence[0], worker_id=fence[1])
    try:
        deletions.with_lease(lease).record_outcomes([_NO_CHANGE], holder="sexton demo")
    except NotOwner:
        return False
    return True


def check_crash_recovery(*, finished: int, unfinished: int, repeat_is_harmless: bool) -> PromiseResult:
    """Check promise 8: another worker finished the work of a killed worker, and a second trim changed nothing."""
    ok = unfinished > 0 and repeat_is_harmless
    repetition = "changed nothing" if repeat_is_harmless else "CHANGED SOMETHING"
    evidence = (
        f"worker killed with {finished} deletions done and {unfinished} to do; another went on; a second trim"
        f" {repetition}"
    )
    return PromiseResult(promise="8 survives kill -9, twice is once", ok=ok, seen=evidence)


def check_flipped_bits(store_access: DirectStoreAccess, log: TopicLogs, written: WrittenTopic) -> PromiseResult:
    """Check that a read of a segment with a flipped bit fails or returns the written entries."""
    ledger_id = written.needed[0]
    key = next(key for key in store_access.list_objects().keys_of_ledger(ledger_id) if key.endswith(".parquet"))
    refused_count, problem = 0, ""
    for part in _FLIP_POSITIONS:
        with store_access.flip_bit(key, part):
            try:
                is_right = _read_payloads(log, written, ledger_id) == written.payloads[ledger_id]
            except CorruptData:
                refused_count += 1
            else:
                problem = problem or ("" if is_right else f"{key} was read with a flipped bit")
    if _read_payloads(log, written, ledger_id) != written.payloads[ledger_id]:
        problem = problem or f"{key} was mended and reads differently"
    flips = f"{len(_FLIP_POSITIONS)} bits flipped in a segment in use"
    text = problem or f"{flips}: {refused_count} times refused, never read as another"
    return PromiseResult(promise="a flipped bit is never read", ok=not problem and refused_count > 0, seen=text)


def _read_payloads(log: TopicLogs, written: WrittenTopic, ledger_id: LedgerId) -> list[bytes]:
    entry_count = len(written.payloads[ledger_id])
    entries = log.scan(written.topic, from_position=Position(ledger_id, 0))
    return [entry.payload or b"" for entry in islice(entries, entry_count)]
