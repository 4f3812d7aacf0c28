"""Who gives up an upload says so: what it sent may stand where a deletion has looked already."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from logstore.deletion.intents import DeletionState, Outcome
from logstore.errors import CatalogBusy, OutcomeUnknown, PreconditionFailed, SextonError, StoreUnavailable
from logstore.failpoints import SimulatedCrash, arm
from logstore.log.services import TopicLogs
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId
from tests.fakes.catalog import Misfortune, Moment
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.log.world import World, once, plain

_GONE = LedgerId(0)


def _with_hint(world: World) -> TopicLogs:
    """A process that remembers ledger 0 as open; another one has rolled since."""
    process, other = world.process(), world.process()
    process.append(world.topic, plain(b"warm"))
    other.roll(world.topic)
    return process


def _delete(world: World, ledger_id: LedgerId = _GONE) -> None:
    """Both phases: out of the list, and phase two has seen that nothing of it is left."""
    catalog = world.catalog
    catalog.detach(world.topic.topic_id, [ledger_id])
    for row in [one for one in catalog.intent_rows.values() if one.ledger_id == ledger_id]:
        ended = replace(row, state=DeletionState.DELETED, outcome=Outcome.DELETED, batch_id="b")
        catalog.intent_rows[row.row_id] = ended


def _states(world: World) -> set[tuple[int, DeletionState]]:
    return {(int(row.ledger_id), row.state) for row in world.catalog.intent_rows.values()}


_AGAIN = {(0, DeletionState.PENDING)}
_LEFT = {(0, DeletionState.DELETED)}


def _sleep_through_the_deletion(world: World, *, seconds: float) -> Callable[[], None]:
    def sleep() -> None:
        _delete(world)
        world.catalog.advance(seconds=seconds)

    return sleep


def _oversleep(world: World) -> None:
    """Let the next put take longer than any registration is waited for, and its ledger go meanwhile."""
    action = _sleep_through_the_deletion(world, seconds=601)
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=action))


def test_writer_that_overslept_its_ledgers_deletion_has_it_looked_for_again(world: World) -> None:
    """Its segment landed when phase two was over, and it may not register any more (apache/pulsar#13526)."""
    process = _with_hint(world)
    _oversleep(world)
    with pytest.raises(CatalogBusy, match="giving up"):
        process.append(world.topic, plain(b"late"))
    assert _states(world) == _AGAIN


@pytest.mark.parametrize("error", [CatalogBusy("planned"), StoreUnavailable("planned"), OutcomeUnknown("planned")])
def test_writer_whose_registration_is_never_answered_has_its_ledger_looked_for_again(
    world: World, error: SextonError
) -> None:
    """The catalog answers nobody that registers; nothing of it would tell that the segment is late."""
    process = _with_hint(world)
    misfortunes = [Misfortune(moment=Moment.BEFORE, error=lambda: error) for _ in range(5)]
    world.catalog.misfortunes.extend([*misfortunes])
    world.catalog.misfortunes[0] = replace(misfortunes[0], action=once(lambda: _delete(world)))
    with pytest.raises(type(error)):
        process.append(world.topic, plain(b"late"))
    assert _states(world) == _AGAIN


def test_writer_whose_upload_is_never_answered_has_its_ledger_looked_for_again(world: World) -> None:
    """The put landed and was reported as failed until patience ended: the catalog was never asked anything."""
    process = _with_hint(world)
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.AFTER, times=5))
    _delete(world)
    with pytest.raises(StoreUnavailable):
        process.append(world.topic, plain(b"late"))
    assert _states(world) == _AGAIN


def test_roll_whose_statement_is_never_answered_has_its_newborn_looked_for_again(world: World) -> None:
    """A trim took the newborn for abandoned, and phase two found nothing, before its `meta.json` landed."""
    process = world.process()
    delete = once(lambda: _delete(world))
    world.objects.plan(
        Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=delete),
        Fault(operation=StoreOperation.PUT, kind=FaultKind.AFTER, times=4),
    )
    arm("roll.put_meta.after", "fail")  # of the first of five tries
    with pytest.raises(StoreUnavailable):
        process.roll(world.topic)
    assert _states(world) == _AGAIN


def test_roll_whose_newborn_is_never_attached_has_it_looked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where it is the catalog that does not answer."""

    def attach(ledger_id: LedgerId, *, after: LedgerId | None) -> bool:
        if ledger_id in world.catalog.ledger_rows:
            _delete(world, ledger_id)
        raise OutcomeUnknown("planned")

    monkeypatch.setattr(world.catalog.ledgers, "attach_ledger", attach)
    with pytest.raises(OutcomeUnknown):
        world.process().roll(world.topic)
    assert _states(world) == _AGAIN


def test_writer_that_gives_up_on_a_listed_ledger_changes_nothing(world: World) -> None:
    """Its deletion, whenever that comes, lists the whole prefix."""
    process = world.process()
    process.append(world.topic, plain(b"warm"))
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.AFTER, times=5))
    before = world.catalog.ledger_rows[_GONE]
    with pytest.raises(StoreUnavailable):
        process.append(world.topic, plain(b"late"))
    assert (world.catalog.ledger_rows[_GONE], _states(world)) == (before, set())


def test_writer_that_was_answered_tells_nothing_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is the catalog's own word, and it has looked at the ledger then; a lost race leaves no late object."""
    process, told = _with_hint(world), []
    monkeypatch.setattr(
        world.catalog.ledgers, "record_abandoned_upload", lambda ledger_id, *, epoch: told.append((ledger_id, epoch))
    )
    _delete(world)
    assert process.append(world.topic, plain(b"x")).count == 1
    assert _states(world) == _AGAIN
    world.catalog.set_state(world.topic.topic_id, TopicState.DELETING)
    with pytest.raises(PreconditionFailed):
        process.append(world.topic, plain(b"y"))
    assert told == []


def test_writer_that_gives_up_rides_out_a_failure_to_say_so(world: World) -> None:
    """A blip of the catalog forgets nothing, and the reason for giving up is what is raised."""
    process = _with_hint(world)
    _oversleep(world)
    arm("catalog.give_up.before", "fail")
    with pytest.raises(CatalogBusy, match="giving up"):
        process.append(world.topic, plain(b"late"))
    assert _states(world) == _AGAIN


@pytest.mark.parametrize("error", [StoreUnavailable("planned"), ZeroDivisionError("planned")])
def test_writer_that_cannot_say_so_raises_why_it_gave_up(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Best effort, soon over, and logged: reconciliation finds what is left."""
    process = _with_hint(world)
    _oversleep(world)

    def record_abandoned_upload(ledger_id: LedgerId, *, epoch: int) -> None:
        raise error

    monkeypatch.setattr(world.catalog.ledgers, "record_abandoned_upload", record_abandoned_upload)
    began_us = world.catalog.now_us
    with caplog.at_level(logging.WARNING), pytest.raises(CatalogBusy, match="giving up"):
        process.append(world.topic, plain(b"late"))
    assert world.catalog.now_us - began_us < 610_000_000
    assert "ledger 0" in caplog.text
    assert _states(world) == _LEFT


def test_writer_that_dies_says_nothing(world: World) -> None:
    """A process that is gone is beyond any mending of its own."""
    process = _with_hint(world)
    _delete(world)
    arm("append.put_segment.after", "crash")
    with pytest.raises(SimulatedCrash):
        process.append(world.topic, plain(b"late"))
    assert _states(world) == _LEFT
