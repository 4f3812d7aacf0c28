"""A lost database, rebuilt on real servers behind a LIST that hides objects: nothing that was stored is lost."""

import json
import signal
from collections.abc import Iterator

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import ledger_prefix
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from tests.soak.faulty_s3_proxy import FaultyS3Proxy
from tests.workers.hosting.losing import CLAIM, phase_two
from tests.workers.hosting.test_rebuilding import command, lose, manifests
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import Settings

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(900)]

_ALWAYS = 1_000_000_000
_HIDDEN = {
    "all": "ledgers/",
    "a shard": "ledgers/01/",
    "a closed ledger": ledger_prefix(LedgerId(1)),
    "the first of the list": ledger_prefix(LedgerId(0)),
    "the one that was open": ledger_prefix(LedgerId(3)),
    "one that no record knows": ledger_prefix(LedgerId(4)),
}


@pytest.fixture
def wire(settings: Settings) -> Iterator[FaultyS3Proxy]:
    """To the store."""
    made = FaultyS3Proxy(settings.s3_endpoint.removeprefix("http://"))
    yield made
    made.close()


def _write(settings: Settings) -> Topic:
    """Ledgers 0 to 2 are closed, 3 was open at the flush, and 4 is younger."""
    with open_log_store(settings) as log:
        topic = log.catalog.topics.create_topic("persistent://a/b/c", RetentionPolicy())
        for number in range(5):
            if number == 4:
                log.records.flusher.flush(cursors=True)
            for part in range(2):
                entries = [NewEntry(payload=b"%d %d" % (number, part))]
                log.topic_logs.append(topic, ProducedEntries(entries=entries))
                if number == 3 and not part:
                    log.records.flusher.flush(cursors=True)
            if number < 4:
                log.topic_logs.roll(topic)
    return topic


def _read(settings: Settings, topic: Topic) -> dict[Position, bytes]:
    with open_log_store(settings) as log:
        return {entry.position: entry.payload or b"" for entry in log.topic_logs.scan(topic)}


def _objects(settings: Settings) -> list[str]:
    with open_log_store(settings) as log:
        return [one.key for one in log.objects.list("ledgers/")]


def _sweep(settings: Settings) -> None:
    """As the sweep of a worker: all intents that no workflow works on."""
    with open_log_store(settings) as log:
        taken = log.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=CLAIM, limit=1_000)
        assert phase_two(log, "sweep") == taken.intents == 0


_SOME = (
    "one that no record knows",
)  # the others: tests/logstore/catalog/records/test_lying_listings.py, and `make faults`
_EACH = [pytest.param(name, marks=[] if name in _SOME else pytest.mark.all_faults) for name in _HIDDEN]


@pytest.mark.parametrize("hidden", _EACH)
def test_rebuild_behind_listings_that_hide_objects_stops_and_goes_on_later(
    settings: Settings, wire: FaultyS3Proxy, hidden: str
) -> None:
    """Exit 3 while they lie. Once they are honest the same command ends well, and a sweep deletes nothing."""
    topic = _write(settings)
    before, objects, count = _read(settings, topic), _objects(settings), len(manifests(settings))
    lose(settings)
    wire.weather.unlisted = {_HIDDEN[hidden]: _ALWAYS}
    lied = command(settings.model_copy(update={"s3_endpoint": f"http://{wire.address}"}))
    assert lied.returncode == 3, lied.stderr
    message = json.loads(lied.stdout)["error"]["message"]
    assert "HEAD finds it, LIST does not; nothing was settled" in message
    assert "run the same command again" in message
    assert "empty" not in message
    assert wire.weather.met["listings that hide objects"] >= 3
    assert _objects(settings) == objects
    assert len(manifests(settings)) == count, "the old epoch goes on"
    _ends_well(settings, topic, before, objects)


@pytest.mark.sigkill
@pytest.mark.parametrize("hidden", [pytest.param(name, marks=pytest.mark.all_faults) for name in _HIDDEN])
def test_rebuild_behind_a_listing_that_hides_objects_once_ends_well(
    settings: Settings, wire: FaultyS3Proxy, hidden: str
) -> None:
    """It lists again."""
    topic = _write(settings)
    before, objects = _read(settings, topic), _objects(settings)
    lose(settings)
    died = command(settings, dies_at="records.settle.after")  # behind the first look, which would use up the listing
    assert died.returncode == -signal.SIGKILL, died.stderr
    wire.weather.unlisted = {_HIDDEN[hidden]: 1}
    _ends_well(settings.model_copy(update={"s3_endpoint": f"http://{wire.address}"}), topic, before, objects)
    assert wire.weather.met["listings that hide objects"] == 1


def _ends_well(settings: Settings, topic: Topic, before: dict[Position, bytes], objects: list[str]) -> None:
    done = command(settings)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["revived"], told["missing_data"], told["detached"]) == (0, 0, 0)
    _sweep(settings)
    assert _read(settings, topic) == before
    assert _objects(settings) == objects
