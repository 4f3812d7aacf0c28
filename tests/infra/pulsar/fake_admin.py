"""A small HTTP server that answers as the admin API of a broker."""

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.tls_servers import TlsCertificateFiles

RECORDED: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    (Path(__file__).parent / "recorded" / "transactions.json").read_text(encoding="utf-8")
)
"""Answers of a real broker by path, as `FakeAdmin.answers` has them: with all topics loaded, and with one unloaded."""

CLUSTER_ANSWERS: Final[Mapping[str, Any]] = {
    "/admin/v2/clusters": ["standalone"],
    "/admin/v2/brokers/standalone": ["127.0.0.1:8080"],
}
"""Answers of a broker of the cluster that `CLUSTER_ZNODES` describe."""

CLUSTER_ZNODES: Final[Mapping[str, bytes]] = {
    "admin/clusters/standalone": b"{}",
    "loadbalance/brokers/127.0.0.1:8080": b'{"webServiceUrl": "http://127.0.0.1:8080"}',
}

NOT_FOUND: Final = (404, '{"reason":"Topic not found"}')


@dataclass(frozen=True)
class Drip:
    """Answer without an end: a space every tenth of a second."""


@dataclass(frozen=True)
class Redirect:
    url: str


@dataclass
class FakeAdmin:
    """Server whose answers a test sets, by path and query. Before a path stands the method, unless it is GET.

    An answer is status and text, a JSON value, `Drip`, `Redirect`, or `None` for none. A list of pairs of status and
    text is used up by requests, except its last item. A function is called for each request, and returns an answer.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # as in `answers`, and Authorization
    closing: threading.Event = field(default_factory=threading.Event)

    def count(self, path: str) -> int:
        return [requested for requested, _ in self.requests].count(path)

    def take_answer(self, path: str) -> Any:
        answer = self.answers.get(path, (404, "<html>no such page</html>"))
        if callable(answer):
            return answer()
        is_sequence = isinstance(answer, list) and answer and isinstance(answer[0], tuple)
        return (answer.pop(0) if len(answer) > 1 else answer[0]) if is_sequence else answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, admin: FakeAdmin) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.admin = admin

    def handle_error(self, *_: object) -> None:
        """Ignore clients that have gone away."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer(self.path)

    def do_POST(self) -> None:
        self._answer(f"POST {self.path}")

    def do_DELETE(self) -> None:
        self._answer(f"DELETE {self.path}")

    def _answer(self, request: str) -> None:
        self.server.admin.requests.append((request, self.headers.get("Authorization")))
        match self.server.admin.take_answer(request):
            case None:
                self.server.admin.closing.wait()
            case Drip():
                self._send(200, {})
                while not self.server.admin.closing.wait(0.1):
                    self.wfile.write(b" ")
            case Redirect(url):
                self._send(307, {"Location": url, "Content-Length": "0"})
            case (int() as status, str() as text) | [int() as status, str() as text]:
                self._send(status, {"Content-Length": str(len(text.encode()))}, text)
            case document:
                text = json.dumps(document)
                self._send(200, {"Content-Length": str(len(text.encode()))}, text)

    def _send(self, status: int, headers: Mapping[str, str], text: str = "") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_admin(
    answers: Mapping[str, Any] | None = None, tls: TlsCertificateFiles | None = None
) -> Iterator[FakeAdmin]:
    admin = FakeAdmin(dict(answers or {}))
    server = _Server(admin)
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.cert, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    admin.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield admin
    finally:
        admin.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
