"""Chains of rebuilds: no answered append is lost, whichever of the databases is thrown away, and whenever."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogAdopting, CatalogOutdated, PreconditionFailed
from logstore.identity.services.marker_checked_buckets import MAX_UNANSWERED_S
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import SHARDS, ledger_prefix, segment_key
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import BeginTransactionWrite, EndTransactionWrite, Topic
from logstore.ports.object_storage import ObjectInfo
from logstore.positions import LedgerId, Position
from logstore.retrying_clock import Clock
from tests.faults.simulated_world import ENDLESS_TIMES, World
from tests.logstore.catalog.records.chains import Chain
from tests.migrated_catalogs import create_migrated_sqlite
from tests.postgres import PostgresServer, postgres
from workers.assembly.log_store import LogStore

__all__ = ["postgres"]

_NAME = "persistent://shop/main/orders"
_POSTGRES = pytest.param("postgresql", marks=pytest.mark.external_service)
_IN_FULL = [pytest.mark.external_service, pytest.mark.all_faults]
_EFFECTS = (
    ("load_rows", "records.load_rows"),
    ("look", "adoption.stage"),
    ("publish", "records.put_manifest"),
    ("publish", "records.settle"),
    ("adopt_shards", "adoption.stage"),
    ("finish_adoption", "adoption.settle"),
    ("finish_adoption", "adoption.conclude"),
    ("finish_adoption", "records.put_block"),
    ("finish_adoption", "records.begin"),
    ("finish_adoption", "records.put_manifest"),
    ("finish_adoption", "records.settle"),
    ("finish_adoption", "adoption.finish"),
)
_DEATHS = [("", ""), *((step, f"{effect}.{moment}") for step, effect in _EFFECTS for moment in ("before", "after"))]
_SAMPLE = (
    ("publish", "records.put_manifest.after"),
    ("finish_adoption", "adoption.settle.after"),
    ("finish_adoption", "records.put_manifest.before"),
    ("finish_adoption", "records.put_manifest.after"),
)
_EACH_DEATH = [
    pytest.param(*death, marks=[] if death in _SAMPLE else pytest.mark.all_faults, id="-".join(death))
    for death in _DEATHS
]


@pytest.fixture(params=["sqlite", _POSTGRES])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Makes empty databases."""
    numbers = iter(range(1_000))
    if request.param == "sqlite":
        yield lambda: f"sqlite:///{tmp_path / f'rebuilt-{next(numbers)}' / 'catalog.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with ExitStack() as made:
        yield lambda: server.url(made.enter_context(server.database()))


@pytest.fixture
def chain(tmp_path: Path, new_database: Callable[[], str]) -> Chain:
    """A catalog whose last flush is older than its last appends."""
    template = tmp_path / "template.db"
    create_migrated_sqlite(template)
    return Chain(World(tmp_path / "catalog.db", template), new_database)


def _topic(chain: Chain) -> Topic:
    with chain.process() as log:
        topic: Topic = log.catalog.topics.create_topic(_NAME, RetentionPolicy())
        return topic


def _plain(*payloads: str) -> ProducedEntries:
    return ProducedEntries(entries=[NewEntry(payload=one.encode()) for one in payloads])


def _begun(chain: Chain) -> Topic:
    """Appends before the last flush and behind it, in two ledgers."""
    topic = _topic(chain)
    chain.append(topic, "flushed")
    chain.flush()
    chain.append(topic, "tail", "tail too")
    with chain.process() as log:
        log.topic_logs.roll(topic)
    chain.append(topic, "in a new ledger")
    return topic


def _rebuilt(chain: Chain) -> None:
    """A rebuild into a database of its own that ends, and is the catalog."""
    url = chain.new_database()
    assert chain.rebuild(url) is not None
    chain.adopt_newest(url)


def test_second_rebuild_has_what_the_first_one_adopted(chain: Chain) -> None:
    """The first database is thrown away before any worker has flushed it, as the runbook's undo says."""
    topic = _begun(chain)
    first = chain.rebuild(chain.new_database())
    assert first is not None
    assert (first.adopted_ledgers, first.adopted_segments) == (1, 2)
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered
    chain.append(topic, "goes on")
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered
    assert chain.open_ledgers(topic) == 1


@pytest.mark.parametrize("new_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("step", "death"), _EACH_DEATH)
def test_rebuild_that_dies_and_is_thrown_away_loses_nothing(chain: Chain, step: str, death: str) -> None:
    """At each effect, before it and behind it; the second rebuild dies there too, and its appends follow the third."""
    topic = _begun(chain)
    chain.rebuild(chain.new_database(), step=step, dies_at=death)
    chain.rebuild(chain.new_database(), step=step, dies_at=death)
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered
    chain.append(topic, "behind the third")
    chain.rebuild(chain.new_database(), step=step, dies_at=death)
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered


@pytest.mark.parametrize(
    ("new_database", "death"),
    [
        ("sqlite", "adoption.settle.after"),
        ("sqlite", "records.put_manifest.after"),
        ("sqlite", "adoption.finish.before"),
        pytest.param("postgresql", "adoption.settle.after", marks=_IN_FULL),
        pytest.param("postgresql", "records.put_manifest.after", marks=pytest.mark.external_service),
        pytest.param("postgresql", "adoption.finish.before", marks=_IN_FULL),
    ],
    indirect=["new_database"],
)
def test_appends_between_three_rebuilds_come_back(chain: Chain, death: str) -> None:
    """Each rebuilt catalog takes appends that no flush knows, and is lost; every second rebuild dies and is undone."""
    topic = _begun(chain)
    for number in range(3):
        chain.rebuild(chain.new_database(), step="finish_adoption", dies_at=death)
        url = chain.new_database()
        assert chain.rebuild(url, step="finish_adoption", dies_at=death) is None
        assert chain.rebuild(url) is not None, "the same command goes on"
        chain.adopt_newest(url)
        assert chain.read(topic) == chain.answered
        chain.append(topic, f"behind rebuild {number}")
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered


@pytest.mark.parametrize("new_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("pages", [1, 3])
def test_flush_of_a_rebuild_that_dies_between_pages_loses_nothing(chain: Chain, pages: int) -> None:
    """A page shows the moment that was loaded: what it names is no moment of the new catalog."""
    topic = _begun(chain)
    chain.page = 2
    url = chain.new_database()
    chain.rebuild(url, step="finish_adoption", dies_at="adoption.settle.before")
    loaded = chain.manifests()[-1]
    for _ in range(pages):
        chain.rebuild(url, step="finish_adoption", dies_at="records.settle.after")
    shown = [one for one in chain.manifests() if one.number >= loaded.number]
    assert len(shown) == pages + 1
    assert {(one.shows, one.rows_epoch, one.epoch) for one in shown} == {(1, 1, 2)}
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered


def test_manifest_of_the_new_epoch_shows_the_moment_that_was_loaded(chain: Chain) -> None:
    """Until the flush at the end of the adoption, whose manifest shows one of the new epoch."""
    topic = _begun(chain)
    url = chain.new_database()
    chain.rebuild(url, step="finish_adoption", dies_at="adoption.settle.before")
    assert [(one.epoch, one.moment_number, one.rows_epoch) for one in chain.manifests()] == [(1, 1, 1), (2, 1, 1)]
    chain.rebuild(url)
    assert [(one.epoch, one.moment_number, one.rows_epoch) for one in chain.manifests()[2:]] == [(2, 3, 2)]
    chain.adopt_newest(url)
    assert chain.read(topic) == chain.answered


def test_worker_does_not_flush_what_is_half_adopted(chain: Chain) -> None:
    """A later rebuild would take the half for all."""
    _begun(chain)
    url = chain.new_database()
    chain.rebuild(url, step="finish_adoption", dies_at="adoption.conclude.before")
    chain.adopt_newest(url)
    count = len(chain.manifests())
    with pytest.raises(CatalogAdopting):
        chain.flush()
    assert len(chain.manifests()) == count


def test_log_of_an_earlier_build_is_adopted_too(chain: Chain) -> None:
    """Its manifest of a new epoch looks as if it showed a moment of its own, and holds nothing that was adopted."""
    topic = _begun(chain)
    chain.rebuild(chain.new_database(), step="adopt_shards", dies_at="adoption.stage.before")
    body = chain.manifests()[-1].to_json().replace(b'"moment_epoch":1', b'"moment_epoch":null')
    earlier = body.replace(b'"shows":1', b'"shows":null')
    key = chain.manifests()[-1].key
    chain.world.records.delete([key])
    chain.world.records.put_if_absent(key, earlier, metadata={})
    assert chain.manifests()[-1].rows_epoch == 2
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered


def test_old_catalog_that_still_appends_moves_nothing_of_the_new_one(chain: Chain) -> None:
    """A process that has not asked for half a minute is still answered; its uploads are of an epoch that is over."""
    topic = _begun(chain)
    with chain.process() as old:
        chain.append_by(old, topic, "before the rebuild")
        _rebuilt(chain)
        assert chain.read(topic) == chain.answered
        old.topic_logs.append(topic, _plain("by the old catalog"))
        with pytest.raises(CatalogOutdated):
            old.records.flusher.flush()
        chain.append(topic, "by the new one")
        old.topic_logs.append(topic, _plain("by the old one again"))
        chain.append(topic, "and by the new one")
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered


def test_rebuild_that_takes_over_adopts_what_the_old_catalog_answers_meanwhile(chain: Chain) -> None:
    """Until each of its processes has asked for the newest manifest; none appends behind that."""
    topic, url = _begun(chain), chain.new_database()
    with chain.process() as old:
        chain.append_by(old, topic, "before the rebuild")
        count_waits = chain.append_while_it_waits(old, topic)
        assert chain.rebuild(url, take_over=True) is not None
        assert count_waits() > MAX_UNANSWERED_S
    chain.adopt_newest(url)
    assert chain.read(topic) == chain.answered
    assert len(chain.answered) > MAX_UNANSWERED_S


@pytest.mark.parametrize("new_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("lacks", ["nothing", "a flushed segment"])
def test_rebuild_that_takes_over_is_not_refused_while_the_old_catalog_appends(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """Append behind each listing of a shard until the new epoch begins. No such append proves a listing wrong."""
    topic, url, store = _topic(chain), chain.new_database(), chain.world.store
    chain.append(topic, "flushed", "flushed too")
    chain.append(topic, "flushed later")
    chain.flush()
    chain.append(topic, "tail")
    if lacks != "nothing":
        store.delete([segment_key(min(chain.answered).ledger_id, 1)])
    list_prefix, is_begun, appends = store.list, False, 0
    now = iter(range(1_000))
    chain.clock = Clock(monotonic_s=lambda: float(next(now)), sleep=lambda _: None)

    def begin() -> None:
        nonlocal is_begun
        is_begun = True

    with chain.process() as old:

        def list_then_append(prefix: str, **options: Any) -> Iterator[ObjectInfo]:
            nonlocal appends
            listed = [*list_prefix(prefix, **options)]
            if not is_begun and prefix.count("/") == 2:
                chain.append_by(old, topic, f"behind listing {appends}")
                appends += 1
            yield from listed

        monkeypatch.setattr(store, "list", list_then_append)
        chain.before_step["adopt_shards"] = begin
        done = chain.rebuild(url, take_over=True)
    assert done is not None
    assert appends
    chain.adopt_newest(url)
    assert done.missing_data == (0 if lacks == "nothing" else 1)
    if lacks == "nothing":
        assert chain.read(topic) == chain.answered


@pytest.mark.parametrize("death", ["records.put_manifest.after", "records.settle.after"])
@pytest.mark.parametrize("take_over", [True, False])
def test_rebuild_that_goes_on_with_one_that_took_over_waits_too(chain: Chain, death: str, take_over: bool) -> None:
    """The first one was ended within its wait, and the command may be given without the option."""
    topic, url = _begun(chain), chain.new_database()
    with chain.process() as old:
        assert chain.rebuild(url, take_over=True, step="publish", dies_at=death) is None
        assert not chain.slept
        chain.append_while_it_waits(old, topic)
        assert chain.rebuild(url, take_over=take_over) is not None
    chain.adopt_newest(url)
    assert chain.read(topic) == chain.answered
    assert len(chain.answered) > MAX_UNANSWERED_S


@pytest.mark.parametrize(("age_s", "waits"), [(0, 65), (30, 36), (65, 1), (66, 0), (3_600, 0)])
def test_rebuild_waits_for_the_rest_of_the_time_alone(chain: Chain, age_s: int, waits: int) -> None:
    """Old processes had the time since the manifest of the new epoch was put, by the store's clock."""
    _begun(chain)
    url = chain.new_database()
    chain.rebuild(url, take_over=True, step="publish", dies_at="records.put_manifest.after")
    chain.world.records.advance(seconds=age_s)
    assert chain.rebuild(url) is not None
    assert len(chain.slept) == waits


def test_rebuild_looks_for_workers_right_before_its_manifest(chain: Chain) -> None:
    """Hours may lie between its begin and its load. Refused it has ended no epoch; behind its manifest nobody asks."""
    topic, url = _begun(chain), chain.new_database()
    numbers = chain.log().list_manifest_numbers()

    def refuse() -> None:
        raise PreconditionFailed("workers: expected none")

    chain.require_no_workers = refuse
    with pytest.raises(PreconditionFailed, match="workers: expected none"):
        chain.rebuild(url)
    assert chain.log().list_manifest_numbers() == numbers
    chain.require_no_workers = lambda: None
    assert chain.rebuild(url, step="publish", dies_at="records.settle.before") is None
    chain.require_no_workers = refuse
    assert chain.rebuild(url) is not None
    chain.adopt_newest(url)
    assert chain.read(topic) == chain.answered


@pytest.mark.parametrize("new_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.all_faults) for seed in range(1, 10))])
def test_random_chain_of_rebuilds_loses_no_answered_append(chain: Chain, seed: int) -> None:
    """Appends, flushes, rolls, losses and deaths in any order; some databases are gone on with, others thrown away."""
    chance, topic = random.Random(seed), _begun(chain)
    for number in range(12):
        match chance.choice(["append", "append", "flush", "roll", "rebuild", "rebuild"]):
            case "append":
                chain.append(topic, f"{number} a", f"{number} b")
            case "flush":
                chain.flush()
            case "roll":
                with chain.process() as log:
                    log.topic_logs.roll(topic)
            case _:
                chain.page = chance.choice([2, 500_000])
                url = chain.new_database()
                step, death = chance.choice(_DEATHS)
                while chain.rebuild(url, step=step, dies_at=death) is None:
                    url = url if chance.random() < 0.5 else chain.new_database()
                    step, death = chance.choice(_DEATHS)
                chain.adopt_newest(url)
                assert chain.read(topic) == chain.answered, f"step {number}"
    _rebuilt(chain)
    assert chain.read(topic) == chain.answered


_YOUNG = "persistent://shop/main/young"


def _young_ledger(chain: Chain) -> str:
    """Return the prefix of a ledger that is born right after a rebuild, and that no flush knows."""
    with chain.process() as log:
        young: Topic = log.catalog.topics.create_topic(_YOUNG, RetentionPolicy())
    before = set(chain.answered)
    chain.append(young, "answered after the rebuild")
    (position,) = set(chain.answered) - before
    return ledger_prefix(position.ledger_id)


def _read_young(chain: Chain) -> dict[Position, str]:
    with chain.process() as log:
        return dict(chain.read(log.catalog.topics.get_topic(_YOUNG)))


def _forget_next_ids(chain: Chain) -> None:
    """Make all manifests ones of an earlier build."""
    for manifest in chain.manifests():
        body = json.loads(manifest.to_json())
        del body["next_ids"]
        chain.world.records.delete([manifest.key])
        chain.world.records.put_if_absent(manifest.key, json.dumps(body).encode(), metadata={})


@pytest.mark.parametrize("new_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("flushed", "build", "listings"),
    [
        ("never", "this", 1),
        ("never", "this", ENDLESS_TIMES),
        ("never", "an earlier one", 1),
        ("before it", "this", 1),
        ("before it", "an earlier one", 1),
        ("half a rebuild later", "this", 1),
        ("half a rebuild later", "an earlier one", 1),
    ],
)
def test_ledger_born_after_a_rebuild_is_not_lost_behind_listings_that_hide_it(
    chain: Chain, build: str, listings: int, flushed: str
) -> None:
    """Its id is far above those that were given out before the rebuild; the next rebuild asks for it by name."""
    topic = _begun(chain)
    _rebuilt(chain)
    if flushed == "before it":
        chain.append(topic, "flushed in the new epoch")
        chain.flush()
    hidden = _young_ledger(chain)
    if flushed == "half a rebuild later":
        chain.rebuild(chain.new_database(), step="adopt_shards", dies_at="adoption.stage.before")
    if build != "this":
        _forget_next_ids(chain)
    unlisted, count = chain.world.store.unlisted, len(chain.manifests())
    chain.before_step["adopt_shards"] = lambda: unlisted.update({hidden: listings})
    url = chain.new_database()
    if listings == ENDLESS_TIMES:
        unlisted[hidden] = ENDLESS_TIMES
        with pytest.raises(PreconditionFailed, match="HEAD finds it, LIST does not"):
            chain.rebuild(url)
        assert len(chain.manifests()) == count + 1, "only the second look asks for it"
        unlisted.clear()
        chain.before_step.clear()
    assert chain.rebuild(url) is not None
    assert not unlisted
    chain.adopt_newest(url)
    assert dict(chain.read(topic)) | _read_young(chain) == chain.answered


def _told(log: LogStore) -> None:
    claim = Claim(workflow_id="transaction-coordinator/1", run_id="r", ttl_s=60)
    while batch := log.catalog.transactions.claim_decided_transactions(claim, limit=100):
        assert not log.broadcasts.broadcast_batch(batch).failures


@pytest.mark.parametrize("sought", ["never", "before the flush", "after the flush"])
@pytest.mark.parametrize("ends", ["before the flush", "after the flush"])
def test_marker_behind_the_flush_undoes_no_flushed_seek_and_loses_no_acknowledgement(
    chain: Chain, ends: str, sought: str
) -> None:
    """A flush has the cursor as the decision left it, or later: only what was decided since comes from the marker."""
    topic = _topic(chain)
    chain.append(topic, "a", "b", "c")
    first, second = sorted(chain.answered)[:2]
    with chain.process() as log:
        log.subscriptions.subscribe(topic.topic_id, "s", latest=False)
        log.records.flusher.flush(cursors=True)
        (begun,) = log.catalog.commits.commit_writes([BeginTransactionWrite(tc_id=1, timeout_s=3_600)])
        log.subscriptions.acknowledge(topic.topic_id, "s", positions=[first, second], txn=begun.txn)
        end = EndTransactionWrite(txn=begun.txn, commit=True)
        if ends == "before the flush":
            log.catalog.commits.commit_writes([end])
        if sought == "before the flush":
            log.subscriptions.seek(topic.topic_id, "s", second)
        log.records.flusher.flush()
        log.catalog.commits.commit_writes([end])
        if sought == "after the flush":
            log.subscriptions.seek(topic.topic_id, "s", second)
        _told(log)
        assert log.catalog.ledgers.list_segments(first.ledger_id)[-1].number > 0
    _rebuilt(chain)
    with chain.process() as log:
        state = log.subscriptions.get(topic.topic_id, "s").state
    assert state.covers(first)
    assert state.covers(second) is not (ends == sought == "before the flush")


@pytest.mark.parametrize("new_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("hidden", ["by its listing", "for good"])
def test_rebuild_that_is_refused_by_what_storage_shows_ends_no_epoch(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, hidden: str, flushes: bool
) -> None:
    """The old catalog goes on as if nobody had begun. Once storage shows all the same command goes on.

    If the old catalog has flushed since, the loaded database is refused before any listing.
    """
    topic, url = _begun(chain), chain.new_database()
    numbers, store = chain.log().list_manifest_numbers(), chain.world.store
    first = min(chain.answered).ledger_id
    objects = [(key, store.get(key)) for key in store.keys if key.startswith(ledger_prefix(first))]
    if hidden == "for good":
        store.delete([key for key, _ in objects])
        store.put_if_absent(segment_key(LedgerId(first + SHARDS), 0), b"of others", metadata={})  # the shard is there
    else:
        store.unlisted = {ledger_prefix(first): ENDLESS_TIMES}
    with pytest.raises(PreconditionFailed, match="HEAD finds it" if hidden != "for good" else "absent share"):
        chain.rebuild(url)
    assert chain.log().list_manifest_numbers() == numbers
    store.unlisted.clear()
    for key, stored in objects if hidden == "for good" else []:
        assert stored
        store.put_if_absent(key, stored.body, metadata=stored.metadata)
    chain.append(topic, "by the old catalog")
    if flushes:
        chain.flush()
        with monkeypatch.context() as patched:
            patched.setattr(store, "list", None)
            with pytest.raises(PreconditionFailed, match="not the catalog: give another one with --into"):
                chain.rebuild(url)
        assert len(chain.log().list_manifest_numbers()) == len(numbers) + 1
        url = chain.new_database()
    assert chain.rebuild(url) is not None
    chain.adopt_newest(url)
    assert chain.read(topic) == chain.answered
