"""Worker processes that take part in ownership, as a user starts them: what they refuse, own, and give up."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.stack import embedded_stack
from tests.faults.real_world import MAX_STOP_S
from tests.infra.coordination.conftest import ensemble, looker, zookeeper  # noqa: F401 - fixtures
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually
from tests.servers import CATALOG_ID, create_store_settings
from workers.client import workflow_search
from workers.client.temporal_connection import connect_client
from workers.settings import Settings

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(1_500)]

Start = Callable[..., subprocess.Popen[str]]
_PATIENT_SESSION_S = 10  # the longest that this server grants; a starved process is silent for seconds
_WITHIN_S = 400.0  # on a machine with fifty processes for each of its few processors


@pytest.fixture
def settings(servers: embedded_stack.StackAddresses, ensemble: EnsembleOptions, tmp_path: Path) -> Settings:  # noqa: F811
    """A log store of this test's own whose workers own on ZooKeeper."""
    found = create_store_settings(
        servers, tmp_path, ownership="zookeeper", zookeeper=ensemble.hosts, session_timeout=2, metrics_address="off"
    )
    asyncio.run(_register(found))
    return found


async def _register(settings: Settings) -> None:
    await workflow_search.register_search_attributes(await connect_client(settings))


@pytest.fixture
def start(settings: Settings) -> Iterator[Start]:
    """Starts `sexton worker run` in a process; all are killed at the end."""
    running: list[tuple[subprocess.Popen[str], IO[str]]] = []

    def begin(worker_id: str, **changes: object) -> subprocess.Popen[str]:
        told = settings.model_copy(update=changes).environment()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
        argv = [sys.executable, "-m", "workers", "worker", "run", "--worker-id", worker_id, "--json"]
        log = (settings.home / f"{len(running)}.log").open("w", encoding="utf-8")
        one = subprocess.Popen(argv, env=inherited | told, text=True, stdout=subprocess.PIPE, stderr=log)
        running.append((one, log))
        return one

    yield begin
    for one, log in running:
        one.kill()
        one.communicate()
        log.close()


def _ended(one: subprocess.Popen[str], *, within_s: float = _WITHIN_S) -> tuple[int, str]:
    """Its exit code and what it printed."""
    said, _ = one.communicate(timeout=within_s)
    return one.returncode, said


def _alive(looker: KazooClient, worker_id: str) -> bool:  # noqa: F811
    return looker.exists(f"/workers/{worker_id}") is not None


def _owned(looker: KazooClient) -> int:  # noqa: F811
    return len(looker.get_children("/owners")) if looker.exists("/owners") else 0


def test_worker_without_zookeeper_is_never_alone_by_accident(start: Start) -> None:
    """Only the setting `ownership` makes a worker the single one."""
    code, said = _ended(start("w1", zookeeper=""))
    assert code == 4
    assert "zookeeper" in said


def test_worker_under_a_path_that_does_not_exist_exits_4(start: Start, zookeeper: ZooKeeper) -> None:  # noqa: F811
    """It is not created: it could be somebody else's ensemble."""
    code, said = _ended(start("w1", zookeeper=f"{zookeeper.address}/nowhere"))
    assert code == 4
    assert "/nowhere" in said
    assert "does not exist" in said


def test_worker_that_zookeeper_denies_exits_4(
    start: Start,
    settings: Settings,
    looker: KazooClient,  # noqa: F811
) -> None:
    """A path that only another identity may write."""
    acl = make_digest_acl("other", "secret", all=True)
    looker.set_acls("/", [acl])
    code, said = _ended(start("w1"))
    assert code == 4
    assert "NoAuthError" in said
    assert "grant" in said
    one = start("w1", zookeeper_auth=type(settings.zookeeper_auth)("digest:other:secret"))
    assert_eventually(lambda: one.poll() is None and _alive(looker, "w1"), within_s=_WITHIN_S)


def test_worker_under_the_path_of_another_catalog_exits_3(
    start: Start,
    looker: KazooClient,  # noqa: F811
) -> None:
    """Both ids and the path are named, and it never takes part."""
    looker.create("/catalog", b"another")
    code, said = _ended(start("w1"))
    assert code == 3
    assert f"expected that of catalog {CATALOG_ID}, found that of catalog another" in said
    assert not looker.exists("/workers")


def test_worker_id_that_is_taken_is_refused(start: Start, looker: KazooClient) -> None:  # noqa: F811
    """The first one lives on; the second exits 3 after it has waited for a session that may be about to end."""
    first = start("w1")
    assert_eventually(lambda: _alive(looker, "w1"), within_s=_WITHIN_S)
    code, said = _ended(start("w1"))
    assert code == 3
    assert "WorkerIdTaken" in said
    assert first.poll() is None


def test_worker_id_that_can_name_nothing_is_refused(start: Start) -> None:
    """It names a queue of Temporal and a node of ZooKeeper."""
    code, said = _ended(start("a/b"))
    assert code == 2
    assert "worker-id" in said


def test_worker_that_is_told_to_end_before_it_could_join_ends(start: Start, looker: KazooClient) -> None:  # noqa: F811
    """It may wait for an earlier process of its id for two session timeouts: longer than a supervisor does for it."""
    start("w1")
    assert_eventually(lambda: _alive(looker, "w1"), within_s=_WITHIN_S)
    second = start("w1", session_timeout=120)
    assert_eventually(lambda: len(looker.get_children("/sessions")) == 2, within_s=_WITHIN_S)
    second.terminate()
    code, said = _ended(second, within_s=MAX_STOP_S)
    assert code == 0, said


def test_worker_that_drains_gives_up_everything_at_once(start: Start, looker: KazooClient) -> None:  # noqa: F811
    """Its bundles need not wait for a session timeout."""
    one = start("w1")
    assert_eventually(lambda: _owned(looker) == 64, within_s=_WITHIN_S)
    one.terminate()
    code, _ = _ended(one, within_s=MAX_STOP_S)
    assert code == 0
    assert not _alive(looker, "w1")
    assert _owned(looker) == 0


def test_worker_whose_policy_is_shutdown_ends_with_its_session(start: Start, looker: KazooClient) -> None:  # noqa: F811
    """`session_expired_policy=shutdown`: it drains and exits 4, so that a supervisor starts it anew.

    With a session of two seconds a worker that starts on a busy machine loses it before it owns anything, and ends.
    """
    one = start("w1", session_expired_policy="shutdown", session_timeout=_PATIENT_SESSION_S)
    assert_eventually(lambda: _owned(looker) == 64, within_s=_WITHIN_S)
    one.send_signal(signal.SIGSTOP)
    assert_eventually(lambda: not _alive(looker, "w1"), within_s=_WITHIN_S)
    one.send_signal(signal.SIGCONT)
    code, said = _ended(one)
    assert code == 4
    assert "session expired" in said
