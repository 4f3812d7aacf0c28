"""What the record log and storage give back at the end of a soak: a replica's rows, and a catalog that was lost."""

import random
import time
from collections.abc import Mapping, Sequence
from subprocess import TimeoutExpired
from typing import Final

from logstore.log.entries import NewEntry, ProducedEntries
from tests.soak.soak_processes import REBUILT_DATABASE, Ground
from tests.soak.soak_setup import LIST_TOPICS, OperationJournal
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

EntriesByTopic = Mapping[int, Sequence[tuple[tuple[int, int], str]]]
"""By topic id: positions and payloads that a reader of the product sees."""

_MAX_FOLLOW_TRIES: Final = 4
_WITHIN_S: Final = 600.0


def read_topics(settings: Settings, names: Sequence[str]) -> EntriesByTopic:
    """Every topic as the product reads it by this catalog."""
    with open_log_store(settings) as log:
        topics = [log.catalog.topics.get_topic(name) for name in names]
        return {
            topic.topic_id: [
                ((entry.position.ledger_id, entry.position.entry_id), (entry.payload or b"").decode())
                for entry in log.topic_logs.scan(topic)
            ]
            for topic in topics
        }


def flush_and_ship(ground: Ground) -> None:
    """Nobody else is at work any more: what the last jobs have changed, also into the replica's bucket."""
    with open_log_store(ground.direct) as log:
        log.records.flusher.flush(cursors=True)
        for name in log.records.replication.replica_names:
            log.records.replication.ship_to_replica(name)


def bring_replica_up_to_date(ground: Ground) -> list[str]:
    """Bring the replica to the newest manifest; why not, if it does not come there."""
    code: int | None = None
    for _ in range(_MAX_FOLLOW_TRIES):
        process = ground.command(*ground.following(*(["--seed"] if code == 3 else [])))  # raids had not waited
        try:
            code = process.wait(_WITHIN_S)
        except TimeoutExpired:
            process.kill()
            return [f"`records follow` did not end within {_WITHIN_S:.0f} s"]
        if code == 0:
            return []
    return [f"`records follow` ended with {code}, {_MAX_FOLLOW_TRIES} times"]


def append_entries_without_flush(ground: Ground, ops: OperationJournal) -> None:
    """Entries that no block of the record log knows: a rebuild must find them in storage."""
    with open_log_store(ground.direct) as log:
        for name in LIST_TOPICS:
            payloads = [f"unflushed {name} {number}" for number in range(3)]
            with ops.record_operation("append", topic=name, payloads=payloads) as answer:
                entries = [NewEntry(payload=payload.encode()) for payload in payloads]
                appended = log.topic_logs.append(log.catalog.topics.get_topic(name), ProducedEntries(entries=entries))
                assert appended.first
                answer |= {"first": (appended.first.ledger_id, appended.first.entry_id), "duplicates": 0}


def rebuild_with_kills(ground: Ground, seed: int) -> list[str]:
    """Rebuild the catalog into a database of its own, by a command that is killed twice; why not, if it fails."""
    dice = random.Random(seed)
    command = (
        "records",
        "rebuild",
        "--take-over",
    )  # nobody is at work, but Temporal tells of killed workers for a while
    argv = ("workers", "--home", str(ground.home), *command, "--into", ground.database(REBUILT_DATABASE))
    for run_s in (dice.uniform(2, 8), dice.uniform(8, 20)):
        process = ground.command(*argv)
        give_up = time.monotonic() + run_s
        while process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.2)
        if process.poll() is not None:
            return [f"`records rebuild` ended with {process.returncode}"] if process.returncode else []
        process.kill()
        process.wait()
    process = ground.command(*argv)
    try:
        code = process.wait(_WITHIN_S)
    except TimeoutExpired:
        process.kill()
        return [f"`records rebuild` did not end within {_WITHIN_S:.0f} s"]
    return [f"`records rebuild` ended with {code}"] if code else []
