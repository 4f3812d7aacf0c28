"""Promise 5: durable deletes survive the loss of the database.

The rebuilt catalog must have every entry whose append succeeded, even an entry that was not flushed.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from logstore.errors import ServiceFailed
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton
from workers.demo.direct_store_access import DirectStoreAccess
from workers.demo.promise_report import PromiseResult, create_topic_with_subscriptions
from workers.demo.temporary_homes import WAIT_TIMEOUT_S, wait_until
from workers.settings import Settings

_CLOSED_LEDGERS: Final = 6
_SUBSCRIPTION: Final = "billing"
_APPEND_PAUSE_S: Final = 0.01

EntryPosition = tuple[int, int]


@dataclass(slots=True)
class LostDatabaseEvidence:
    topic: Topic
    answered_payloads: dict[EntryPosition, bytes] = field(default_factory=dict)  # by position of each successful append
    durably_deleted: list[LedgerId] = field(default_factory=list)
    plainly_deleted: list[LedgerId] = field(default_factory=list)
    unflushed_entries: int = 0  # number of entries that were appended after the last flush
    rebuild_result: dict[str, Any] = field(default_factory=dict)  # JSON output of `sexton records rebuild`


async def lose_and_rebuild_database(
    settings: Settings, end_worker: Callable[[], object], say: Callable[[str], None]
) -> LostDatabaseEvidence:
    """Delete ledgers and flush. Then remove the database while a writer appends, and run `sexton records rebuild`."""
    with open_log_store(settings) as log:
        loss = _write_topic_with_closed_ledgers(log)
    async with await Sexton.connect(settings) as sexton:
        await _delete_ledgers_durably_and_plainly(sexton, loss)
        await (await sexton.flush_records("demo", "sexton demo")).result()
    flushed_count = len(loss.answered_payloads)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(_append_until_ended, settings, loss, ended)
        await wait_until(lambda: len(loss.answered_payloads) > flushed_count + 10 or writer.done())
        end_worker()
        say("removing the whole database while a writer is at work")
        _remove_database(settings)
        ended.set()
        _await_writer_ignoring_errors(writer)
    loss.unflushed_entries = len(loss.answered_payloads) - flushed_count
    say("rebuilding it from the record log and from what storage holds")
    loss.rebuild_result = _run_rebuild_command(settings)
    return loss


def check_rebuilt_catalog(store_access: DirectStoreAccess, loss: LostDatabaseEvidence) -> PromiseResult:
    """Check that durably deleted ledgers are in no table and no bucket, and that other entries are readable."""
    problems: list[str] = []
    contents, ledger_ids = store_access.list_objects(), store_access.read_ledger_ids()
    for ledger_id in loss.durably_deleted:
        problems += [f"ledger {ledger_id}, deleted durably, has returned"] if ledger_id in ledger_ids else []
        problems += [f"{key} is still there" for key in contents.keys_of_ledger(ledger_id)]
    lost_tombstones = set(loss.durably_deleted) - store_access.read_tombstones()
    problems += [f"tombstone of {ledger_id} is lost" for ledger_id in sorted(lost_tombstones)]
    relisted = store_access.read_listed_ledgers(loss.topic.topic_id) & set(loss.plainly_deleted)
    problems += [f"ledger {ledger_id}, deleted plainly, is listed again" for ledger_id in sorted(relisted)]
    payloads = store_access.read_entries(loss.topic.topic_id)
    deleted = {*loss.durably_deleted, *loss.plainly_deleted}
    problems += [
        f"entry {position} was answered and is not readable as it was"
        for position, payload in loss.answered_payloads.items()
        if position[0] not in deleted and payloads.get(position) != payload
    ]
    problems += ["the writer was not at work when the database went"] if not loss.unflushed_entries else []
    missing = loss.rebuild_result["missing_data"]
    problems += [f"{missing} ledgers lack data, as the rebuild says"] if missing else []
    records, segments = loss.rebuild_result["records"], loss.rebuild_result["adopted_segments"]
    evidence = (
        f"database lost and rebuilt: {records} records, {segments} segments adopted;"
        f" {len(loss.durably_deleted)} ledgers deleted durably stay gone; all {len(loss.answered_payloads)} answered"
        f" entries accounted for, {loss.unflushed_entries} of them in no flush"
    )
    return PromiseResult.from_problems("5 a durable delete never returns", problems, evidence)


def _write_topic_with_closed_ledgers(log: LogStore) -> LostDatabaseEvidence:
    loss = LostDatabaseEvidence(topic=create_topic_with_subscriptions(log, "records", _SUBSCRIPTION))
    for number in range(_CLOSED_LEDGERS):
        last = _append_entry(log, loss, b"ledger %d" % number)
        log.topic_logs.roll(loss.topic)
        (loss.durably_deleted if number < _CLOSED_LEDGERS // 2 else loss.plainly_deleted).append(LedgerId(last[0]))
    last = _append_entry(log, loss, b"behind")
    log.subscriptions.acknowledge(loss.topic.topic_id, _SUBSCRIPTION, up_to=Position(LedgerId(last[0]), last[1]))
    return loss


def _append_entry(log: LogStore, loss: LostDatabaseEvidence, payload: bytes) -> EntryPosition:
    result = log.topic_logs.append(loss.topic, ProducedEntries(entries=[NewEntry(payload=payload)]))
    if result.first is None:
        raise ServiceFailed("demo", "an append was taken for a duplicate", advice="run it again")
    position = (int(result.first.ledger_id), result.first.entry_id)
    loss.answered_payloads[position] = payload
    return position


async def _delete_ledgers_durably_and_plainly(sexton: Sexton, loss: LostDatabaseEvidence) -> None:
    await (await sexton.flush_records("demo", "sexton demo")).result()
    deletion = await sexton.delete_ledgers(loss.topic, loss.durably_deleted, reason="demo", actor="sexton demo")
    await deletion.result()
    await (await sexton.trim_topic(loss.topic, reason="demo", actor="sexton demo")).result()


def _append_until_ended(settings: Settings, loss: LostDatabaseEvidence, ended: threading.Event) -> None:
    with open_log_store(settings) as log:
        number = 0
        while not ended.wait(_APPEND_PAUSE_S):
            _append_entry(log, loss, b"late %d" % number)
            number += 1


def _await_writer_ignoring_errors(writer: "Future[None]") -> None:
    fault = writer.exception(timeout=WAIT_TIMEOUT_S)
    if fault is not None and not isinstance(fault, Exception):
        raise fault


def _remove_database(settings: Settings) -> None:
    path = Path(unquote(settings.database_url.removeprefix("sqlite:///")))
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


def _run_rebuild_command(settings: Settings) -> dict[str, Any]:
    other_env = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    argv = [sys.executable, "-m", "workers", "--home", str(settings.home), "--json"]
    completed = subprocess.run(
        [*argv, "records", "rebuild", "--into", settings.database_url],
        cwd=settings.home,
        env=other_env | settings.environment(),
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=False,
    )
    if completed.returncode:
        error = completed.stderr[-500:].strip()
        raise ServiceFailed("sexton records rebuild", error, advice="read what it says")
    result: dict[str, Any] = json.loads(completed.stdout)
    return result
