"""Client of the admin REST API of a Pulsar cluster's brokers."""

import json
import socket
import ssl
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import urllib3

from infra.pulsar.broker_registrations import RegisteredBroker
from logstore.errors import InvalidInput, ServiceFailed, shorten_text
from logstore.setting_files import read_secret_file
from logstore.stop_checks import raise_if_stopped

MAX_ANSWER_BYTES: Final = 256 << 20
"""Longest answer in bytes: statistics of some 100,000 topics."""

ADVICE_UNKNOWN_VERSION: Final = "the cluster may have a version of Pulsar that Sexton does not know"

_ATTEMPTS: Final = 3
_BACKOFF_S: Final = 0.5  # doubles after each attempt
_CONNECT_TIMEOUT_S: Final = 5.0
_TIMEOUT_S: Final = 15.0  # of one attempt; a broker ends its own requests to other brokers after 10 s
_MAX_REDIRECTS: Final = 5
_HEADINGS_OF_REASON: Final = {
    "",
    "--- An unexpected error occurred in the server ---",
    "null",
    "Stacktrace:",
}
_PART_BYTES: Final = 64 << 10
_REDIRECTS: Final = {301, 302, 307, 308}
_REFUSED: Final = {401, 403}
_NOT_FOUND: Final = 404
_SUCCESSES: Final = range(200, 300)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAdminAddress:
    """Address of a broker or proxy. The files have the same paths on every executor."""

    url: str
    token_file: str = ""  # empty: no token
    ca_file: str = ""  # empty: the machine's authorities


class AdminRequestFailed(ServiceFailed):
    """A request to the admin API got no answer, or another one than expected. `status` is `None` without an answer."""

    def __init__(
        self, path: str, *, expected: str, found: str, advice: str, status: int | None = None, method: str = "GET"
    ) -> None:
        super().__init__("pulsar_admin_url", f"{method} {path}: expected {expected}, found {found}", advice=advice)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Answer:
    path: str  # of the request, without the host
    status: int
    body: bytes
    method: str


class BrokerAdmin:
    """Client of the admin API. Threads may share it.

    A broker redirects a request about a topic to the broker that has loaded the topic. The client follows only to hosts
    of `brokers`, which ZooKeeper names, because it sends its token there. The token's file is read for each request.

    All methods that send a request raise:
        AdminRequestFailed: There is no answer, or it is not the expected one.
        InvalidInput: The file of the token or of the authorities cannot be read.
    """

    def __init__(
        self,
        address: BrokerAdminAddress,
        brokers: Collection[RegisteredBroker] = (),
        *,
        timeout_s: float = _TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address, self._timeout_s, self._sleep = address, timeout_s, sleep
        self._trusted_hosts = {urlsplit(address.url).hostname} | {
            urlsplit(url).hostname for broker in brokers for url in (broker.url, broker.tls_url) if url
        }
        self._is_tls = address.url.startswith("https:")
        tls = _create_tls_context(address.ca_file) if self._is_tls else None
        self._pool = urllib3.PoolManager(
            maxsize=8, ssl_context=tls, timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=timeout_s)
        )

    def read_text(self, path: str) -> str:
        answer = self._request(path, "a text")
        self._require_success(answer, "a text")
        return answer.body.decode(errors="replace")

    def read_json(self, path: str, kind: type[T], *, broker: RegisteredBroker | None = None) -> T:
        """Return the answer of `broker`, or of the broker at the configured address."""
        answer = self._request(path, _describe_type(kind), self.choose_url(broker))
        self._require_success(answer, _describe_type(kind))
        return _parse_json(answer, kind)

    def find_json(self, path: str, kind: type[T], *, attempts: int = _ATTEMPTS) -> T | None:
        """Return the answer, or `None` if the broker says that the object does not exist.

        A 404 counts only with Pulsar's own error document. Another server or a wrong path answers 404, too.
        """
        answer = self._request(path, _describe_type(kind), attempts=attempts)
        if answer.status == _NOT_FOUND and _find_reason(answer.body):
            return None
        self._require_success(answer, _describe_type(kind))
        return _parse_json(answer, kind)

    def send(self, method: str, path: str) -> None:
        """Send a request that changes something, once, without a body. A status from 200 to 299 is a success.

        A request that fails may have been carried out, or may still be: read the state again.
        """
        answer = self._request(path, "success", attempts=1, method=method)
        if answer.status not in _SUCCESSES:
            raise self._make_status_error(answer, "success")

    def connect_to_broker(self, service_url: str) -> socket.socket:
        """Connect to the port for clients of a broker of the cluster, with TLS if its URL begins with `pulsar+ssl`.

        Raises:
            AdminRequestFailed: The URL has the host of no broker, or no TLS although `pulsar_admin_url` has it.
            OSError: There is no connection.
        """
        parts = urlsplit(service_url)
        schemes = ("pulsar+ssl",) if self._is_tls else ("pulsar", "pulsar+ssl")
        if parts.scheme not in schemes or parts.hostname not in self._trusted_hosts or parts.port is None:
            expected = f"the URL of a broker of the cluster, with {' or '.join(schemes)}"
            advice = "the token was not sent there; check pulsar_admin_url"
            raise AdminRequestFailed("", expected=expected, found=service_url, advice=advice, method="CONNECT")
        connection = socket.create_connection((parts.hostname, parts.port), _CONNECT_TIMEOUT_S)
        connection.settimeout(self._timeout_s)
        if parts.scheme == "pulsar":
            return connection
        try:
            return _create_tls_context(self._address.ca_file).wrap_socket(connection, server_hostname=parts.hostname)
        except BaseException:
            connection.close()
            raise

    def read_token(self) -> str:
        """Return the token of the setting, or "" without one."""
        if not self._address.token_file:
            return ""
        token = read_secret_file("pulsar_admin_token_file", self._address.token_file)
        if not token.isascii():
            expected = "a token of ASCII characters"
            raise InvalidInput("pulsar_admin_token_file", expected=expected, found=self._address.token_file)
        return token

    def choose_url(self, broker: RegisteredBroker | None) -> str:
        """Return the URL of `broker` with the scheme of the configured address, or that address without a broker.

        Raises:
            InvalidInput: The broker has no URL with this scheme.
        """
        if broker is None:
            return self._address.url
        url = broker.tls_url if self._address.url.startswith("https:") else broker.url
        if not url:
            scheme = urlsplit(self._address.url).scheme
            raise InvalidInput("pulsar_admin_url", expected=f"a scheme that {broker.id} has, too", found=scheme)
        return url

    def _require_success(self, answer: _Answer, expected: str) -> None:
        if answer.status != 200:
            raise self._make_status_error(answer, expected)

    def _make_status_error(self, answer: _Answer, expected: str) -> AdminRequestFailed:
        reason = _find_reason(answer.body)
        advice = "see the log of the broker"
        if answer.status in _REFUSED:
            advice = "check pulsar_admin_token_file; its role needs the rights of a superuser"
        elif answer.status == _NOT_FOUND:
            advice = "check pulsar_admin_url"
        found = f"status {answer.status}{f' ({reason})' if reason else ''}"
        return AdminRequestFailed(
            answer.path, expected=expected, found=found, advice=advice, status=answer.status, method=answer.method
        )

    def _request(
        self, path: str, expected: str, base_url: str = "", attempts: int = _ATTEMPTS, method: str = "GET"
    ) -> _Answer:
        """Return an answer whose status may be any. Answers with status 500 and above are retried."""
        for attempt in range(attempts):
            if attempt:
                self._sleep(_BACKOFF_S * 2 ** (attempt - 1))
            raise_if_stopped()
            try:
                answer = self._follow_redirects(method, path, (base_url or self._address.url).rstrip("/") + path)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if attempt == attempts - 1:
                    raise _no_answer_error(method, path, expected, error) from None
                continue
            if answer.status < 500 or attempt == attempts - 1:
                return answer
        raise AssertionError("unreachable: there is at least one attempt")

    def _follow_redirects(self, method: str, path: str, url: str) -> _Answer:
        for _ in range(_MAX_REDIRECTS):
            response = self._pool.request(
                method, url, headers=self._make_headers(method), redirect=False, retries=False, preload_content=False
            )
            try:
                body = self._read_body(response)
            finally:
                response.close()
            target = response.headers.get("Location")
            if response.status not in _REDIRECTS or not target:
                return _Answer(path, response.status, body, method)
            url = self._require_trusted(method, path, url, urljoin(url, target))
        found = f"more than {_MAX_REDIRECTS} redirects"
        raise AdminRequestFailed(path, expected="an answer", found=found, advice="try again in a minute", method=method)

    def _require_trusted(self, method: str, path: str, url: str, target: str) -> str:
        parts = urlsplit(target)
        if parts.scheme != urlsplit(url).scheme or parts.hostname not in self._trusted_hosts:
            expected = "a redirect to a broker of the cluster, with the same scheme"
            advice = "the token was not sent there; check pulsar_admin_url"
            found = f"{parts.scheme}://{parts.hostname}"
            raise AdminRequestFailed(path, expected=expected, found=found, advice=advice, method=method)
        return target

    def _make_headers(self, method: str) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if method != "GET":
            headers["Content-Type"] = "application/json"  # brokers expect it, even of a request without a body
        if token := self.read_token():
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _read_body(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """Read within the timeout, even if the server sends a byte from time to time."""
        deadline, body = time.monotonic() + self._timeout_s, bytearray()
        while part := response.read1(_PART_BYTES):
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise urllib3.exceptions.HTTPError(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
            if time.monotonic() > deadline:
                raise urllib3.exceptions.HTTPError(f"no end of the answer after {self._timeout_s:g} s")
        return bytes(body)


def format_topic_path(topic: str) -> str:
    """Return `tenant/namespace/name` of a topic's full name, quoted for a path.

    A topic of Pulsar 1, which has a cluster between tenant and namespace, is refused: no name of today has a slash.

    Raises:
        InvalidInput: The name has another form than `persistent://tenant/namespace/name`.
    """
    domain, _, rest = topic.partition("://")
    parts = rest.split("/")
    if domain != "persistent" or len(parts) != 3 or not all(parts):
        raise InvalidInput("topic", expected="persistent://tenant/namespace/name", found=topic)
    return "/".join(quote(part, safe="") for part in parts)


def require_field(document: Any, name: str, kind: type[T], path: str) -> T:  # noqa: ANN401 - parsed JSON
    """Return a field of an object in the answer for `path`. Raise `AdminRequestFailed` if its type differs."""
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        expected, found = f"{name} with {_describe_type(kind)}", shorten_text(json.dumps(value))
        raise AdminRequestFailed(path, expected=expected, found=found, advice=ADVICE_UNKNOWN_VERSION)
    return value


def _parse_json(answer: _Answer, kind: type[T]) -> T:
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        found = shorten_text(repr(answer.body[:200].decode(errors="replace")))
        advice = "check that pulsar_admin_url is the address of a broker or proxy of Pulsar"
        raise AdminRequestFailed(answer.path, expected=_describe_type(kind), found=found, advice=advice, status=200)
    return value


def _describe_type(kind: type) -> str:
    return {dict: "a JSON object", list: "a JSON list", str: "a text", int: "a whole number"}.get(kind, kind.__name__)


def _find_reason(body: bytes) -> str:
    """Return the message of Pulsar's error document, without the stack trace, or "" for another document."""
    try:
        reason = json.loads(body)["reason"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    lines = [line.strip().removeprefix("Message: ") for line in str(reason).splitlines()]
    message = next((line for line in lines if line not in _HEADINGS_OF_REASON), "")
    return shorten_text("".join(char if char.isprintable() else " " for char in message))


def _no_answer_error(method: str, path: str, expected: str, error: Exception) -> AdminRequestFailed:
    advice = "start the brokers, or correct pulsar_admin_url"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            advice = "check pulsar_admin_url and pulsar_admin_ca_file"
            break
        cause = cause.__cause__ or cause.__context__
    return AdminRequestFailed(path, expected=expected, found=_describe_failure(error), advice=advice, method=method)


def _describe_failure(error: Exception) -> str:
    match error:
        case urllib3.exceptions.NewConnectionError() | ConnectionError():  # a kind of urllib3's TimeoutError
            return "no connection"
        case urllib3.exceptions.TimeoutError():
            return "no answer in time"
        case urllib3.exceptions.SSLError() | ssl.SSLError():
            return f"no trusted connection ({shorten_text(str(error))})"
    return shorten_text(str(error)) or type(error).__name__


def _create_tls_context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError):
        expected = "certificates of authorities in PEM"
        raise InvalidInput("pulsar_admin_ca_file", expected=expected, found=ca_file) from None
