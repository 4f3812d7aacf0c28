"""Migrations: from empty they are the models; they race harmlessly; a newer catalog is left alone."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from infra.catalog import Database, SqlCatalog, check_version, upgrade
from infra.catalog.engine.versions import VERSIONS, _build_alembic_config
from infra.declared.models import metadata
from logstore.cursors.state import CursorState
from logstore.delayed.buckets import BucketLimits
from logstore.deletion.intents import DeletionState, Outcome
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogVersionMismatch, InvalidInput, ServiceFailed
from logstore.log.ledgers import CopyKind
from logstore.log.producers import ProducerSequence
from logstore.ownership import MAX_BUNDLES
from logstore.ports.catalog import (
    Acknowledge,
    Acknowledged,
    BucketSwitch,
    Cause,
    Claim,
    Ended,
    Inflight,
    Registered,
    RegisterSegment,
)
from logstore.positions import LedgerId, Position, TopicId
from tests.every_topic import every_topic
from tests.infra.catalog.first_release import (
    ACKNOWLEDGED,
    DEAD,
    DELETED,
    NAME,
    NEXT_LEDGER,
    RETRYING,
    STALLED,
    columns_of,
    make_first_release,
    migrate_to,
    rows_of,
)

Connect = Callable[..., Database]

_UPGRADE = """
import sys
from infra.catalog import Database, upgrade
database = Database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
upgrade(database)
database.close()
"""


def _differences(database: Database) -> list[object]:
    options = {"compare_type": True, "compare_server_default": True}
    return database.read(
        lambda connection: list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))
    )


def _tables(database: Database) -> set[str]:
    return database.read(lambda connection: set(inspect(connection).get_table_names()))


def _triggers(database: Database) -> set[tuple[str, ...]]:
    """Name and text of each trigger and, on PostgreSQL, of its function."""
    statement = (
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        if database.is_sqlite
        else "SELECT t.tgname, pg_get_triggerdef(t.oid), pg_get_functiondef(t.tgfoid) FROM pg_trigger t"
        " WHERE NOT t.tgisinternal"
    )
    return {tuple(row) for row in database.read(lambda connection: connection.execute(text(statement)).all())}


def _set_version(database: Database, version: str) -> None:
    database.write(lambda connection: connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'")))


def test_upgrade_from_empty_equals_the_models(url: str, connect: Connect) -> None:
    """The migrations and the models say the same, on both databases."""
    database = connect(url)
    upgrade(database)
    assert _differences(database) == []
    assert _tables(database) == {*metadata.tables, "alembic_version"}
    check_version(database)


def test_upgraded_catalog_has_the_triggers_of_a_new_one(url: str, connect: Connect, tmp_path: Path) -> None:
    """Those of the outbox: a migration that makes a table anew on SQLite loses its triggers without a word."""
    database = connect(url)
    make_first_release(database)
    upgrade(database)
    upgraded = _triggers(database)
    if database.is_sqlite:
        database = connect(f"sqlite:///{tmp_path / 'new.db'}")
    else:
        database.write(partial(_run, "DROP SCHEMA public CASCADE"))
        database.write(partial(_run, "CREATE SCHEMA public"))
    upgrade(database)
    assert upgraded == _triggers(database)
    assert len(upgraded) == 26, "a trigger was lost on both ways, or a new one is not counted here"


def test_upgrade_repeated_keeps_everything(url: str, connect: Connect) -> None:
    """Repeating it is harmless: one catalog row, same epoch, and what was stored stays."""
    database = connect(url)
    upgrade(database)
    topic = SqlCatalog(database).topics.create("persistent://a/b/c", RetentionPolicy())
    SqlCatalog(database).ledgers.create(topic.topic_id, application="sexton")
    upgrade(database)
    rows = database.read(lambda connection: connection.execute(text("SELECT epoch, next_ledger_id FROM catalog")).all())
    assert rows == [(1, 1)]
    assert every_topic(SqlCatalog(database).topics) == [topic]


def test_upgrade_three_processes_at_once_all_succeed(url: str, connect: Connect) -> None:
    """Whoever comes second finds it done, whichever process is first."""
    runs = [
        subprocess.Popen([sys.executable, "-c", _UPGRADE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write(b"\n")
        run.stdin.flush()
    for run in runs:
        run.communicate(timeout=60)
    assert [run.returncode for run in runs] == [0, 0, 0]
    database = connect(url)
    check_version(database)
    assert database.read(lambda connection: connection.execute(text("SELECT count(*) FROM catalog")).scalar_one()) == 1


def test_newer_catalog_is_refused_and_nothing_changes(url: str, connect: Connect) -> None:
    """An older build leaves a newer catalog alone, and says what to do."""
    database = connect(url)
    upgrade(database)
    _set_version(database, "9999")
    before = _tables(database)
    for ask in (upgrade, check_version):
        with pytest.raises(CatalogVersionMismatch, match="expected 0012, found 9999; it was written by a newer build"):
            ask(database)
    assert _tables(database) == before
    version = database.read(lambda connection: connection.execute(text("SELECT * FROM alembic_version")).scalar_one())
    assert version == "9999"


def test_check_version_empty_database_is_refused_and_stays_empty(url: str, connect: Connect) -> None:
    """Looking creates nothing."""
    database = connect(url)
    if database.is_sqlite:
        path = Path(str(database.engine.url.database))
        with pytest.raises(ServiceFailed, match=f"database: there is no file {path}; run `sexton up`"):
            check_version(database)
        assert database.is_absent
        database.make_folder()
        path.touch()
    with pytest.raises(CatalogVersionMismatch, match="found an empty database; run"):
        check_version(database)
    assert _tables(database) == set()


def test_versions_are_those_of_alembic() -> None:
    """The constant saves every command the import of Alembic, and must not lag behind."""
    scripts = ScriptDirectory.from_config(_build_alembic_config())
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(VERSIONS)
    assert scripts.get_current_head() == VERSIONS[-1]


def test_database_of_somebody_else_is_refused_and_left_as_it_is(url: str, connect: Connect) -> None:
    """Neither taken for a catalog nor made one, with an `alembic_version` of its own or without."""
    database = connect(url)
    database.make_folder()
    path = database.engine.url.database if database.is_sqlite else ":memory:"
    with closing(sqlite3.connect(str(path))) as foreign:
        for statement in ("CREATE TABLE invoice (id INTEGER)", "CREATE TABLE alembic_version (version_num TEXT)"):
            if database.is_sqlite:
                foreign.execute(statement)
            else:
                database.write(partial(_run, statement))
            for ask in (upgrade, check_version):
                with pytest.raises(ServiceFailed, match=r"database: .* holds tables that are no catalog's; nothing"):
                    ask(database)
        assert not database.is_sqlite or foreign.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert _tables(database) == {"invoice", "alembic_version"}


def _run(statement: str, connection: Connection) -> None:
    connection.execute(text(statement))


def test_check_version_older_catalog_is_refused(url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog of an earlier release is upgraded by choice, not by the way."""
    database = connect(url)
    upgrade(database)
    monkeypatch.setattr("infra.catalog.engine.versions.VERSIONS", (*VERSIONS, "0013"))
    with pytest.raises(CatalogVersionMismatch, match="expected 0013, found 0012; run"):
        check_version(database)


def _first_release(url: str, connect: Connect) -> SqlCatalog:
    """A catalog of the first release, upgraded to this build's version."""
    database = connect(url)
    make_first_release(database)
    upgrade(database)
    return SqlCatalog(database)


def test_upgrade_from_the_first_release_keeps_every_row(url: str, connect: Connect) -> None:
    """Every column of every row is as it was, and the schema is that of a new catalog."""
    database = connect(url)
    make_first_release(database)
    columns = columns_of(database)
    before = rows_of(database, columns)
    assert all(before.values()), "a table without rows shows nothing"
    with pytest.raises(CatalogVersionMismatch, match="found 0001; run"):
        check_version(database)
    upgrade(database)
    check_version(database)
    assert rows_of(database, columns) == before
    assert _differences(database) == []


@pytest.mark.parametrize("version", ["0001", "0002"])
def test_upgrade_gives_an_older_catalog_64_bundles_and_keeps_every_row(
    version: str, url: str, connect: Connect
) -> None:
    """Whatever a new one would get: its topics were hashed over nothing yet, and workers of any setting must agree."""
    database = connect(url)
    make_first_release(database)
    migrate_to(database, version)
    columns = columns_of(database)
    before = rows_of(database, columns)
    upgrade(database, bundles=8)
    check_version(database)
    assert rows_of(database, columns) == before
    assert _differences(database) == []
    assert _bundles(database) == 64


def test_upgrade_from_empty_takes_the_number_of_bundles_given_once(url: str, connect: Connect) -> None:
    """It is fixed when the catalog is created: a later upgrade with another number leaves it."""
    database = connect(url)
    upgrade(database, bundles=1_000)
    assert _bundles(database) == 1_000
    for number in (64, 1):
        upgrade(database, bundles=number)
        assert _bundles(database) == 1_000


def test_upgrade_from_empty_has_64_bundles_by_default(url: str, connect: Connect) -> None:
    """As every catalog from before bundles."""
    database = connect(url)
    upgrade(database)
    assert _bundles(database) == 64


@pytest.mark.parametrize("bundles", [0, -1, MAX_BUNDLES + 1])
def test_upgrade_with_an_impossible_number_of_bundles_creates_nothing(bundles: int, url: str, connect: Connect) -> None:
    """Bad input is refused before anything changes."""
    database = connect(url)
    with pytest.raises(InvalidInput, match=f"bundles: expected 1 to {MAX_BUNDLES}, found {bundles}"):
        upgrade(database, bundles=bundles)
    assert database.is_absent or _tables(database) == set()


def _bundles(database: Database) -> int:
    return database.read(lambda connection: int(connection.execute(text("SELECT bundles FROM catalog")).scalar_one()))


def test_segments_of_the_first_release_do_not_say_what_is_delayed(url: str, connect: Connect) -> None:
    """Nobody counted: a reader has to look; there is nothing to seal until a delayed message comes."""
    catalog = _first_release(url, connect)
    topic_id = catalog.topics.get(NAME).topic_id
    listed = catalog.ledgers.listed(topic_id)
    rows = [row for ledger in listed for row in catalog.ledgers.segments(ledger.ledger_id)]
    assert {row.delayed for row in rows} == {None}
    assert catalog.delayed.unsealed(topic_id).entries == 0
    assert catalog.delayed.due(BucketLimits(messages=1, ledgers=1), after=TopicId(0), limit=1) == []
    moved = BucketSwitch(topic_id=topic_id, expected=0, sealed_to=listed[-1].span.last)
    assert catalog.delayed.switch(moved)


def test_subscriptions_of_the_first_release_go_on(url: str, connect: Connect) -> None:
    """Single acknowledgements are kept and added to; new subscriptions, seeks and appends work beside them."""
    catalog = _first_release(url, connect)
    topic = catalog.topics.get(NAME)
    row = catalog.cursors.get(topic.topic_id, "billing")
    assert (row.state, row.snapshot_ledger, row.seeks) == (
        CursorState(Position(LedgerId(0), 9), ACKNOWLEDGED),
        None,
        0,
    )
    rest = tuple(Position(LedgerId(1), entry) for entry in range(10) if entry not in ACKNOWLEDGED[LedgerId(1)])
    acknowledged = Acknowledge(topic_id=topic.topic_id, subscription="billing", positions=rest)
    segment = RegisterSegment(
        topic_id=topic.topic_id, ledger_id=LedgerId(3), epoch=1, number=1, entries=5, size_bytes=50
    )
    assert catalog.commits.commit([acknowledged, segment]) == [
        Acknowledged(mark_delete=Position(LedgerId(1), 9)),
        Registered(first_entry=10, ledger_entries=15, ledger_size_bytes=150),
    ]
    assert catalog.ledgers.producer_sequences(topic.topic_id, ["writer"]) == {"writer": ProducerSequence.up_to(39)}
    new = catalog.cursors.subscribe(topic.topic_id, "new", latest=True)
    assert new.state.mark_delete == Position(LedgerId(3), 14)
    sought = catalog.cursors.seek(topic.topic_id, "billing", Position(LedgerId(0), 3))
    assert sought.state == CursorState(Position(LedgerId(0), 2))


def test_intents_of_the_first_release_are_taken_up(url: str, connect: Connect) -> None:
    """A trim adopts what is unfinished, and files the rest beside it; dead letters stay as they are."""
    catalog = _first_release(url, connect)
    topic = catalog.topics.get(NAME)
    assert catalog.deletions.inflight() == Inflight(estimated_inflight=2, dead_lettered=1)
    claim = Claim(workflow_id="delete-ledgers/new", run_id="r", ttl_s=60)
    cause = Cause(actor="tests", reason="a test", workflow_id="w")
    done = catalog.phase_one.detach(topic.topic_id, None, force=False, batch_id="new", claim=claim, cause=cause)
    assert (done.ledgers, done.intents) == (1, 3)
    (chunk,) = catalog.deletions.ranges("new", after=0, rows=10, limit=10)
    intents = catalog.deletions.intents("new", chunk)
    assert {one.ledger_id: one.attempts for one in intents} == {STALLED: 0, RETRYING: 3, 0: 0}
    assert not any(one.referenced for one in intents)
    ended = [Ended(row_id=one.row_id, outcome=Outcome.DELETED, objects=2) for one in intents]
    catalog.deletions.finish(ended, holder="new")
    assert catalog.deletions.close("new", cause).outcomes == {"DELETED": 3}
    (letter,) = catalog.deletions.list(DeletionState.DEAD_LETTERED, limit=10)
    assert (letter.ledger_id, letter.outcome, letter.last_error) == (
        DEAD,
        Outcome.METADATA_MISMATCH,
        "another application's",
    )


def test_single_intent_of_the_first_release_is_claimed_anew(url: str, connect: Connect) -> None:
    """A row whose workflow died before the upgrade is another one's afterwards."""
    catalog = _first_release(url, connect)
    claim = Claim(workflow_id="delete-ledger/next", run_id="r", ttl_s=60)
    taken = catalog.deletions.take(LedgerId(RETRYING), CopyKind.LEDGER, 1, claim, epoch=1)
    assert (taken.state, taken.attempts, taken.last_error) == (DeletionState.PENDING, 4, "StoreUnavailable: 503")
    gone = catalog.deletions.take(LedgerId(DELETED), CopyKind.LEDGER, 1, claim, epoch=1)
    assert gone.outcome is Outcome.DELETED


def test_topic_of_the_first_release_is_deleted_whole(url: str, connect: Connect) -> None:
    """Its ledgers and unfinished intents are one batch; the dead letter keeps the topic's name."""
    catalog = _first_release(url, connect)
    topic = catalog.topics.get(NAME)
    claim = Claim(workflow_id="delete-ledgers/all", run_id="r", ttl_s=60)
    cause = Cause(actor="tests", reason="a test", workflow_id="delete-topic/1")
    deletions = catalog.phase_one
    since_us = deletions.begin_topic(topic.topic_id, NAME, cause)
    done = deletions.detach_all(topic.topic_id, batch_id="all", claim=claim, cause=cause)
    assert (done.ledgers, done.intents) == (4, 6)
    assert deletions.remove_topic(topic.topic_id, cause)
    assert deletions.topic_tally(topic.topic_id, since_us=since_us).outcomes == {"METADATA_MISMATCH": 1, "RETRYING": 6}
    assert every_topic(catalog.topics) == []
    assert catalog.deletions.list(DeletionState.DEAD_LETTERED, limit=10)[0].topic == NAME
    again = catalog.topics.create(NAME, RetentionPolicy())
    assert again.topic_id > topic.topic_id
    assert catalog.ledgers.create(again.topic_id, application="sexton").ledger_id == NEXT_LEDGER


def test_only_a_sqlite_file_is_looked_at_through_an_engine_of_its_own(tmp_path: Path) -> None:
    """A connection to PostgreSQL brings nothing into our mode: its version is read through the engine that is there."""
    for url, own in ((f"sqlite:///{tmp_path}/catalog.db", True), ("postgresql+psycopg://nobody@127.0.0.1/none", False)):
        database = Database(url)
        with database.open_read_only() as looking:
            assert (looking.engine is not database.engine) is own
        database.close()
