"""A write under a lease and a raise of its fence come one after the other; who has no lease asks for nothing."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pytest
from sqlalchemy import event

from logstore.catalog.ownership.fences import lock_fence_of_lease
from logstore.errors import NotOwner
from logstore.ownership import BundleId, Lease
from tests.contracts.catalog.blocking import await_blocked, behind
from tests.contracts.catalog.ownership.test_fences import ONE, WRITES, Write, batch, detach, renew
from tests.contracts.catalog.steps import CROWD, race
from tests.contracts.catalog.worlds import SqlWorld

pytestmark = pytest.mark.postgres

_RAISED: Final = "UPDATE bundle_fence SET counter = counter + 1, worker_id = 'b'"
_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")
_UNDONE: Final = "UPDATE bundle_fence SET counter = counter - 1, worker_id = 'a'"


@WRITES
def test_write_behind_a_raise_is_refused_and_changes_nothing(write: Write, sql_world: SqlWorld) -> None:
    """The fence is compared as it is once it is locked: who waited for a raise has been overtaken (promise 7)."""
    batch(sql_world)
    lease = sql_world.catalog.fences.raise_fences([ONE], "a")[0]
    before = sql_world.everything()
    answer = behind(sql_world, [_RAISED], lambda: write(sql_world, lease))
    assert isinstance(answer, NotOwner), answer
    sql_world.sql(_UNDONE)
    assert sql_world.everything() == before


@WRITES
def test_raise_behind_a_write_waits_for_it(write: Write, sql_world: SqlWorld) -> None:
    """From the comparison to the commit nobody raises the fence: what was accepted was the owner's."""
    batch(sql_world)
    lease = sql_world.catalog.fences.raise_fences([ONE], "a")[0]
    before = sql_world.everything()
    with ThreadPoolExecutor(1) as pool:
        raising: list[Future[list[Lease]]] = []

        def raise_now(statement: str) -> None:
            if "bundle_fence" in statement and not raising:
                raising.append(pool.submit(sql_world.catalog.fences.raise_fences, [ONE], "b"))
                await_blocked(sql_world, raising[0])

        _listen(sql_world, raise_now)
        write(sql_world, lease)
        raised = raising[0].result(timeout=20)
    assert raised == [Lease(bundle=ONE, fence=2, worker_id="b")]
    sql_world.sql(_UNDONE)
    assert sql_world.everything() != before


@pytest.mark.external_service
def test_raise_that_waits_is_passed_by_no_later_write(postgres_url: str) -> None:
    """A worker that lost the bundle and writes on, one transaction over another, cannot keep its successor waiting."""
    world = SqlWorld(postgres_url)
    batch(world)
    lease = world.catalog.fences.raise_fences([ONE], "a")[0]
    with ThreadPoolExecutor(2) as pool:
        with world.database.engine.connect() as connection, connection.begin():
            lock_fence_of_lease(connection, lease)
            raising = pool.submit(world.catalog.fences.raise_fences, [ONE], "b")
            await_blocked(world, raising)
            writing = pool.submit(renew, world, lease)
            await_blocked(world, writing, waiting=2)
        assert raising.result(timeout=20)[0].fence == 2
        assert isinstance(writing.exception(timeout=20), NotOwner)
    world.database.close()


def test_writes_and_raises_thirty_two_at_once_are_accepted_or_refused(sql_world: SqlWorld) -> None:
    """Nobody deadlocks or waits for good; once all have raised, only the last one's lease is accepted."""
    batch(sql_world)
    fences = sql_world.catalog.fences
    first = fences.raise_fences([ONE], "a")[0]

    def work(number: int) -> Lease | None:
        if number % 2:
            return fences.raise_fences([ONE], f"worker-{number}")[0]
        (detach if number % 4 else renew)(sql_world, first)
        return None

    answers = race(work)
    leases = [one for one in answers if isinstance(one, Lease)]
    assert sorted(one.fence for one in leases) == list(range(2, CROWD // 2 + 2))
    assert {type(one) for one in answers} <= {Lease, NotOwner, type(None)}, answers
    for lease in [first, *leases]:
        if lease.fence <= CROWD // 2:
            with pytest.raises(NotOwner):
                renew(sql_world, lease)
        else:
            renew(sql_world, lease)


@WRITES
def test_write_without_a_lease_looks_at_no_fence(write: Write, sql_world: SqlWorld) -> None:
    """Not a statement more for those who run without ownership."""
    batch(sql_world)
    said = _said(sql_world)
    write(sql_world, None)
    assert said
    assert not [statement for statement in said if "bundle_fence" in statement]


@WRITES
def test_write_under_a_lease_asks_once_before_it_writes_and_after_the_locks_of_topic_and_list(
    write: Write, sql_world: SqlWorld
) -> None:
    """The lock order: topic, ledger list, ledger, fence, and then rows of intents, cursors and runs."""
    batch(sql_world)
    lease = sql_world.catalog.fences.raise_fences([ONE], "a")[0]
    said = _said(sql_world)
    write(sql_world, lease)
    (at,) = (place for place, statement in enumerate(said) if "bundle_fence" in statement)
    early, late = said[:at], said[at + 1 :]
    assert not [one for one in early if one.startswith(_CHANGES)], early
    assert [one for one in late if one.startswith(_CHANGES)], late
    locked = [one for one in early if " FOR " in one]
    assert all("FROM topic" in one or "FROM ledger_list" in one for one in locked), locked


def _listen(world: SqlWorld, heard: Callable[[str], None]) -> None:
    def listen(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        heard(statement)

    event.listen(world.database.engine, "after_cursor_execute", listen)


def _said(world: SqlWorld) -> list[str]:
    """Statements from now on."""
    said: list[str] = []
    _listen(world, said.append)
    return said


@pytest.mark.external_service
def test_raise_of_many_misses_only_what_a_paused_writer_holds(postgres_url: str) -> None:
    """An owner that was stopped in the middle of a write keeps its successor from that bundle, and from no other."""
    world = SqlWorld(postgres_url)
    fences = world.catalog.fences
    everything = [BundleId(bundle) for bundle in range(fences.count_bundles())]
    lease = next(lease for lease in fences.raise_fences(everything, "a") if lease.bundle == ONE)
    with world.database.engine.connect() as connection, connection.begin():
        lock_fence_of_lease(connection, lease)
        given = fences.raise_fences(everything, "b")
    assert [one.bundle for one in given] == [bundle for bundle in everything if bundle != ONE]
    assert fences.raise_fences([ONE], "b") == [Lease(bundle=ONE, fence=2, worker_id="b")]
    world.database.close()
