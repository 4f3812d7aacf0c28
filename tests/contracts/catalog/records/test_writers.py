"""Many writers at once, and a flusher beside them: versions rise as changes are committed, and none is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.positions import LedgerId, TopicId
from logstore.records.record_kinds import RecordKind
from tests.contracts.catalog.records.steps import Key, Version, flush, of
from tests.contracts.catalog.steps import acknowledge, append, filled, new_topic
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres

_WRITERS = 4
_WRITES = 12


def test_flushes_beside_writers_end_with_the_last_state_of_every_record(sql_world: SqlWorld) -> None:
    """Of each cursor the version with the highest number says what its row says: a later commit has a later one."""
    world, topic_id = sql_world, new_topic(sql_world).topic_id
    (shared,) = filled(world, topic_id, 1, entries=_WRITERS * _WRITES)
    world.catalog.cursors.create_subscription(topic_id, "shared", latest=False)
    own = [new_topic(world, f"persistent://a/b/own-{number}").topic_id for number in range(_WRITERS)]
    ledgers = [filled(world, one, 1)[0] for one in own]
    log: dict[Key, Version] = {}
    over = threading.Event()

    def keep() -> None:
        for key, row in flush(world).items():
            assert key not in log or row["version"] > log[key]["version"], "an older version came later"
            log[key] = row

    def flush_on() -> None:
        while not over.is_set():
            keep()

    def write(number: int) -> None:
        for turn in range(_WRITES):
            acknowledge(world, topic_id, "shared", (shared, number * _WRITES + turn))
            append(world, own[number], ledgers[number])

    with ThreadPoolExecutor(_WRITERS + 1) as pool:
        flusher = pool.submit(flush_on)
        writers = [pool.submit(write, number) for number in range(_WRITERS)]
        for one in writers:
            one.result(120)
        over.set()
        flusher.result(120)
    keep()
    _compare(world, log, topic_id, ledgers)


def _compare(world: SqlWorld, log: dict[Key, Version], topic_id: TopicId, ledgers: list[LedgerId]) -> None:
    (row,) = world.sql("SELECT cursor_id, mark_ledger, mark_entry FROM cursor WHERE topic_id = :id", id=topic_id)
    told = log[of(RecordKind.CURSOR, row.cursor_id)]
    assert (told["mark_ledger"], told["mark_entry"]) == (row.mark_ledger, row.mark_entry)
    assert row.mark_entry == _WRITERS * _WRITES - 1
    for ledger_id in ledgers:
        numbers = sorted(int(sub) for kind, found, sub in log if (kind, found) == ("segment", ledger_id))
        assert numbers == list(range(_WRITES + 1))
