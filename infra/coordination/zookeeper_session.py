"""One ZooKeeper session, from its start to its end, and translation of kazoo's errors.

A session that has ended is not opened again.

1. Every wait for an answer is bounded, because kazoo answers some queued calls only after the next connection.
2. A `ZooKeeperSession` ends when the session id changes: kazoo or a server may open another session at a reconnect
   (ClickHouse#116690). The process then has to open another `ZooKeeperSession` and read all nodes again.
3. Listeners of kazoo only pass events on, because a call on kazoo's thread would wait for itself (kazoo#355).
"""

import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    SessionExpiredError,
)
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from infra.telemetry.client_spans import trace_zookeeper_call_within_trace
from logstore.errors import ServiceFailed, SessionLost, StoreUnavailable
from logstore.setting_files import PemFiles

ZOOKEEPER: Final = "zookeeper"

_SESSION_ENDED: Final = (SessionExpiredError, ConnectionClosedError)
_ACCESS_DENIED: Final = (AuthFailedError, InvalidACLError, NoAuthError)


@contextmanager
def translate_kazoo_errors(action: str, address: str, setting: str) -> Iterator[None]:
    """Translate kazoo's errors in the block into errors of Sexton.

    `action` is a phrase for messages, such as "reading owners". `setting` names the setting of the address.

    Raises:
        StoreUnavailable: ZooKeeper did not answer in time. The request may have been executed.
        SessionLost: The session has ended, and its ephemeral nodes are deleted.
        ServiceFailed: ZooKeeper refuses this identity. A retry does not help.
    """
    try:
        yield
    except _SESSION_ENDED as error:
        raise SessionLost(f"zookeeper: the session ended while {action}") from error
    except _ACCESS_DENIED as error:
        # Sexton needs everything on its own nodes, and as little as possible on those of a Pulsar cluster.
        rights = "all rights" if setting == ZOOKEEPER else "the right to do this"
        raise ServiceFailed(
            ZOOKEEPER,
            f"{address} refuses us while {action} ({type(error).__name__})",
            advice=f"grant this worker's identity {rights} on that path, or mend the setting `{setting}_auth`",
        ) from error
    except (KazooException, KazooTimeoutError) as error:  # no connection, or no answer in time
        raise StoreUnavailable(
            f"zookeeper: no answer while {action}: {type(error).__name__} {error}".strip()
        ) from error


_TLS_CHECK_TIMEOUT_S = 1.0


def unreachable_error(hosts: str, tls: PemFiles | None, setting: str) -> ServiceFailed:
    """Return the error for an ensemble without a reachable server. `hosts` is `host:port,…/path`.

    `setting` names the setting of the address.

    With TLS, connect to each server once more, because kazoo reports an untrusted server as unreachable.
    """
    addresses = hosts.partition("/")[0].split(",")
    tls_problem = (
        next(filter(None, (_find_tls_problem_of_server(address, tls) for address in addresses)), "") if tls else ""
    )
    if tls_problem:
        advice = f"check the settings `{setting}_ca_file`, `{setting}_cert_file` and `{setting}_key_file`"
        return ServiceFailed(ZOOKEEPER, f"no trusted connection to {hosts}: {tls_problem}", advice=advice)
    start = "start it (`sexton up` starts an embedded one)" if setting == ZOOKEEPER else "start it"
    advice = f"{start} or mend the setting `{setting}`"
    return ServiceFailed(ZOOKEEPER, f"cannot be reached at {hosts}", advice=advice)


def _find_tls_problem_of_server(address: str, tls: PemFiles) -> str:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=tls.ca or None)
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    try:
        with socket.create_connection((host, int(port)), timeout=_TLS_CHECK_TIMEOUT_S) as plain:
            plain.settimeout(_TLS_CHECK_TIMEOUT_S)
            with context.wrap_socket(plain, server_hostname=host) as secured:
                secured.settimeout(_TLS_CHECK_TIMEOUT_S)
                first_byte = secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return (error.reason or "no TLS").lower().replace("_", " ")
    except OSError:
        return ""
    return "" if first_byte else "the server closed the connection, perhaps because it requires a client certificate"


class BoundedWaitHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Handler for kazoo's threads. Each wait for a result takes at most `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._default_timeout_s, self._thread_local = timeout_s, threading.local()

    @property
    def timeout_s(self) -> float:
        return float(getattr(self._thread_local, "timeout_s", self._default_timeout_s))

    @contextmanager
    def limit_wait(self, timeout_s: float) -> Iterator[None]:
        """Shorten the maximum wait for a result in the current thread while the block runs."""
        self._thread_local.timeout_s = min(timeout_s, self._default_timeout_s)
        try:
            yield
        finally:
            del self._thread_local.timeout_s

    def async_result(self) -> "_BoundedResult":
        return _BoundedResult(self)


class _BoundedResult(AsyncResult):  # type: ignore[misc]
    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401 - kazoo's
        return super().get(block, self._handler.timeout_s if timeout is None else timeout)


T = TypeVar("T")

_kazoo_log = logging.getLogger("kazoo.client")
_kazoo_log.addHandler(logging.NullHandler())  # commands report failures themselves, in one sentence


class SessionState(StrEnum):
    CONNECTED = "CONNECTED"  # also after a reconnect to the same session
    SUSPENDED = "SUSPENDED"  # no connection; the session may have ended
    EXPIRED = "EXPIRED"  # ended; all of its ephemeral nodes are deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleOptions:
    """Address of ZooKeeper, and identity of the client.

    Args:
        hosts: One or more `host:port`, separated by commas, and optionally a slash and the path of Sexton's nodes.
        timeout_s: Requested session timeout. The server may set another timeout.
        auth: Scheme and credential, such as `("digest", "user:password")`. Scheme `sasl` means SASL DIGEST-MD5.
        protected: Whether only this identity may access the nodes.
        tls: PEM files. `None` means a plain connection.
        setting: Name of the setting of the address, for messages. The settings of identity and TLS begin with it.
    """

    hosts: str
    timeout_s: float = 10.0
    auth: tuple[str, str] | None = field(default=None, repr=False)
    protected: bool = False
    tls: PemFiles | None = None
    setting: str = ZOOKEEPER


class ZooKeeperSession:
    """Open session with ZooKeeper. Construction connects.

    `on_change` is called on kazoo's thread at each change of `state`, and must return at once.

    Raises:
        ServiceFailed: No server answers, the servers refuse the connection, or the path does not exist.
        SessionLost: The session ended while it was opened.
    """

    def __init__(self, ensemble: EnsembleOptions, on_change: Callable[[SessionState], None]) -> None:
        self._ensemble, self._on_change = ensemble, on_change
        self.state = SessionState.CONNECTED
        self._suspended_since_s = 0.0
        self._closing = threading.Lock()
        self._client = _build_client(ensemble)
        try:
            if not self._client.start_async().wait(timeout=ensemble.timeout_s):
                self._require_authorized()
                raise unreachable_error(ensemble.hosts, ensemble.tls, ensemble.setting)  # noqa: TRY301 - the handler closes the client
            self.id = self._read_session_id()
            self._client.add_listener(self._on_kazoo_state)
            self._require_authorized()
            if self._read_session_id() != self.id:  # the session may have ended before the listener was added
                raise SessionLost(f"zookeeper: session {self.id:#x} was over as soon as it was opened")  # noqa: TRY301
            if not self.run_idempotent("looking for the path", lambda client: client.exists("/")):
                raise self.missing_path_error()  # noqa: TRY301 - not created: the ensemble may be another system's
        except BaseException:
            self.close()
            raise

    @property
    def timeout_s(self) -> float:
        return self._ensemble.timeout_s

    @property
    def address(self) -> str:
        hosts = self._ensemble.hosts
        return hosts if "/" in hosts else f"{hosts}/"

    def run_idempotent(self, action: str, operation: Callable[[KazooClient], T], *, patience_s: float = math.inf) -> T:
        """Run an operation that may be repeated. Retry it after the loss of a connection.

        `action` is a phrase for messages and spans, such as "reading owners". All retries and waits together last at
        most `patience_s`, and at most the session timeout.

        Raises:
            StoreUnavailable: ZooKeeper did not answer. The operation may have been executed.
            SessionLost: This session has ended.
            ServiceFailed: ZooKeeper refuses this identity.
        """
        self._require_authorized()
        wait_s = min(patience_s, self.timeout_s)
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, deadline=wait_s, ignore_expire=False)
        try:
            with (
                trace_zookeeper_call_within_trace(action),
                translate_kazoo_errors(action, self.address, self._ensemble.setting),
                self._client.handler.limit_wait(wait_s),
            ):
                result: T = retry(self._run_if_connected, operation)
        except SessionLost:
            self._require_authorized()  # kazoo reports a refused identity as a session that ended
            raise
        self._require_alive(action)  # the result may come from a later session
        return result

    def protect_node(self, client: KazooClient, path: str) -> None:
        """Restrict an existing node to this identity if `EnsembleOptions.protected` is set. Idempotent."""
        if self._ensemble.protected:
            acls, _ = client.get_acls(path)
            if any(acl.id.scheme == "world" for acl in acls):
                client.set_acls(path, CREATOR_ALL_ACL)

    def close(self) -> None:
        """End the session. A reachable server deletes the session's ephemeral nodes at once. Idempotent."""
        self.state = SessionState.EXPIRED
        self._client.remove_listener(self._on_kazoo_state)
        with self._closing:  # kazoo does not support a stop by two threads at once
            self._client.stop()
            self._client.close()

    def reset_last_zxid(self) -> None:
        """Forget ZooKeeper's last transaction id (zxid) after a suspension of two session timeouts.

        An ensemble that lost data refuses a client with a higher zxid, and kazoo would retry forever. A client without
        a zxid learns from the server whether the session is alive.
        """
        if self.state is SessionState.SUSPENDED and time.monotonic() - self._suspended_since_s >= 2 * self.timeout_s:
            self._client.last_zxid = 0

    def _run_if_connected(self, operation: Callable[[KazooClient], T]) -> T:
        self._require_alive("asking")
        if self.state is SessionState.SUSPENDED:
            raise ConnectionLoss  # kazoo would queue the call until the connection is back
        return operation(self._client)

    def _require_authorized(self) -> None:
        if self._client.refused:
            setting = self._ensemble.setting
            advice = f"check the password in the setting `{setting}_auth`, and that the servers know this user"
            raise ServiceFailed(ZOOKEEPER, f"{self.address} refuses our identity", advice=advice)

    def _require_alive(self, action: str) -> None:
        if self.state is SessionState.EXPIRED:
            raise SessionLost(f"zookeeper: session {self.id:#x} was over while {action}")

    def _on_kazoo_state(self, state: str) -> None:
        if self.state is SessionState.EXPIRED:
            return
        if state == KazooState.SUSPENDED:
            self._suspended_since_s = time.monotonic()
            self.state = SessionState.SUSPENDED
        else:
            is_same_session = state == KazooState.CONNECTED and self._read_session_id() == self.id
            self.state = SessionState.CONNECTED if is_same_session else SessionState.EXPIRED
        self._on_change(self.state)

    def _read_session_id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    def missing_path_error(self) -> ServiceFailed:
        return ServiceFailed(
            ZOOKEEPER,
            f"the path {self._client.chroot} of {self._ensemble.hosts} does not exist",
            advice=f"create it, or mend the setting `{ZOOKEEPER}`"
            if self._ensemble.setting == ZOOKEEPER
            else f"mend the setting `{self._ensemble.setting}`",
        )


class _IdentityRefusalClient(KazooClient):  # type: ignore[misc]
    """Client that records a refusal of its identity. Kazoo tells its listeners only that the session has ended."""

    refused = False

    def _session_callback(self, state: str) -> None:
        self.refused |= state == KeeperState.AUTH_FAILED
        super()._session_callback(state)


def _build_client(ensemble: EnsembleOptions) -> _IdentityRefusalClient:
    max_delay_s = min(2.0, ensemble.timeout_s / 3)  # a server that is up again is tried before the session ends
    unlimited_retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=max_delay_s)
    scheme, credential = ensemble.auth or ("", "")
    user, _, password = credential.partition(":")
    sasl = {"mechanism": "DIGEST-MD5", "username": user, "password": password} if scheme == "sasl" else None
    tls = ensemble.tls
    return _IdentityRefusalClient(
        hosts=ensemble.hosts,
        timeout=ensemble.timeout_s,
        auth_data=[ensemble.auth] if ensemble.auth and not sasl else None,
        sasl_options=sasl,
        default_acl=CREATOR_ALL_ACL if ensemble.protected else None,
        use_ssl=tls is not None,
        check_hostname=tls is not None,
        **({"ca": tls.ca or None, "certfile": tls.cert or None, "keyfile": tls.key or None} if tls else {}),
        connection_retry=unlimited_retry,
        handler=BoundedWaitHandler(ensemble.timeout_s),
        logger=_kazoo_log,
    )
