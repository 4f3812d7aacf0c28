"""`owners list` and `owners unload`, on a real ZooKeeper and a real catalog."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from infra.coordination.bundle_holdings import TakeoverTimes
from infra.coordination.bundle_owner import BundleOwner, BundleOwnerOptions
from infra.coordination.ownership_nodes import OWNERS, SESSIONS, WORKERS, WorkerOwnershipNodes
from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from logstore.catalog import Catalog, Database
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import StoreUnavailable
from logstore.ownership import BundleId, BundleOwnerNode, Lease, WorkerLoad, bundle_name, bundle_of_topic
from logstore.validated_names import TopicName
from tests.infra.coordination.conftest import ensemble, looker, zookeeper
from tests.logstore.eventually import assert_eventually
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices
from workers.operations.bundle_owners import BundleUnloader

__all__ = ["ensemble", "looker", "zookeeper"]

pytestmark = pytest.mark.external_service

_N = 4
_NAMES = [bundle_name(BundleId(one), bundle_count=_N) for one in range(_N)]
Join = Callable[..., ZooKeeperSession]


@pytest.fixture
def catalog(tmp_path: Path, services: FakeCommandServices, ensemble: EnsembleOptions) -> Iterator[Catalog]:
    """A catalog of four bundles behind the command line, which also knows where ZooKeeper is."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database, bundles=_N)
    made = Catalog(database)
    services.log = SimpleNamespace(catalog=made, closed=0)  # type: ignore[assignment]
    services.environ |= {"SEXTON_ZOOKEEPER": ensemble.hosts, "SEXTON_SESSION_TIMEOUT": "2s"}
    yield made
    database.close()


@pytest.fixture
def join(catalog: Catalog, ensemble: EnsembleOptions) -> Iterator[Join]:
    """Let a worker own bundles, as far as nodes and fences go."""
    opened: list[ZooKeeperSession] = []

    def joined(worker_id: str, *bundles: int, load: float = 0.0, enlists: bool = True) -> ZooKeeperSession:
        session = ZooKeeperSession(ensemble, lambda _: None)
        opened.append(session)
        nodes = WorkerOwnershipNodes(session, worker_id, _N)
        if enlists:
            nodes.register_worker(WorkerLoad(load=load, bundles=len(bundles)))
        catalog.fences.raise_fences(nodes.create_owner_nodes(BundleId(one) for one in bundles), worker_id)
        return session

    yield joined
    for session in opened:
        session.close()


def _listed(run: Run, *options: str) -> Any:
    return document(run("owners", "list", *options, "--json"))


def test_list_joins_nodes_sessions_and_fences(run: Run, catalog: Catalog, join: Join, looker: KazooClient) -> None:
    """Who owns each bundle in which session, who fenced it last, and what each worker says of itself."""
    first = join("a", 0, 1, load=0.5)
    second = join("b", 2, enlists=False)
    catalog.fences.raise_fences([BundleId(1)], "c")
    found = _listed(run)
    shared = {"session": f"{first.id:#x}", "session_state": "ALIVE"}
    assert found == {
        "ownership": "zookeeper",
        "bundles": [
            {"bundle": _NAMES[0], "number": 0, "owner": "a", "fence": 1, "fenced_by": "a", **shared},
            {"bundle": _NAMES[1], "number": 1, "owner": "a", "fence": 2, "fenced_by": "c", **shared},
            {
                "bundle": _NAMES[2],
                "number": 2,
                "owner": "b",
                "fence": 1,
                "fenced_by": "b",
                "session": f"{second.id:#x}",
                "session_state": "UNLISTED",
            },
            {
                "bundle": _NAMES[3],
                "number": 3,
                "owner": None,
                "fence": 0,
                "fenced_by": None,
                "session": None,
                "session_state": None,
            },
        ],
        "workers": [{"worker_id": "a", "load": 0.5, "room": True, "bundles": 2, "session": f"{first.id:#x}"}],
    }
    looker.delete(f"{SESSIONS}/{first.id:016x}")
    assert {row["session_state"] for row in _listed(run, "--worker", "a")["bundles"]} == {"GONE"}


def test_list_takes_no_part(run: Run, catalog: Catalog, join: Join, looker: KazooClient) -> None:
    """Whoever looks is no worker, makes no path and leaves no node, while it looks and after (apache/pulsar#7679)."""
    assert _listed(run)["workers"] == []
    assert looker.get_children("/") == []
    session = join("a", 0)
    before = [looker.exists(path).pzxid for path in ("/", SESSIONS, WORKERS, OWNERS)]
    _listed(run)
    assert [looker.exists(path).pzxid for path in ("/", SESSIONS, WORKERS, OWNERS)] == before
    assert looker.get_children(SESSIONS) == [f"{session.id:016x}"]


def test_list_filters(run: Run, catalog: Catalog, join: Join) -> None:
    """By worker, by having no owner, by topic; a contradiction and a topic that does not exist are bad input."""
    join("a", 0, 2)
    join("b", 1)

    def numbers(*options: str) -> list[int]:
        return [row["number"] for row in _listed(run, *options)["bundles"]]

    assert numbers("--worker", "a") == [0, 2]
    assert [row["worker_id"] for row in _listed(run, "--worker", "a")["workers"]] == ["a"]
    assert numbers("--worker", "nobody") == []
    assert numbers("--unowned") == [3]
    catalog.topics.create_topic(TopicName.parse(ORDERS_TOPIC).encoded, RetentionPolicy())
    assert numbers("--topic", ORDERS_TOPIC) == [bundle_of_topic(TopicName.parse(ORDERS_TOPIC), bundle_count=_N)]
    document(run("owners", "list", "--worker", "a", "--unowned", "--json"), code=2)
    document(run("owners", "list", "--topic", f"{ORDERS_TOPIC}x", "--json"), code=2)


def test_list_for_people_names_what_is_not_as_it_should_be(
    run: Run, catalog: Catalog, join: Join, looker: KazooClient
) -> None:
    """A foreign fence, a bundle without an owner, and the sum at the end, where the eye is."""
    session = join("a", 0, 1)
    catalog.fences.raise_fences([BundleId(1)], "c")
    shown = run("owners", "list").stdout
    lines = {words[0]: words for line in shown.splitlines() if len(words := line.split()) > 2}
    assert lines["0"] == ["0", _NAMES[0], "a", "1", "-"]
    assert " ".join(lines["1"][4:]) == "last acquired by c"
    assert lines["3"][2:] == ["-", "0", "-"]
    assert shown.splitlines()[-1] == "4 bundles, 2 without an owner"
    assert "remark" not in run("owners", "list", "--unowned").stdout
    looker.delete(f"{SESSIONS}/{session.id:016x}")
    looker.set(f"{WORKERS}/a", b'{"load": 0.3, "bundles": 2, "room": false}')
    shown = run("owners", "list").stdout
    assert "session gone, last acquired by c" in shown
    assert "takes none" in shown
    assert "no worker x with a live session" in run("owners", "list", "--worker", "x").stdout


def test_list_without_zookeeper_tells_what_the_fences_say(
    run: Run, services: FakeCommandServices, catalog: Catalog
) -> None:
    """With ownership=single nobody is asked: no address is needed, and no session is invented."""
    services.environ |= {"SEXTON_ZOOKEEPER": "", "SEXTON_OWNERSHIP": "single"}
    catalog.fences.raise_fences([BundleId(0), BundleId(2)], "w")
    found = _listed(run)
    assert found["ownership"] == "single"
    assert [(row["owner"], row["fence"], row["session_state"]) for row in found["bundles"]] == [
        ("w", 1, None),
        (None, 0, None),
        ("w", 1, None),
        (None, 0, None),
    ]
    assert found["workers"] == [{"worker_id": "w", "load": None, "room": None, "bundles": 2, "session": None}]
    assert "ownership=single" in run("owners", "list").stdout
    refused = document(run("owners", "unload", "0", "--json"), code=3)["error"]
    assert "expected zookeeper, found single" in refused["message"]


@pytest.mark.parametrize("command", [("list",), ("unload", "0")])
def test_wrong_address_missing_path_and_denied_rights_are_one_sentence_each(
    run: Run, services: FakeCommandServices, catalog: Catalog, looker: KazooClient, command: tuple[str, ...]
) -> None:
    """Exit code 4, naming what to mend; an answer that nobody gave is never read as no owner."""

    def refusal(**environ: str) -> str:
        services.environ |= environ
        result = run("owners", *command, "--json")
        assert result.stderr.count("error: ") == 1
        assert "Traceback" not in result.stderr
        return str(document(result, code=4)["error"]["message"])

    looker.add_auth("digest", "owner:secret")
    acl = [make_digest_acl("owner", "secret", all=True)]
    for path in (SESSIONS, WORKERS, OWNERS, f"{OWNERS}/{_NAMES[0]}"):
        looker.create(path, acl=acl)
    assert "refuses us while reading" in refusal()
    assert "grant" in refusal()
    hosts = services.environ["SEXTON_ZOOKEEPER"]
    assert "nowhere" in refusal(SEXTON_ZOOKEEPER=f"{hosts}/nowhere")
    assert "does not exist" in refusal()
    assert "cannot be reached at 127.0.0.1:1" in refusal(SEXTON_ZOOKEEPER="127.0.0.1:1", SEXTON_SESSION_TIMEOUT="1s")
    assert "SEXTON_ZOOKEEPER" in refusal(SEXTON_ZOOKEEPER="")


def test_unload_tells_what_it_would_do_and_does_it(run: Run, catalog: Catalog, join: Join) -> None:
    """A dry run changes nothing; then the node goes, and who did it is in the audit log, before and after."""
    session = join("a", 0, 1)
    had = {"bundle": _NAMES[1], "number": 1, "owner": "a", "fence": 1, "session": f"{session.id:#x}"}
    assert document(run("owners", "unload", _NAMES[1], "--dry-run", "--json")) == {"dry_run": True, **had}
    assert document(run("audit", "list", "--json")) == []
    told = document(run("owners", "unload", "1", "--reason", "too slow", "--no-wait", "--json"))
    assert told == had
    assert [row["owner"] for row in _listed(run)["bundles"]] == ["a", None, None, None]
    after, before = document(run("audit", "list", "--json"))
    detail = {"bundle": _NAMES[1], "worker_id": "a", "session": f"{session.id:#x}", "fence": 1}
    assert (before["act"], before["reason"], before["detail"]) == ("unload", "too slow", detail)
    assert (after["act"], after["reason"], after["detail"]) == (
        "unloaded",
        "too slow",
        {**detail, "outcome": "REMOVED"},
    )


def test_unload_refuses_what_is_none_and_what_nobody_owns(run: Run, catalog: Catalog, join: Join) -> None:
    """Bad input is 2, a bundle without an owner is 3; neither is in the audit log, for nothing was done."""
    join("a", 0)
    for wrong in ("4", "99999999999", "0x00000000_0x04000000", "first", "", "0x"):
        error = document(run("owners", "unload", wrong, "--json"), code=2)["error"]
        assert error["field"] == "bundle"
    refused = document(run("owners", "unload", "3", "--json"), code=3)["error"]
    assert refused["message"] == f"bundle {_NAMES[3]}: expected an owner, found none; nothing was changed"
    assert document(run("audit", "list", "--json")) == []


def test_unload_leaves_a_node_whose_session_does_not_stand(
    run: Run, catalog: Catalog, join: Join, looker: KazooClient
) -> None:
    """The delete asks for the session within its own transaction (apache/pulsar#295), and says so if it was refused."""
    session = join("a", 0)
    looker.delete(f"{SESSIONS}/{session.id:016x}")
    refused = document(run("owners", "unload", "0", "--json"), code=3)["error"]
    assert "which does not stand; nothing was changed" in refused["message"]
    assert looker.get_children(OWNERS) == [_NAMES[0]]
    assert [row["detail"].get("outcome") for row in document(run("audit", "list", "--json"))] == ["KEPT", None]


def test_unload_that_gets_no_answer_has_said_before_what_it_meant(
    run: Run, services: FakeCommandServices, catalog: Catalog, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever dies in between, or is cut off, leaves the row: there is no act without one."""
    join("a", 0)

    def cut_off(*_: object) -> bool:
        raise StoreUnavailable("zookeeper: no answer")

    monkeypatch.setattr("infra.coordination.ownership_nodes.OwnershipNodes.delete_owner_node", cut_off)
    document(run("owners", "unload", "0", "--reason", "r", "--json"), code=4)
    assert [(row["act"], row["reason"]) for row in document(run("audit", "list", "--json"))] == [("unload", "r")]


class _Silent:
    def on_acquired(self, lease: Lease) -> None:
        """See `BundleListener`."""

    def on_unloaded(self, bundle: BundleId) -> None:
        """See `BundleListener`."""


def test_unload_waits_for_the_next_owner_which_is_the_same_when_it_is_alone(
    run: Run, catalog: Catalog, ensemble: EnsembleOptions
) -> None:
    """The owner lets go, leaves it to others for a while, and acquires it anew: with another fence."""
    policy = BundleOwnerOptions(check_interval_s=0.1, takeover=TakeoverTimes(takeover_grace_s=0.1, rest_s=0.5))
    owner = BundleOwner("a", lambda tell: ZooKeeperSession(ensemble, tell), catalog.fences, _Silent(), options=policy)
    owner.start()
    try:
        assert_eventually(lambda: len(owner.leases()) == _N)
        old = next(lease for lease in owner.leases() if lease.bundle == 2)
        told = document(run("owners", "unload", "2", "--json"))
        assert (told["owner"], told["fence"], told["taken_by"], told["taken_fence"]) == (
            "a",
            old.fence,
            "a",
            old.fence + 1,
        )
        assert_eventually(lambda: len(owner.leases()) == _N)
    finally:
        owner.stop()


def test_unload_does_not_take_a_node_without_a_new_fence_for_an_owner() -> None:
    """Between node and fence there is nobody who may write, though the name may be the old one's again."""
    node = BundleOwnerNode(worker_id="a", session=7, version=0)
    fences = iter([3, 3, 3, 4, 4])
    catalog = SimpleNamespace(
        count_bundles=lambda: _N,
        get_newest_lease=lambda bundle: Lease(bundle=bundle, fence=next(fences), worker_id="a"),
    )
    directory = SimpleNamespace(read_owner_nodes=lambda _: {BundleId(1): node})
    unloading = BundleUnloader(catalog, SimpleNamespace(), directory)  # type: ignore[arg-type]
    owned = unloading.find_owner(BundleId(1))
    assert (owned.fence, owned.node.worker_id) == (3, "a")
    taken = unloading.wait_until_acquired(owned, within_s=30)
    assert taken is not None
    assert taken.fence == 4


def test_wrong_address_is_one_line_on_stderr_beside_its_trace(catalog: Catalog, tmp_path: Path) -> None:
    """As a process: without a log of its own, no library writes its troubles between ours."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    environ |= {"SEXTON_HOME": str(tmp_path / "home"), "SEXTON_DATABASE_URL": f"sqlite:///{tmp_path / 'catalog.db'}"}
    environ |= {"SEXTON_ZOOKEEPER": "127.0.0.1:1", "SEXTON_SESSION_TIMEOUT": "1s"}
    argv = [sys.executable, "-m", "workers", "owners", "list"]
    result = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (4, "")
    line, trace, hint = result.stderr.splitlines()
    assert line.startswith("error: zookeeper: cannot be reached at 127.0.0.1:1; ")
    assert trace.startswith("see it: sexton trace ")
    assert hint == "Try 'sexton status': it asks every service."


def test_unload_that_nobody_takes_up_is_done_in_part(
    run: Run, catalog: Catalog, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unloaded, and that it has no owner is said with exit code 5."""
    join("a", 0)
    monkeypatch.setattr("workers.cli.workers_and_owners._ACQUISITION_TIMEOUT_S", 0.5)
    told = document(run("owners", "unload", "0", "--json"), code=5)
    assert (told["owner"], told["taken_by"], told["taken_fence"]) == ("a", None, None)
