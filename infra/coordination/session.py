"""One ZooKeeper session, from its start to its end; a session that has ended is not opened again.

A call that slips in after a connection was lost, and before kazoo says so, is queued until the next connection, and
its caller would wait as long: for as long as ZooKeeper is away.

After an expiry kazoo goes on in a new session by itself, as if nothing had happened, and a server may hand out a new
one on a mere reconnect (ClickHouse#116690). Either ends the `ZooKeeperSession`: its user opens another one and looks
at each of its nodes again. Listeners run on kazoo's own thread, where a call of ZooKeeper would wait for itself
(kazoo#355): they only hand over.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from infra.coordination.faults import ZOOKEEPER, Tls, translated, unreached
from infra.telemetry.zookeeper_spans import zookeeper_span
from logstore.errors import ServiceFailed, SessionLost


class PatientHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """The usual handler, whose answers are waited for no longer than it is told."""

    def __init__(self, patience_s: float) -> None:
        """Wait that long for an answer, unless its `get` says otherwise."""
        super().__init__()
        self._patience_s, self._own = patience_s, threading.local()

    @property
    def patience_s(self) -> float:
        """How long this thread waits for an answer."""
        return float(getattr(self._own, "patience_s", self._patience_s))

    @contextmanager
    def waiting(self, patience_s: float) -> Iterator[None]:
        """Have this thread wait that long for each answer, or as long as usual if that is less."""
        self._own.patience_s = min(patience_s, self._patience_s)
        try:
            yield
        finally:
            del self._own.patience_s

    def async_result(self) -> "_Answer":
        """See kazoo's `IHandler.async_result`."""
        return _Answer(self)


class _Answer(AsyncResult):  # type: ignore[misc]
    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401 - kazoo's
        return super().get(block, self._handler.patience_s if timeout is None else timeout)


T = TypeVar("T")

_kazoo_log = logging.getLogger("kazoo.client")
_kazoo_log.addHandler(logging.NullHandler())  # a command says itself, in one sentence, what became of it


class SessionEvent(StrEnum):
    """A change of a session."""

    CONNECTED = "CONNECTED"  # again, and it is the same session
    SUSPENDED = "SUSPENDED"  # no connection; whether the session lives is not known
    EXPIRED = "EXPIRED"  # over, and all of its ephemeral nodes with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Where ZooKeeper is and how to be known there.

    Args:
        hosts: `host:port`, several separated by commas, then the path under which everything of ours is, if any.
        timeout_s: After that long without a word from us the server ends the session; it may negotiate another.
        auth: Scheme and credential, as `("digest", "user:password")`; of the scheme `sasl` by its mechanism DIGEST-MD5.
        protected: Whether nodes of ours are for that identity alone.
        tls: How to trust the servers and be trusted by them; None: the connection is plain.
    """

    hosts: str
    timeout_s: float = 10.0
    auth: tuple[str, str] | None = field(default=None, repr=False)
    protected: bool = False
    tls: Tls | None = None


class ZooKeeperSession:
    """A session with ZooKeeper.

    `tell` is called on kazoo's thread for each change of the session. It must return at once, so it puts the event into
    a queue of another thread.
    """

    def __init__(self, ensemble: Ensemble, tell: Callable[[SessionEvent], None]) -> None:
        """Connect.

        Raises:
            ServiceFailed: No server answers there, the servers refuse the connection, or the path does not exist.
            SessionLost: It was over before a listener was added.
        """
        self._ensemble, self._tell = ensemble, tell
        self.link = SessionEvent.CONNECTED  # as heard last
        self._away_since = 0.0
        self._closing = threading.Lock()
        self._client = _client(ensemble)
        try:
            if not self._client.start_async().wait(timeout=ensemble.timeout_s):
                self._require_let_in()
                raise unreached(ensemble.hosts, ensemble.tls)  # noqa: TRY301 - whatever it is, what was begun is closed
            self.id = self._now()
            self._client.add_listener(self._heard)
            self._require_let_in()
            if self._now() != self.id:  # kazoo does not tell what became of the session before we listened
                raise SessionLost(f"zookeeper: session {self.id:#x} was over as soon as it was opened")  # noqa: TRY301
            if not self.ask("looking for the path", lambda client: client.exists("/")):
                raise self.no_path()  # noqa: TRY301 - nor is it made: the ensemble could be another system's
        except BaseException:
            self.close()
            raise

    @property
    def timeout_s(self) -> float:
        """How long the server waits for a word of ours."""
        return self._ensemble.timeout_s

    @property
    def address(self) -> str:
        """Hosts and path of everything of ours, for messages."""
        hosts = self._ensemble.hosts
        return hosts if "/" in hosts else f"{hosts}/"

    def ask(self, doing: str, work: Callable[[KazooClient], T], *, patience_s: float = math.inf) -> T:
        """Run calls that may be repeated, again while the connection comes and goes, for one session timeout.

        Each of them is waited for that long at most, whatever became of the connection; or for `patience_s`, if that
        is less.

        Raises:
            StoreUnavailable: No answer; what was asked may have happened.
            SessionLost: This session is over.
            ServiceFailed: ZooKeeper refuses us.
        """
        self._require_let_in()
        wait_s = min(patience_s, self.timeout_s)
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, deadline=wait_s, ignore_expire=False)
        try:
            with zookeeper_span(doing), translated(doing, self.address), self._client.handler.waiting(wait_s):
                answer: T = retry(self._while_alive, work)
        except SessionLost:
            self._require_let_in()  # otherwise it ended for another reason
            raise
        self._require_alive(doing)  # an answer that another session got says nothing of ours
        return answer

    def protect(self, client: KazooClient, path: str) -> None:
        """Make a node that stands this identity's alone, where nodes are to be; repeating it is harmless."""
        if self._ensemble.protected:
            found, _ = client.get_acls(path)
            if any(one.id.scheme == "world" for one in found):
                client.set_acls(path, CREATOR_ALL_ACL)

    def close(self) -> None:
        """End the session: its ephemeral nodes go at once, if the server can be reached; repeating is harmless."""
        self.link = SessionEvent.EXPIRED
        self._client.remove_listener(self._heard)
        with self._closing:  # kazoo takes it badly when two threads stop it at once
            self._client.stop()
            self._client.close()

    def forget_position(self) -> None:
        """Reconnect as a client that has seen nothing, once the connection was away for two session timeouts.

        An ensemble that lost its data, or part of it, refuses one that saw later writes than it has: kazoo takes that
        for no answer, and asks again for ever. Asked like this it says whether the session lives, and one that outlived
        a long outage is kept. A server that only lags behind others has caught up, or serves no client, by then.
        """
        if self.link is SessionEvent.SUSPENDED and time.monotonic() - self._away_since >= 2 * self.timeout_s:
            self._client.last_zxid = 0

    def _while_alive(self, work: Callable[[KazooClient], T]) -> T:
        self._require_alive("asking")
        if self.link is SessionEvent.SUSPENDED:
            raise ConnectionLoss  # kazoo would queue the call, and wait until the connection is back
        return work(self._client)

    def _require_let_in(self) -> None:
        if self._client.refused:
            advice = "check the password in the setting `zookeeper_auth`, and that the servers know this user"
            raise ServiceFailed(ZOOKEEPER, f"{self.address} refuses our identity", advice=advice)

    def _require_alive(self, doing: str) -> None:
        if self.link is SessionEvent.EXPIRED:
            raise SessionLost(f"zookeeper: session {self.id:#x} was over while {doing}")

    def _heard(self, state: str) -> None:
        if self.link is SessionEvent.EXPIRED:
            return
        if state == KazooState.SUSPENDED:
            self._away_since = time.monotonic()
            self.link = SessionEvent.SUSPENDED
        else:
            same = state == KazooState.CONNECTED and self._now() == self.id
            self.link = SessionEvent.CONNECTED if same else SessionEvent.EXPIRED
        self._tell(self.link)

    def _now(self) -> int:
        found = self._client.client_id
        return int(found[0]) if found else 0

    def no_path(self) -> ServiceFailed:
        """The error of a path that does not exist."""
        return ServiceFailed(
            ZOOKEEPER,
            f"the path {self._client.chroot} of {self._ensemble.hosts} does not exist",
            advice="create it, or mend the setting `zookeeper`",
        )


class _Client(KazooClient):  # type: ignore[misc]
    """Kazoo's, which remembers that it was refused: it tells its listeners only that the session is over."""

    refused = False

    def _session_callback(self, state: str) -> None:
        self.refused |= state == KeeperState.AUTH_FAILED
        super()._session_callback(state)


def _client(ensemble: Ensemble) -> _Client:
    soon = min(2.0, ensemble.timeout_s / 3)  # once a server is back, before it ends the session
    as_long_as_it_takes = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=soon)  # away is not over
    scheme, credential = ensemble.auth or ("", "")
    user, _, password = credential.partition(":")
    sasl = {"mechanism": "DIGEST-MD5", "username": user, "password": password} if scheme == "sasl" else None
    tls = ensemble.tls
    return _Client(
        hosts=ensemble.hosts,
        timeout=ensemble.timeout_s,
        auth_data=[ensemble.auth] if ensemble.auth and not sasl else None,
        sasl_options=sasl,
        default_acl=CREATOR_ALL_ACL if ensemble.protected else None,
        use_ssl=tls is not None,
        check_hostname=tls is not None,
        **({"ca": tls.ca or None, "certfile": tls.cert or None, "keyfile": tls.key or None} if tls else {}),
        connection_retry=as_long_as_it_takes,
        handler=PatientHandler(ensemble.timeout_s),
        logger=_kazoo_log,
    )
