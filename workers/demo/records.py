"""Promise 5 and a lost database: ledgers are deleted durably and plainly, and the catalog's file is removed.

A writer goes on until the file is gone; what it was answered must be readable in the rebuilt catalog, also what no
flush of the record log has seen.
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

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import ServiceFailed
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.names import TopicName
from logstore.ports.catalog import Topic
from logstore.positions import LedgerId
from workers.assembly.adapters import open_log
from workers.assembly.log import LogStore
from workers.client import Sexton
from workers.demo.auditor import Auditor
from workers.demo.report import PromiseRow
from workers.demo.waiting import PATIENCE_S, happens
from workers.settings import Settings

_LEDGERS: Final = 6  # closed ones
_SUBSCRIPTION: Final = "billing"
_PAUSE_S: Final = 0.01  # between two appends of the writer

Position = tuple[int, int]


@dataclass(slots=True)
class Lost:
    """The entries and ledgers that there were, and the answer of the rebuild."""

    topic: Topic
    answered: dict[Position, bytes] = field(default_factory=dict)  # appends
    durable: list[LedgerId] = field(default_factory=list)  # deleted so
    plain: list[LedgerId] = field(default_factory=list)
    unflushed: int = 0  # of the answered entries
    told: dict[str, Any] = field(default_factory=dict)  # by the command


async def lose_and_rebuild(settings: Settings, end_worker: Callable[[], object], say: Callable[[str], None]) -> Lost:
    """Delete, flush, write on, remove the database under the writer, and rebuild it by the command."""
    with open_log(settings) as log:
        lost = _written(log)
    async with await Sexton.connect(settings) as sexton:
        await _deleted(sexton, lost)
        await (await sexton.flush_records("demo", "sexton demo")).result()
    flushed = len(lost.answered)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_write_on, settings, lost, ended)
        await happens(lambda: len(lost.answered) > flushed + 10 or writing.done())
        end_worker()
        say("removing the whole database while a writer is at work")
        _remove(settings)
        ended.set()
        _last(writing)
    lost.unflushed = len(lost.answered) - flushed
    say("rebuilding it from the record log and from what storage holds")
    lost.told = _rebuilt(settings)
    return lost


def check_records(auditor: Auditor, lost: Lost) -> PromiseRow:
    """What was deleted durably is not there, in no table and in no bucket; what was answered is, at its position."""
    wrong: list[str] = []
    stored, rows = auditor.stored(), auditor.ledgers()
    for ledger_id in lost.durable:
        wrong += [f"ledger {ledger_id}, deleted durably, has returned"] if ledger_id in rows else []
        wrong += [f"{key} is still there" for key in stored.of_ledger(ledger_id)]
    wrong += [f"tombstone of {one} is lost" for one in sorted(set(lost.durable) - auditor.tombstones())]
    listed = auditor.listed(lost.topic.topic_id)
    wrong += [f"ledger {one}, deleted plainly, is listed again" for one in sorted(listed & set(lost.plain))]
    entries = auditor.entries(lost.topic.topic_id)
    gone = {*lost.durable, *lost.plain}
    wrong += [
        f"entry {position} was answered and is not readable as it was"
        for position, payload in lost.answered.items()
        if position[0] not in gone and entries.get(position) != payload
    ]
    wrong += ["the writer was not at work when the database went"] if not lost.unflushed else []
    missing = lost.told["missing_data"]
    wrong += [f"{missing} ledgers lack data, as the rebuild says"] if missing else []
    seen = (
        f"database lost and rebuilt: {lost.told['records']} records, {lost.told['adopted_segments']} segments"
        f" adopted; {len(lost.durable)} ledgers deleted durably stay gone; all {len(lost.answered)} answered entries"
        f" accounted for, {lost.unflushed} of them in no flush"
    )
    return PromiseRow.of("5 a durable delete never returns", wrong, seen)


def _written(log: LogStore) -> Lost:
    name = TopicName.parse("persistent://demo/shop/records").encoded
    lost = Lost(topic=log.catalog.topics.create(name, RetentionPolicy()))
    log.subscriptions.subscribe(lost.topic.topic_id, _SUBSCRIPTION, latest=False)
    for number in range(_LEDGERS):
        last = _append(log, lost, b"ledger %d" % number)
        log.managed.roll(lost.topic)
        (lost.durable if number < _LEDGERS // 2 else lost.plain).append(LedgerId(last[0]))
    state = log.managed.append(lost.topic, ProducedEntries(entries=[NewEntry(payload=b"behind")]))
    if state.first is not None:
        lost.answered[int(state.first.ledger_id), state.first.entry_id] = b"behind"
        log.subscriptions.acknowledge(lost.topic.topic_id, _SUBSCRIPTION, up_to=state.first)
    return lost


def _append(log: LogStore, lost: Lost, payload: bytes) -> Position:
    done = log.managed.append(lost.topic, ProducedEntries(entries=[NewEntry(payload=payload)]))
    if done.first is None:
        raise ServiceFailed("demo", "an append was taken for a duplicate", advice="run it again")
    position = (int(done.first.ledger_id), done.first.entry_id)
    lost.answered[position] = payload
    return position


async def _deleted(sexton: Sexton, lost: Lost) -> None:
    """All versions are in blocks before, so that a plain delete could let them return."""
    await (await sexton.flush_records("demo", "sexton demo")).result()
    durably = await sexton.delete_ledgers(lost.topic, lost.durable, reason="demo", actor="sexton demo")
    await durably.result()
    await (await sexton.trim_topic(lost.topic, reason="demo", actor="sexton demo")).result()


def _write_on(settings: Settings, lost: Lost, ended: threading.Event) -> None:
    """Append until told to end; an append that fails was not answered."""
    with open_log(settings) as log:
        number = 0
        while not ended.wait(_PAUSE_S):
            _append(log, lost, b"late %d" % number)
            number += 1


def _last(writing: "Future[None]") -> None:
    """The writer ends; that its last append fails where the database has gone is to be expected."""
    fault = writing.exception(timeout=PATIENCE_S)
    if fault is not None and not isinstance(fault, Exception):
        raise fault


def _remove(settings: Settings) -> None:
    path = Path(unquote(settings.database_url.removeprefix("sqlite:///")))
    for end in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def _rebuilt(settings: Settings) -> dict[str, Any]:
    """The answer of the command; it is a process of its own, as an operator's is."""
    foreign = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    argv = [sys.executable, "-m", "workers", "--home", str(settings.home), "--json"]
    done = subprocess.run(
        [*argv, "records", "rebuild", "--into", settings.database_url],
        cwd=settings.home,
        env=foreign | settings.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise ServiceFailed("sexton records rebuild", done.stderr[-500:].strip(), advice="read what it says")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
