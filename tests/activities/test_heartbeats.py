"""Signs of life while one call takes longer than a heartbeat."""

import threading

import pytest

from activities import heartbeats as module
from activities.heartbeats import (
    ClaimRenewingHeartbeats,
    define_activity,
    send_heartbeats,
    send_heartbeats_and_renew,
    send_heartbeats_during_renewals,
)
from logstore.errors import ClaimHeld, StoreUnavailable
from logstore.stop_checks import raise_if_stopped
from tests.activities.activity_world import make_activity_environment
from tests.logstore.eventually import assert_eventually


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_INTERVAL_S", 0.005)
    monkeypatch.setattr(module, "_RENEWAL_INTERVAL_S", 0.01)


def test_pulse_beats_and_renews_while_one_unit_takes_long() -> None:
    """A throttled page that outlasts the timeout is not taken for dead, nor its rows for stalled."""
    beats, renewals = list[object](), list[None]()
    env = make_activity_environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def slow() -> None:
        with ClaimRenewingHeartbeats(lambda: renewals.append(None)):
            assert_eventually(lambda: len(beats) > 2 and len(renewals) > 2)

    env.run(slow)
    ended = len(beats)
    assert threading.active_count() == 1 or not any(one.name == "heartbeats" for one in threading.enumerate())
    assert len(beats) == ended


def test_pulse_of_work_done_at_once_beats_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server hears of a first beat at once, and a deletion of milliseconds would wait for that."""
    monkeypatch.setattr(module, "_BEAT_INTERVAL_S", 60.0)
    monkeypatch.setattr(module, "_MIN_BEAT_INTERVAL_S", 60.0)
    beats = list[object]()
    env = make_activity_environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def quick() -> None:
        with ClaimRenewingHeartbeats(lambda: None) as heartbeats:
            for _ in range(100):
                heartbeats.count_examined()

    env.run(quick)
    assert beats == []


def test_work_that_ends_before_its_first_beat_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start one costs more than a transaction, and a deletion of one ledger would start three."""
    monkeypatch.setattr(module, "_BEAT_INTERVAL_S", 60.0)

    def quick() -> None:
        with send_heartbeats(), send_heartbeats_and_renew(lambda: None), ClaimRenewingHeartbeats(lambda: None):
            names = {one.name for one in threading.enumerate()}
            assert not names & {"beating", "renewing", "heartbeats"}

    make_activity_environment().run(quick)


def test_beat_that_is_due_does_not_wait_for_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread watches for all activities of a process, and sleeps until the first beat that may be due."""
    beats = list[object]()
    env = make_activity_environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def work() -> None:
        monkeypatch.setattr(module, "_BEAT_INTERVAL_S", 60.0)
        with send_heartbeats(lambda: ("later",)):
            monkeypatch.setattr(module, "_BEAT_INTERVAL_S", 0.005)
            with send_heartbeats(lambda: ("sooner",)):
                assert_eventually(lambda: len(beats) > 2)

    env.run(work)
    assert set(beats) == {("sooner",)}


class _Scarce(threading.Thread):
    """Threads of a machine that has none to give, as often as told."""

    lacking = 0

    def start(self) -> None:
        if type(self).lacking:
            type(self).lacking -= 1
            raise RuntimeError("can't start new thread")
        super().start()


def _scarce(monkeypatch: pytest.MonkeyPatch, lacking: int) -> None:
    monkeypatch.setattr(_Scarce, "lacking", lacking)
    monkeypatch.setattr(module, "_THREAD_RETRY_S", 0.005)
    monkeypatch.setattr(threading, "Thread", _Scarce)


def test_beats_begin_once_the_machine_has_a_thread_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be started when it is due keeps no other activity from beating, and is asked for again."""
    beats = list[object]()
    env = make_activity_environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def work() -> None:
        with send_heartbeats(lambda: ("before",)):
            assert_eventually(lambda: ("before",) in beats)
        _scarce(monkeypatch, 3)
        with send_heartbeats(lambda: ("one",)), send_heartbeats(lambda: ("other",)):
            assert_eventually(lambda: {("one",), ("other",)} <= set(beats))

    env.run(work)
    assert _Scarce.lacking == 0


def test_work_that_ends_while_there_is_no_thread_for_its_beats_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has done what it was asked for."""

    def work() -> str:
        with send_heartbeats():
            pass
        _scarce(monkeypatch, 1_000_000)
        with send_heartbeats():
            assert_eventually(lambda: _Scarce.lacking < 999_990)
        return "done"

    assert make_activity_environment().run(work) == "done"
    assert not module._scheduler._waiting


def test_work_that_cannot_be_watched_begins_not_and_beats_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of it that a later activity's watch would let beat."""
    watch = module._HeartbeatScheduler()
    monkeypatch.setattr(module, "_scheduler", watch)
    _scarce(monkeypatch, 1)

    def work() -> None:
        with send_heartbeats():
            raise AssertionError("began without a watch")

    with pytest.raises(RuntimeError, match="can't start new thread"):
        make_activity_environment().run(work)
    assert not watch._waiting


def test_beats_go_on_behind_a_fault_that_nothing_expects(caplog: pytest.LogCaptureFixture) -> None:
    """Of a renewal, for instance: the work is alive all the same, and would be begun anew beside itself."""
    beats = list[object]()
    env = make_activity_environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def work() -> None:
        answers: list[Exception | None] = [None, ZeroDivisionError("a bug"), None]
        with ClaimRenewingHeartbeats(lambda: _answer(answers)):
            assert_eventually(lambda: not answers)
            before = len(beats)
            assert_eventually(lambda: len(beats) > before + 2)

    env.run(work)
    assert "a fault that nothing here expects" in caplog.text


def test_beats_go_on_where_a_renewal_is_cancelled_between_its_attempts(caplog: pytest.LogCaptureFixture) -> None:
    """A busy catalog is asked again and again; that the activity is cancelled meanwhile is no death of its worker."""
    beats = list[object]()
    env = make_activity_environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    @define_activity(name="tests.work")
    def work() -> None:
        with ClaimRenewingHeartbeats(raise_if_stopped):  # which a catalog asks that is busy, before it is asked again
            env.cancel()
            before = len(beats)
            assert_eventually(lambda: len(beats) > before + 10)

    env.run(work)
    assert not caplog.records, "it is no fault"


def test_beats_go_on_while_many_claims_are_renewed() -> None:
    """A renewal that the catalog holds up for long is no death of its worker."""
    beats, renewing = list[object](), threading.Event()
    answered = threading.Event()
    env = make_activity_environment()
    env.on_heartbeat = lambda *details: beats.append(details)

    def renew() -> None:
        renewing.set()
        assert answered.wait(60)

    def work() -> None:
        with send_heartbeats_during_renewals(renew):
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
        with ClaimRenewingHeartbeats(lambda: _answer(answers)) as heartbeats:
            assert_eventually(lambda: not answers)
            assert_eventually(lambda: heartbeats._lost_claim_error is not None)
            heartbeats.count_examined()

    with pytest.raises(ClaimHeld):
        make_activity_environment().run(work)


def test_pulse_survives_a_renewal_that_the_catalog_did_not_answer() -> None:
    """Three renewals may fail before a claim lapses; the first failure ends nothing."""
    answers: list[Exception | None] = [None, StoreUnavailable("busy"), None, None]

    def work() -> None:
        with ClaimRenewingHeartbeats(lambda: _answer(answers)) as heartbeats:
            assert_eventually(lambda: not answers)
            heartbeats.count_examined()

    make_activity_environment().run(work)


def test_pulse_that_cannot_claim_starts_nothing() -> None:
    """Work begins under a live claim or not at all."""

    def refuse() -> None:
        raise ClaimHeld("held")

    def work() -> None:
        with ClaimRenewingHeartbeats(refuse):
            raise AssertionError("began without a claim")

    with pytest.raises(ClaimHeld):
        make_activity_environment().run(work)
