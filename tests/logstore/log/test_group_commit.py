"""Group commit: one writer, many threads, every future answered."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar

import pytest

from logstore.errors import (
    CatalogBusy,
    LedgerFenced,
    OutcomeUnknown,
    ProducerFenced,
    SextonError,
    StoreUnavailable,
)
from logstore.failpoints import SimulatedCrash
from logstore.log.services.group_commit import GroupCommitter
from logstore.ports.catalog.log import (
    AcknowledgeWrite,
    GroupCommitResult,
    GroupCommitWrite,
    RegisterSegmentResult,
    RegisterSegmentWrite,
)
from logstore.positions import LedgerId, TopicId
from tests.logstore.eventually import assert_eventually


def _write(number: int) -> RegisterSegmentWrite:
    return RegisterSegmentWrite(
        topic_id=TopicId(1), ledger_id=LedgerId(0), epoch=1, number=number, entries=1, size_bytes=1
    )


class _Commits:
    """Answers a write with its number, or as `rule` says; can be held up."""

    def __init__(self, rule: Callable[[list[int]], Sequence[GroupCommitResult] | None] = lambda _numbers: None) -> None:
        self.batches: list[list[int]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self._rule = rule

    def commit_writes(self, writes: Sequence[GroupCommitWrite]) -> list[GroupCommitResult]:
        numbers = [write.number for write in writes if isinstance(write, RegisterSegmentWrite)]
        self.batches.append(numbers)
        assert self.may_go.wait(30)
        answer = self._rule(numbers)
        return list(answer) if answer is not None else [_registered(number) for number in numbers]


def _registered(number: int) -> RegisterSegmentResult:
    return RegisterSegmentResult(first_entry=number, ledger_entries=0, ledger_size_bytes=0)


def _held_up(
    commits: _Commits, committer: GroupCommitter, numbers: Sequence[int]
) -> list["Future[RegisterSegmentResult]"]:
    """Write 0 is being committed while the others queue; then all may go."""
    commits.may_go.clear()
    futures = [committer.submit(_write(0))]
    assert_eventually(lambda: commits.batches == [[0]])
    futures += [committer.submit(_write(number)) for number in numbers]
    commits.may_go.set()
    return futures


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(50) as pool:
        yield pool


def test_group_commit_idle_writer_commits_at_once() -> None:
    """A lone write waits for no company and no timer."""
    commits = _Commits()
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        assert [committer.commit_write(_write(number)).first_entry for number in range(3)] == [0, 1, 2]
    assert commits.batches == [[0], [1], [2]]


def test_group_commit_what_waits_goes_together_and_in_order() -> None:
    """Everything queued while one commit runs is the next one."""
    commits = _Commits()
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        futures = _held_up(commits, committer, range(1, 100))
        assert [future.result(10).first_entry for future in futures] == list(range(100))
    assert commits.batches == [[0], list(range(1, 100))]


def test_group_commit_many_threads_each_get_their_own_answer(threads: ThreadPoolExecutor) -> None:
    """Whoever was merged with whom, nobody reads another's result."""
    commits = _Commits()
    with closing(GroupCommitter(commits.commit_writes, capacity=16)) as committer:
        found = list(threads.map(lambda number: committer.commit_write(_write(number)).first_entry, range(2000)))
    assert found == list(range(2000))
    assert sum(map(len, commits.batches)) == 2000
    assert max(map(len, commits.batches)) <= 16


def test_group_commit_refused_item_fails_alone() -> None:
    """An error that answers one write disturbs no other."""
    refused = LedgerFenced("planned")
    commits = _Commits(lambda numbers: [refused if number == 2 else _registered(number) for number in numbers])
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        futures = _held_up(commits, committer, [1, 2, 3])
        assert futures[2].exception(10) is refused
        assert [futures[at].result(10).first_entry for at in (0, 1, 3)] == [0, 1, 3]
    assert len(commits.batches) == 2


@pytest.mark.parametrize("error", [TypeError("planned"), StoreUnavailable("planned")])
def test_group_commit_item_that_breaks_the_whole_is_taken_out_and_tried_alone(error: Exception) -> None:
    """The batch by default, alone when it fails; one bad item costs its neighbours nothing but time."""

    def rule(numbers: list[int]) -> None:
        if 2 in numbers:
            raise error

    commits = _Commits(rule)
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        futures = _held_up(commits, committer, [1, 2, 3])
        assert futures[2].exception(10) is error
        assert [futures[at].result(10).first_entry for at in (0, 1, 3)] == [0, 1, 3]
    assert commits.batches == [[0], [1, 2, 3], [1], [2], [3]]


def test_group_commit_contended_catalog_is_not_asked_once_for_every_item() -> None:
    """A group that waited as long as the catalog waits is busy as a whole: alone, each would wait as long again."""

    def rule(numbers: list[int]) -> None:
        if numbers != [0]:
            raise CatalogBusy("planned")

    commits = _Commits(rule)
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        futures = _held_up(commits, committer, [1, 2, 3])
        assert all(isinstance(future.exception(10), CatalogBusy) for future in futures[1:])
    assert commits.batches == [[0], [1, 2, 3]]


def test_group_commit_runs_in_the_context_of_who_submitted() -> None:
    """What the catalog does for an append is part of that append's trace."""
    speaker: ContextVar[str] = ContextVar("speaker", default="nobody")
    heard: list[str] = []
    commits = _Commits(lambda _: heard.append(speaker.get()))
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        speaker.set("append")
        committer.commit_write(_write(0))
    assert heard == ["append"]


def test_group_commit_absent_catalog_is_not_asked_once_for_every_item() -> None:
    """With nobody there, a thousand waiting writes do not wait for a thousand timeouts."""

    def rule(numbers: list[int]) -> None:
        if numbers != [0]:
            raise StoreUnavailable("planned")

    commits = _Commits(rule)
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        futures = _held_up(commits, committer, range(1, 1000))
        assert all(isinstance(future.exception(10), StoreUnavailable) for future in futures[1:])
    assert commits.batches[2:] == [[1], [2]]


def test_group_commit_unknown_outcome_is_answered_to_every_item_and_not_tried_again() -> None:
    """What may have landed is re-read first by its caller, never repeated here."""

    def rule(numbers: list[int]) -> None:
        if len(numbers) > 1:
            raise OutcomeUnknown("planned")

    commits = _Commits(rule)
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        futures = _held_up(commits, committer, [1, 2, 3])
        errors = [future.exception(10) for future in futures[1:]]
        assert [type(error) for error in errors] == [OutcomeUnknown] * 3
        assert len(set(map(id, errors))) == 3
    assert commits.batches == [[0], [1, 2, 3]]


def test_group_commit_unknown_outcome_of_an_item_tried_alone_is_its_own() -> None:
    """Its neighbours were tried apart from it."""

    def rule(numbers: list[int]) -> None:
        if len(numbers) > 1:
            raise TypeError("planned")
        if numbers == [2]:
            raise OutcomeUnknown("planned")

    commits = _Commits(rule)
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        futures = _held_up(commits, committer, [1, 2, 3])
        assert isinstance(futures[2].exception(10), OutcomeUnknown)
        assert futures[3].result(10).first_entry == 3


def test_group_commit_answers_of_another_number_are_an_unknown_outcome() -> None:
    """An adapter that loses count never lets one write take another's answer."""
    commits = _Commits(lambda numbers: [_registered(0)] if len(numbers) > 1 else None)
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        futures = _held_up(commits, committer, [1, 2])
        assert all(isinstance(future.exception(10), OutcomeUnknown) for future in futures[1:])


def test_group_commit_close_commits_what_waits_and_refuses_what_comes() -> None:
    """Nothing that was taken is dropped; a late caller reads why and may try another process."""
    commits = _Commits()
    committer = GroupCommitter(commits.commit_writes)
    futures = _held_up(commits, committer, [1, 2, 3])
    committer.close()
    assert [future.result(0).first_entry for future in futures] == [0, 1, 2, 3]
    with pytest.raises(StoreUnavailable, match="closed"):
        committer.submit(_write(4))
    committer.close()


@pytest.mark.parametrize("death", [SimulatedCrash("planned"), SystemExit(3)])
def test_group_commit_dying_writer_leaves_no_future_hanging(death: BaseException) -> None:
    """Whoever waits learns of it at once, and so does whoever comes later."""

    def rule(numbers: list[int]) -> None:
        if numbers != [0]:
            raise death

    commits = _Commits(rule)
    committer = GroupCommitter(commits.commit_writes, capacity=2)
    commits.may_go.clear()
    first = committer.submit(_write(0))
    assert_eventually(lambda: commits.batches == [[0]])
    in_flight = [committer.submit(_write(number)) for number in (1, 2)]
    commits.may_go.set()
    assert first.result(10).first_entry == 0
    assert [future.exception(10) for future in in_flight] == [death, death]
    with pytest.raises(StoreUnavailable, match="died"):
        committer.submit(_write(4))
    committer.close()


def test_group_commit_dying_writer_answers_what_was_not_tried() -> None:
    """What waited behind the fatal batch never reached the catalog, and its error says so."""
    commits = _Commits()

    def rule(numbers: list[int]) -> None:
        if numbers == [0]:
            late.append(committer.submit(_write(1)))
            raise SimulatedCrash("planned")

    late: list[Future[RegisterSegmentResult]] = []
    commits._rule = rule
    committer = GroupCommitter(commits.commit_writes)
    assert isinstance(committer.submit(_write(0)).exception(10), SimulatedCrash)
    assert_eventually(late[0].done)
    assert isinstance(late[0].exception(0), StoreUnavailable)


def test_group_commit_full_queue_makes_submitters_wait_and_then_tells_them() -> None:
    """Memory is bounded: without room within the patience nothing is queued."""
    commits = _Commits()
    with closing(GroupCommitter(commits.commit_writes, capacity=2, patience_s=0.05)) as committer:
        commits.may_go.clear()
        futures = [committer.submit(_write(0))]
        assert_eventually(lambda: commits.batches == [[0]])
        futures += [committer.submit(_write(number)) for number in (1, 2)]
        with pytest.raises(CatalogBusy, match="2 writes wait"):
            committer.submit(_write(3))
        commits.may_go.set()
        assert [future.result(10).first_entry for future in futures] == [0, 1, 2]


def test_group_commit_full_queue_lets_a_submitter_in_when_there_is_room(threads: ThreadPoolExecutor) -> None:
    """Backpressure, not refusal, as long as the writer moves."""
    commits = _Commits()
    with closing(GroupCommitter(commits.commit_writes, capacity=1)) as committer:
        found = list(threads.map(lambda number: committer.commit_write(_write(number)).first_entry, range(200)))
    assert found == list(range(200))


def test_group_commit_close_frees_submitters_that_wait_for_room(threads: ThreadPoolExecutor) -> None:
    """A shutdown waits for no queue."""
    commits = _Commits()
    committer = GroupCommitter(commits.commit_writes, capacity=1)
    commits.may_go.clear()
    committer.submit(_write(0))
    assert_eventually(lambda: commits.batches == [[0]])
    committer.submit(_write(1))
    waiting = threads.submit(committer.submit, _write(2))
    assert_eventually(lambda: len(committer._changed._waiters) == 1)  # type: ignore[attr-defined]
    committer.close(timeout_s=0)
    with pytest.raises(StoreUnavailable, match="closed"):
        waiting.result(10)
    commits.may_go.set()
    committer.close()
    assert commits.batches == [[0], [1]]


def test_group_commit_write_out_of_time_before_its_turn_is_taken_back() -> None:
    """Busy means that nothing happened: the write can never land later."""
    commits = _Commits()
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        commits.may_go.clear()
        first = committer.submit(_write(0))
        assert_eventually(lambda: commits.batches == [[0]])
        with pytest.raises(CatalogBusy, match="no turn within"):
            committer.commit_write(_write(1), timeout_s=0.01)
        commits.may_go.set()
        assert first.result(10).first_entry == 0
    assert commits.batches == [[0]]


def test_group_commit_write_out_of_time_while_it_is_committed_has_an_unknown_outcome() -> None:
    """It may land after its caller has left."""
    commits = _Commits()
    with closing(GroupCommitter(commits.commit_writes)) as committer:
        commits.may_go.clear()
        with pytest.raises(OutcomeUnknown, match="no answer within"):
            committer.commit_write(_write(0), timeout_s=0.2)
        commits.may_go.set()
    assert commits.batches == [[0]]


def test_group_commit_different_writes_travel_together() -> None:
    """Appends and acknowledgements share a transaction; each error keeps its class."""
    seen: list[GroupCommitWrite] = []

    class Mixed:
        def commit_writes(self, writes: Sequence[GroupCommitWrite]) -> list[GroupCommitResult]:
            seen.extend(writes)
            return [ProducerFenced("planned") for _ in writes]

    with closing(GroupCommitter(Mixed().commit_writes)) as committer:
        ack = AcknowledgeWrite(topic_id=TopicId(1), subscription="s")
        for future in (committer.submit(ack), committer.submit(_write(0))):
            error = future.exception(10)
            assert isinstance(error, SextonError)
            assert type(error) is ProducerFenced
    assert seen == [ack, _write(0)]
