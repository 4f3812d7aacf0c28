"""A session is opened once, and ends when the server says so or hands out another one."""

import queue
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from infra.coordination.zookeeper_session import EnsembleOptions, SessionState, ZooKeeperSession
from logstore.errors import ServiceFailed, SessionLost, StoreUnavailable
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.logstore.eventually import assert_eventually

pytestmark = pytest.mark.external_service

Heard = queue.SimpleQueue[SessionState]


@pytest.fixture
def heard() -> Heard:
    """What the session told."""
    return queue.SimpleQueue()


@pytest.fixture
def session(ensemble: EnsembleOptions, heard: Heard) -> Iterator[ZooKeeperSession]:
    """A live one."""
    opened = ZooKeeperSession(ensemble, heard.put)
    yield opened
    opened.close()


def _next(heard: Heard) -> SessionState:
    return heard.get(timeout=20)


def test_session_that_expires_on_the_server_is_over_for_good(
    zookeeper: ZooKeeper, session: ZooKeeperSession, heard: Heard, looker: KazooClient
) -> None:
    """Kazoo goes on in a new session; this object refuses to (ClickHouse#116690: a claim must not be kept by one)."""
    session.run_idempotent("making", lambda client: client.create("/mine", ephemeral=True))
    zookeeper.expire(session)
    told = [_next(heard)]
    while told[-1] is not SessionState.EXPIRED:
        told.append(_next(heard))
    assert set(told) <= {SessionState.SUSPENDED, SessionState.EXPIRED}
    with pytest.raises(SessionLost):
        session.run_idempotent("making", lambda client: client.create("/again", ephemeral=True))
    assert looker.get_children("/") == ["zookeeper"] or looker.get_children("/") == []


def test_session_that_expires_before_anybody_listens_is_not_opened(
    zookeeper: ZooKeeper, ensemble: EnsembleOptions, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be paused just there: it would stand as connected for ever, and own nothing of what it makes."""
    add_listener = KazooClient.add_listener

    def paused(client: KazooClient, listener: object) -> None:
        first = client.client_id
        with zookeeper.client(session=first):
            pass  # whoever closes the connection closes the session
        assert_eventually(lambda: client.connected and client.client_id[0] != first[0])
        add_listener(client, listener)

    monkeypatch.setattr(KazooClient, "add_listener", paused)
    with pytest.raises(SessionLost):
        ZooKeeperSession(ensemble, heard.put)


def test_session_whose_server_restarts_is_suspended_and_then_the_same(
    zookeeper: ZooKeeper, ensemble: EnsembleOptions, heard: Heard
) -> None:
    """Away is not over: node and session outlive a restart that is shorter than the session timeout."""
    session = ZooKeeperSession(replace(ensemble, timeout_s=20.0), heard.put)
    session.run_idempotent("making", lambda client: client.create("/mine", ephemeral=True))
    before = session.id
    zookeeper.kill()
    assert _next(heard) is SessionState.SUSPENDED
    zookeeper.start()
    assert _next(heard) is SessionState.CONNECTED
    stat = session.run_idempotent("looking", lambda client: client.exists("/mine"))
    assert stat is not None
    assert stat.ephemeralOwner == session.id == before
    session.close()


def test_session_that_outlives_a_long_outage_is_kept(
    zookeeper: ZooKeeper, ensemble: EnsembleOptions, heard: Heard
) -> None:
    """A server that comes back gives each session its time again: who answers soon has lost nothing."""
    session = ZooKeeperSession(replace(ensemble, timeout_s=4.0), heard.put)
    before = session.id
    zookeeper.kill()
    assert _next(heard) is SessionState.SUSPENDED
    for _ in range(10):
        time.sleep(0.9)
        session.reset_last_zxid()
    zookeeper.start()
    while heard.empty():  # or the test's own timeout
        session.reset_last_zxid()
        time.sleep(0.05)
    assert _next(heard) is SessionState.CONNECTED
    assert session.run_idempotent("telling its id", lambda client: client.client_id)[0] == before
    session.close()


def test_session_of_an_ensemble_that_lost_its_data_ends(
    zookeeper: ZooKeeper, ensemble: EnsembleOptions, heard: Heard
) -> None:
    """It refuses whoever saw later writes than it has, and tells no session's end: others are served, so it is over."""
    session = ZooKeeperSession(ensemble, heard.put)
    for _ in range(100):
        session.run_idempotent("making", lambda client: client.create("/one", sequence=True))
    zookeeper.wipe()
    assert _next(heard) is SessionState.SUSPENDED
    session.reset_last_zxid()
    assert session.state is SessionState.SUSPENDED, "it may be a short outage"
    while heard.empty():  # or the test's own timeout
        session.reset_last_zxid()
    assert _next(heard) is SessionState.EXPIRED
    session.close()


def test_session_whose_ensemble_serves_nobody_waits(
    zookeeper: ZooKeeper, ensemble: EnsembleOptions, heard: Heard
) -> None:
    """However long it is away: away is not over."""
    session = ZooKeeperSession(replace(ensemble, timeout_s=0.5), heard.put)
    zookeeper.kill()
    try:
        assert _next(heard) is SessionState.SUSPENDED
        for _ in range(6):  # of half a second each, once two timeouts have passed
            time.sleep(0.3)
            session.reset_last_zxid()
        assert session.state is SessionState.SUSPENDED
        assert heard.empty()
    finally:
        session.close()
        zookeeper.start()


def test_session_that_was_silently_replaced_counts_as_expired(session: ZooKeeperSession, heard: Heard) -> None:
    """A server that hands out a new session on a reconnect says plain CONNECTED (ClickHouse#116690)."""
    client = session.run_idempotent("reaching in", lambda inner: inner)
    client._session_id += 1
    client._make_state_change("SUSPENDED")
    assert _next(heard) is SessionState.SUSPENDED
    client._make_state_change("CONNECTED")
    assert _next(heard) is SessionState.EXPIRED
    with pytest.raises(SessionLost):
        session.run_idempotent("looking", lambda inner: inner.exists("/"))


def test_session_closed_takes_its_nodes_with_it_and_tells_nobody(
    session: ZooKeeperSession, heard: Heard, looker: KazooClient
) -> None:
    """A worker that drains gives all up at once."""
    session.run_idempotent("making", lambda client: client.create("/mine", ephemeral=True))
    assert looker.exists("/mine")
    session.close()
    assert looker.exists("/mine") is None
    assert heard.empty()


def test_asking_while_away_gives_up_within_a_session_timeout(
    zookeeper: ZooKeeper, session: ZooKeeperSession, heard: Heard
) -> None:
    """No answer is an error, never the answer that there is nothing."""
    zookeeper.kill()
    assert _next(heard) is SessionState.SUSPENDED
    with pytest.raises((StoreUnavailable, SessionLost)):
        session.run_idempotent("looking", lambda client: client.exists_async("/").get(timeout=1))
    zookeeper.start()


def test_asking_just_before_the_loss_is_known_ends_too(
    zookeeper: ZooKeeper, session: ZooKeeperSession, heard: Heard
) -> None:
    """A call that slips in is queued until the next connection: who asked waits no longer than a session timeout."""
    zookeeper.kill()
    assert _next(heard) is SessionState.SUSPENDED
    session.state = SessionState.CONNECTED  # as it was a moment before
    with pytest.raises(StoreUnavailable):  # though there is no connection: the server is started below
        session.run_idempotent("looking", lambda client: client.exists("/"))
    zookeeper.start()


def test_session_at_a_wrong_address_is_one_clear_sentence() -> None:
    """Who starts a worker with a wrong setting reads what to mend."""
    with pytest.raises(ServiceFailed, match=re.escape("cannot be reached at 127.0.0.1:1")):
        ZooKeeperSession(EnsembleOptions(hosts="127.0.0.1:1", timeout_s=1.0), lambda _: None)


def test_session_at_a_path_that_does_not_exist_is_refused(ensemble: EnsembleOptions, looker: KazooClient) -> None:
    """It is not made: the ensemble may be somebody else's."""
    with pytest.raises(ServiceFailed, match=r"the path /.*/nowhere of .* does not exist"):
        ZooKeeperSession(replace(ensemble, hosts=f"{ensemble.hosts}/nowhere"), lambda _: None)
    assert looker.exists("/nowhere") is None


def test_session_without_rights_is_refused_in_one_sentence(
    zookeeper: ZooKeeper, ensemble: EnsembleOptions, session: ZooKeeperSession
) -> None:
    """A denied ACL will be denied again: no retry, and the service is named."""
    path = ensemble.hosts.removeprefix(zookeeper.address)
    with zookeeper.client() as client:
        client.set_acls(path, [make_digest_acl("other", "secret", all=True)])
    with pytest.raises(ServiceFailed, match=r"refuses us while making.*NoAuth"):
        session.run_idempotent("making", lambda client: client.create("/mine"))


def test_ensemble_does_not_show_its_credential() -> None:
    """It ends up in logs."""
    assert "secret" not in repr(EnsembleOptions(hosts="h:1", auth=("digest", "user:secret")))
