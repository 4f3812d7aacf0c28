"""What a soak works on: its topics, its settings, and where in its home everything is."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from logstore.deletion.retention import RetentionPolicy
from tests.ownership.journal import EventJournal, JournalFileReader
from workers.assembly.log_store import LogStore

_TOPIC_PREFIX: Final = "persistent://soak/main/"
PLAIN_TOPICS: Final = tuple(f"{_TOPIC_PREFIX}plain-{number}" for number in range(3))
"""Consumed and trimmed. Deletes of the second are durable by default, those of the third plain."""

LIST_TOPICS: Final = tuple(f"{_TOPIC_PREFIX}list-{name}" for name in "abc")
"""Transactions write to them; nobody consumes them, so nothing of them may ever go."""

SOURCE_TOPIC: Final = f"{_TOPIC_PREFIX}source"
"""Transactions acknowledge entries of it, in the subscription `CONSUMED`."""

DELAYED_TOPICS: Final = tuple(f"{_TOPIC_PREFIX}delayed-{number}" for number in range(2))
"""Consumed, and most messages are to be delivered later."""

LASTING_TOPICS: Final = (*PLAIN_TOPICS, *LIST_TOPICS, SOURCE_TOPIC, *DELAYED_TOPICS)
"""All topics but those that are made for one job."""

CONSUMING_SUBSCRIPTION: Final = "s"
SOUGHT_SUBSCRIPTION: Final = "sought"
"""The subscription of each topic in `DELAYED` that is set back and forth."""

HOLDING_SUBSCRIPTION: Final = "hold"
"""A subscription that never acknowledges: it keeps what it stands before."""

SPARE_TOPIC_PREFIX: Final = f"{_TOPIC_PREFIX}spare-"
"""How the names of topics begin that are made for one job each."""

REPLICA_BUCKET: Final = "soak-copy"
"""Where copies of the record log go."""

_PHASE_FILE: Final = "phase"
_JOURNALS_FOLDER: Final = "journals"

SOAK_SETTINGS: Final[dict[str, object]] = {
    "session_timeout": 4,
    "bundles": 16,
    "deletion_retry_interval": 2,
    "deletion_chunk": 20,
    "deletion_parallelism": 2,
    "sweep_interval": 5,
    "trim_interval": 15,
    "transaction_coordinators": 4,
    "delayed_interval": 10,
    "delayed_messages": 200,
    "delayed_ledgers": 20,
    "delayed_idle": 20,
    "delayed_buckets": 4,
    "records_interval": 1,
    "records_cursor_interval": 3,
    "defragment_interval": 60,
    "raid_interval": 45,
    "eligible_age": 30,
    "replica_buckets": REPLICA_BUCKET,
    "replicate_interval": 7,
    "functions": "tests.soak.record_functions:every_other",
    "plan_interval": 0,
    "ledger_max_entries": 120,
    "ledger_max_age": 30,
    "cursor_inline_bytes": 256,
    "registration_timeout": 30,
    "offload_timeout": 60,
    "spark_master": "local[1]",
    "drain_timeout": 5,
    "metrics_address": "off",
    "http_address": "127.0.0.1:0",
    "log_level": "WARNING",
}
"""Settings under which ten minutes see what days see else: small ledgers, short intervals, few coordinators."""


def create_lasting_topics(log: LogStore) -> None:
    """Create the lasting topics with their subscriptions."""
    for number, name in enumerate(PLAIN_TOPICS):
        log.catalog.topics.create_topic(name, RetentionPolicy(), durable_delete=(None, True, False)[number])
    for name in (*LIST_TOPICS, SOURCE_TOPIC, *DELAYED_TOPICS):
        log.catalog.topics.create_topic(name, RetentionPolicy())
    for name in LASTING_TOPICS:
        topic = log.catalog.topics.get_topic(name)
        other_subscriptions = (
            ()
            if name in PLAIN_TOPICS
            else (SOUGHT_SUBSCRIPTION,)
            if name in DELAYED_TOPICS
            else (HOLDING_SUBSCRIPTION,)
        )
        for subscription in (CONSUMING_SUBSCRIPTION, *other_subscriptions):
            log.subscriptions.subscribe(topic.topic_id, subscription, latest=False)


def write_phase(home: Path, new_phase: str) -> None:
    """Tell the clients what to do: `work`, `drain` (write nothing new, consume all), or `end`."""
    new_file = home / f"{_PHASE_FILE}.new"
    new_file.write_text(new_phase, encoding="utf-8")
    new_file.rename(home / _PHASE_FILE)


def read_phase(home: Path) -> str:
    """What clients are to do."""
    return (home / _PHASE_FILE).read_text(encoding="utf-8")


class OperationJournal(EventJournal):
    """What one process asked for and what it was answered. A file of its own: death cuts off its last line alone."""

    def __init__(self, home: Path, name: str) -> None:
        """Begin the journal of a process; names are unique."""
        folder = home / _JOURNALS_FOLDER
        folder.mkdir(exist_ok=True)
        super().__init__(folder / f"{name}.jsonl")
        self.name, self._count = name, 0

    @contextmanager
    def record_operation(self, kind: str, **request: Any) -> Iterator[dict[str, Any]]:
        """Say what is asked for; what the block puts into the mapping is the answer. What it raises is the failure."""
        with self._lock:
            self._count += 1
            operation_id = f"{self.name}/{self._count}"
        answer: dict[str, Any] = {}
        self.say("asked", op=operation_id, kind=kind, wall=time.time(), **request)
        try:
            yield answer
        except BaseException as error:
            text = f"{error} ({error.__cause__})" if error.__cause__ else str(error)
            self.say(
                "failed", op=operation_id, kind=kind, wall=time.time(), error=type(error).__name__, text=text[:500]
            )
            raise
        self.say("done", op=operation_id, kind=kind, wall=time.time(), **answer)


class JournalsReader:
    """All journals of a home, read as they grow; several readers may look at once."""

    def __init__(self, home: Path, name_pattern: str = "*") -> None:
        """Of every process, or of those whose names match."""
        self._home, self._only = home, name_pattern
        self._reads: dict[Path, JournalFileReader] = {}

    def entries(self) -> list[dict[str, Any]]:
        """Everything said until now, in no order between processes."""
        for path in sorted((self._home / _JOURNALS_FOLDER).glob(f"{self._only}.jsonl")):
            self._reads.setdefault(path, JournalFileReader(path))
        return [entry for read in self._reads.values() for entry in read.entries()]


def write_json(path: Path, document: object) -> None:
    """Write a document for people and programs."""
    path.write_text(json.dumps(document, indent=1, sort_keys=True, default=str) + "\n", encoding="utf-8")
