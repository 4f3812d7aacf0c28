"""Signs of life while one call takes longer than a heartbeat."""

import threading

import pytest

from activities import heartbeats as module
from activities.heartbeats import Heartbeats, beating, renewing, renewing_many
from logstore.errors import ClaimHeld, StoreUnavailable
from tests.activities.world import environment
from tests.logstore.eventually import assert_eventually


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_EVERY_S", 0.005)
    monkeypatch.setattr(module, "_RENEW_EVERY_S", 0.01)


def test_pulse_beats_and_renews_while_one_unit_takes_long() -> None:
    """A throttled page that outlasts the timeout is not taken for dead, nor its rows for stalled."""
    beats, renewals = list[object](), list[None]()
    env = environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def slow() -> None:
        with Heartbeats(lambda: renewals.append(None)):
            assert_eventually(lambda: len(beats) > 2 and len(renewals) > 2)

    env.run(slow)
    ended = len(beats)
    assert threading.active_count() == 1 or not any(one.name == "heartbeats" for one in threading.enumerate())
    assert len(beats) == ended


def test_pulse_of_work_done_at_once_beats_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hears of a first beat at once, and a deletion of milliseconds would wait for that."""
    monkeypatch.setattr(module, "_BEAT_EVERY_S", 60.0)
    monkeypatch.setattr(module, "_LEAST_S", 60.0)
    beats = list[object]()
    env = environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def quick() -> None:
        with Heartbeats(lambda: None) as heartbeats:
            for _ in range(100):
                heartbeats.examined()

    env.run(quick)
    assert beats == []


def test_work_that_ends_before_its_first_beat_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start one costs more than a transaction, and a deletion of one ledger would start three."""
    monkeypatch.setattr(module, "_BEAT_EVERY_S", 60.0)

    def quick() -> None:
        with beating(), renewing(lambda: None), Heartbeats(lambda: None):
            names = {one.name for one in threading.enumerate()}
            assert not names & {"beating", "renewing", "heartbeats"}

    environment().run(quick)


def test_beat_that_is_due_does_not_wait_for_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread watches for all activities of a process, and sleeps until the first beat that may be due."""
    beats = list[object]()
    env = environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def work() -> None:
        monkeypatch.setattr(module, "_BEAT_EVERY_S", 60.0)
        with beating(lambda: ("later",)):
            monkeypatch.setattr(module, "_BEAT_EVERY_S", 0.005)
            with beating(lambda: ("sooner",)):
                assert_eventually(lambda: len(beats) > 2)

    env.run(work)
    assert set(beats) == {("sooner",)}


def test_beats_go_on_while_many_claims_are_renewed() -> None:
    """A renewal that the catalog holds up for long is no death of its worker."""
    beats, renewing = list[object](), threading.Event()
    answered = threading.Event()
    env = environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def renew() -> None:
        renewing.set()
        assert answered.wait(60)

    def work() -> None:
        with renewing_many(renew):
            assert renewing.wait(60)
            before = len(beats)
            assert_eventually(lambda: len(beats) > before + 2)
            answered.set()

    env.run(work)


def _answer(answers: list[Exception | None]) -> None:
    """A renewal that goes as the next of the answers says."""
    answer = answers.pop(0) if answers else None
    if answer:
        raise answer


def test_pulse_claim_lost_meanwhile_stops_the_work_at_its_next_unit() -> None:
    """An activity that lost its claim stops before it acts again."""
    answers: list[Exception | None] = [None, ClaimHeld("taken over")]

    def work() -> None:
        with Heartbeats(lambda: _answer(answers)) as heartbeats:
            assert_eventually(lambda: not answers)
            assert_eventually(lambda: heartbeats._lost is not None)
            heartbeats.examined()

    with pytest.raises(ClaimHeld):
        environment().run(work)


def test_pulse_survives_a_renewal_that_the_catalog_did_not_answer() -> None:
    """Three renewals may fail before a claim lapses; the first failure ends nothing."""
    answers: list[Exception | None] = [None, StoreUnavailable("busy"), None, None]

    def work() -> None:
        with Heartbeats(lambda: _answer(answers)) as heartbeats:
            assert_eventually(lambda: not answers)
            heartbeats.examined()

    environment().run(work)


def test_pulse_that_cannot_claim_starts_nothing() -> None:
    """Work begins under a live claim or not at all."""

    def refuse() -> None:
        raise ClaimHeld("held")

    def work() -> None:
        with Heartbeats(refuse):
            raise AssertionError("began without a claim")

    with pytest.raises(ClaimHeld):
        environment().run(work)
