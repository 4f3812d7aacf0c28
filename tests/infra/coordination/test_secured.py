"""A real ZooKeeper that knows users: who is let in, whose nodes are whose, and TLS before it."""

import gc
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import methodcaller
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from infra.coordination.ownership_nodes import OWNERS, SESSIONS, WORKERS, WorkerOwnershipNodes, claim_path_for_catalog
from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.errors import InvalidInput, ServiceFailed, SessionLost
from logstore.ownership import BundleId, WorkerLoad
from logstore.setting_files import PemFiles
from tests.logstore.eventually import assert_eventually
from tests.tls_servers import TlsCertificateAuthority, TlsProxy
from tests.zookeeper_with_users import run_zookeeper_with_users
from workers.hosting.bundle_ownership import ensemble_from_settings
from workers.settings import Settings

pytestmark = pytest.mark.external_service
_PASSWORD = "hunter2"
_numbers = itertools.count()
_quiet = logging.getLogger("tests.zookeeper")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server with two users."""
    with run_zookeeper_with_users(sexton=_PASSWORD, other="theirs") as address:
        yield address


@pytest.fixture
def ensemble(server: str) -> EnsembleOptions:
    """A path of the test's own, and a user whose nodes are its own."""
    path = f"/secured-{next(_numbers)}"
    client = KazooClient(hosts=server, logger=_quiet)
    client.start(timeout=20)
    client.create(path)
    client.stop()
    client.close()
    return EnsembleOptions(hosts=f"{server}{path}", timeout_s=2.0, auth=("sasl", f"sexton:{_PASSWORD}"), protected=True)


def _session(ensemble: EnsembleOptions) -> ZooKeeperSession:
    return ZooKeeperSession(ensemble, lambda _: None)


def _take_part(ensemble: EnsembleOptions) -> ZooKeeperSession:
    session = _session(ensemble)
    nodes = WorkerOwnershipNodes(session, "w1", 4)
    claim_path_for_catalog(session, "c1")
    assert nodes.register_worker(WorkerLoad())
    assert nodes.create_owner_nodes([BundleId(0)])
    return session


def _denied(session: ZooKeeperSession, act: Callable[[KazooClient], object]) -> None:
    with pytest.raises(ServiceFailed, match=r"NoAuthError.*zookeeper_auth"):
        session.run_idempotent("meddling", act)


@pytest.mark.parametrize("auth", [("sasl", f"sexton:{_PASSWORD}"), ("digest", f"sexton:{_PASSWORD}")])
def test_nodes_are_for_their_creator_alone(ensemble: EnsembleOptions, auth: tuple[str, str]) -> None:
    """Another user, and who is nobody, can neither change, remove nor even read them."""
    session = _take_part(replace(ensemble, auth=auth))
    strangers = [replace(ensemble, auth=None, protected=False), replace(ensemble, auth=("sasl", "other:theirs"))]
    try:
        for one in strangers:
            other = _session(one)
            for path in (SESSIONS, WORKERS, OWNERS, "/catalog", f"{WORKERS}/w1"):
                _denied(other, methodcaller("set", path, b"x"))
                _denied(other, methodcaller("get", path))
            _denied(other, methodcaller("delete", f"{WORKERS}/w1"))
            _denied(other, methodcaller("create", f"{OWNERS}/stolen"))
            other.close()
    finally:
        session.close()


def test_nodes_that_anyone_could_write_are_protected_once_the_setting_says_so(ensemble: EnsembleOptions) -> None:
    """What earlier workers made stands; new ones make it their identity's alone."""
    _take_part(replace(ensemble, protected=False)).close()
    session = _take_part(ensemble)
    looker = _session(ensemble)
    for path in (SESSIONS, WORKERS, OWNERS, "/catalog"):
        acls = looker.run_idempotent("looking", methodcaller("get_acls", path))[0]
        assert acls != OPEN_ACL_UNSAFE, path
        assert [one.id.scheme for one in acls] == ["sasl"], path
    looker.close()
    session.close()


def test_wrong_password_is_refused_with_the_setting_and_not_shown(ensemble: EnsembleOptions) -> None:
    """It is told at once, as a refusal and not as an outage: nobody waits for it to pass."""
    for auth in (("sasl", "sexton:wrong-one"), ("sasl", "nobody:wrong-one")):
        with pytest.raises(ServiceFailed, match=r"refuses .*zookeeper_auth") as refused:
            _session(replace(ensemble, auth=auth))
        assert "wrong-one" not in str(refused.value)


def test_wrong_password_is_a_refusal_however_late_it_is_noticed(
    ensemble: EnsembleOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kazoo says that it is connected before it says who it is; then the session is over, which would be an outage."""

    def late(session: ZooKeeperSession) -> int:
        assert_eventually(lambda: session._client.refused)
        return 1

    monkeypatch.setattr(ZooKeeperSession, "_read_session_id", late)
    with pytest.raises(ServiceFailed, match="refuses our identity"):
        _session(replace(ensemble, auth=("sasl", "sexton:wrong-one")))


def test_identity_is_proven_again_after_an_expiry(ensemble: EnsembleOptions) -> None:
    """A new session is the same user's, and finds the nodes of before its own."""
    heard: list[SessionState] = []
    session = ZooKeeperSession(ensemble, heard.append)
    WorkerOwnershipNodes(session, "w1", 4)
    sid = session.run_idempotent("telling its id", lambda client: client.client_id)
    thief = KazooClient(hosts=ensemble.hosts, client_id=sid, logger=_quiet)
    thief.start(timeout=20)
    thief.stop()
    thief.close()
    assert_eventually(lambda: SessionState.EXPIRED in heard)
    with pytest.raises(SessionLost):
        session.run_idempotent("looking", lambda client: client.exists("/"))
    session.close()
    _take_part(ensemble).close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # kazoo drops sockets whose handshake failed
def test_tls_before_the_servers_is_verified(ensemble: EnsembleOptions, server: str, tmp_path: Path) -> None:
    """Mutual, with a user behind it; who is not trusted is told, and nobody waits for long."""
    authority = TlsCertificateAuthority(tmp_path)
    (tmp_path / "other").mkdir()
    other, ours = TlsCertificateAuthority(tmp_path / "other"), authority.pair("client", "sexton")
    front = TlsProxy(server, authority.server(), client_ca=authority.ca)
    misnamed = TlsProxy(server, authority.pair("foreign", "elsewhere.test"))
    tls = PemFiles(ca=str(authority.ca), cert=str(ours.cert), key=str(ours.key))
    secured = replace(ensemble, hosts=ensemble.hosts.replace(server, front.address), tls=tls)
    try:
        _take_part(secured).close()
        told = {
            "self-signed|unable to get": replace(secured, tls=replace(tls, ca=str(other.ca))),
            "IP address mismatch": replace(secured, hosts=misnamed.address),
            "requires a client certificate": replace(secured, tls=PemFiles(ca=str(authority.ca))),
        }
        for part, given in told.items():
            with pytest.raises(ServiceFailed, match=f"no trusted connection .*({part}).*zookeeper_ca_file"):
                _session(replace(given, timeout_s=1.0))
    finally:
        front.close()
        misnamed.close()
        gc.collect()


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """Nodes for nobody's identity, and files of TLS where it is off."""
    (tmp_path / "ca").mkdir()
    ca = str(TlsCertificateAuthority(tmp_path / "ca").ca)
    for field, given in (
        ("zookeeper_acl", {"zookeeper_acl": "creator"}),
        ("zookeeper_tls", {"zookeeper_tls": "off", "zookeeper_ca_file": ca}),
        ("zookeeper_key_file", {"zookeeper_cert_file": ca}),
    ):
        with pytest.raises(InvalidInput) as refused:
            ensemble_from_settings(Settings.model_validate({"home": tmp_path, "zookeeper": "127.0.0.1:1", **given}))
        assert refused.value.field == field
