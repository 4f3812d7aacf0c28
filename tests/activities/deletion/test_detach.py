"""`deletion.detach`: phase one as an activity."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore import failpoints
from logstore.errors import LedgerStillNeeded, StaleCatalog, StoreUnavailable, UnknownObject
from logstore.positions import LedgerId
from tests.activities.activity_world import World, encoded_payload_bytes, run_owner_routed_activity


def listed(world: World) -> list[LedgerId]:
    return [ledger.ledger_id for ledger in world.catalog.ledgers.list_ledgers(world.topic.topic_id)]


def test_detach_run_twice_answers_what_the_first_did(world: World) -> None:
    """Keyed by batch id: the second call changes nothing and counts the same (PIP-186, idempotency)."""
    ledgers = world.fill(3)
    first = world.detach()
    assert world.detach() == first
    assert (first.ledgers, first.intents) == (3, 3)
    assert [one.ledger_id for one in world.intents()] == ledgers


def test_detach_concurrent_attempts_file_each_ledger_once(world: World) -> None:
    """Two attempts may overlap (temporalio/sdk-python#1048): all answer alike, rows stand once."""
    world.fill(3)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: world.detach(), range(4)))
    assert answers == [answers[0]] * 4
    assert len(world.intents()) == 3


def test_detach_of_a_needed_ledger_changes_nothing(world: World) -> None:
    """An explicit detach is all or nothing: one ledger unread keeps the other, too (promise 1)."""
    first, second = world.fill(2, acknowledged=False)
    world.acknowledge(first)
    before = listed(world)
    with pytest.raises(LedgerStillNeeded, match=f"ledger {second}"):
        world.detach([first, second])
    assert listed(world) == before
    assert not world.intents()


def test_detach_of_another_epoch_changes_nothing(world: World) -> None:
    """A request that names another catalog is refused before the transaction (promise 1)."""
    ledgers = world.fill(1)
    with pytest.raises(StaleCatalog, match="expected catalog epoch 1, found 7"):
        run_owner_routed_activity(world.deletion.detach, world.make_detach_input(ledgers, catalog_epoch=7))
    assert ledgers[0] in listed(world)


def test_detach_of_an_unknown_topic_is_terminal(world: World) -> None:
    """Work for an object that does not exist reaches an end (apache/bookkeeper#3316)."""
    with pytest.raises(UnknownObject, match="topic_id"):
        run_owner_routed_activity(world.deletion.detach, world.make_detach_input(topic_id=99))


def test_detach_of_ledgers_that_ended_before_reports_their_outcomes(world: World) -> None:
    """Asking twice for the same ledgers is no error: the second batch counts what the first one did."""
    ledgers = world.fill(2)
    world.detach(ledgers)
    world.sql("UPDATE pending_deletion SET state='DELETED', outcome='DELETED'")
    again = world.detach(ledgers, batch_id="batch-2")
    assert (again.ledgers, again.intents, again.finished) == (0, 0, {"DELETED": 2})


def test_detach_without_catalog_is_retried(world: World) -> None:
    """A catalog that does not answer is the world's fault, not the request's."""
    world.fill(1)
    failpoints.arm("catalog.detach.before", "fail")
    with pytest.raises(StoreUnavailable):
        world.detach()
    assert world.detach().ledgers == 1


def test_detach_input_at_its_bound_stays_below_256_kb(world: World) -> None:
    """10,000 of the longest ids fit in one payload (temporalio/sdk-python#1285)."""
    request = world.make_detach_input([LedgerId(2**63 - 1 - number) for number in range(10_000)])
    assert encoded_payload_bytes(request) < 220_000
