"""The wire to S3 passes requests on unchanged, and fails them in the three ways that it is told to."""

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.soak.faulty_s3_proxy import FaultyS3Proxy


class _Server(ThreadingHTTPServer):
    """Remembers the bodies that reach it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.came: list[bytes] = []
        self.listing = b""  # what it answers a listing
        self.chunked = False  # that answer


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.came.append(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        self.send_response(200)
        body = self.server.listing or b"four"
        chunked = bool(self.server.listing) and self.server.chunked
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body)))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)

    do_GET = do_PUT = do_HEAD = _answer  # noqa: N815 - names of the standard library

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[_Server]:
    """Behind the wire."""
    made = _Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def wire(server: _Server) -> Iterator[FaultyS3Proxy]:
    """To that server."""
    made = FaultyS3Proxy(f"127.0.0.1:{server.server_address[1]}")
    yield made
    made.close()


@pytest.fixture
def client(wire: FaultyS3Proxy) -> Iterator[http.client.HTTPConnection]:
    """At this end."""
    made = http.client.HTTPConnection(wire.address, timeout=10)
    yield made
    made.close()


def _ask(client: http.client.HTTPConnection, method: str, body: bytes | None = None) -> tuple[int, bytes]:
    client.request(method, "/bucket/key", body=body)
    answer = client.getresponse()
    return answer.status, answer.read()


def test_requests_of_one_connection_are_passed_on(
    client: http.client.HTTPConnection, server: _Server, wire: FaultyS3Proxy
) -> None:
    """Bodies, answers without one, and what follows them."""
    assert _ask(client, "PUT", b"body" * 100_000) == (200, b"four")
    assert _ask(client, "HEAD") == (200, b"")
    assert _ask(client, "GET") == (200, b"four")
    assert server.came == [b"body" * 100_000, b"", b""]
    assert wire.weather.met == {"passed on": 3}


def test_error_is_answered_and_nothing_passed_on(
    client: http.client.HTTPConnection, server: _Server, wire: FaultyS3Proxy
) -> None:
    """As a store answers that is busy or broken."""
    wire.weather.errors = 1.0
    status, body = _ask(client, "PUT", b"body")
    assert status in {500, 503}
    assert b"<Code>" in body
    assert server.came == []


def test_lost_answer_is_of_a_request_that_was_carried_out(
    client: http.client.HTTPConnection, server: _Server, wire: FaultyS3Proxy
) -> None:
    """The write that landed and was reported as failed."""
    wire.weather.lost = 1.0
    with pytest.raises(http.client.RemoteDisconnected):
        _ask(client, "PUT", b"body")
    assert server.came == [b"body"]
    assert wire.weather.met["answer lost"] == 1


def test_listing_lacks_what_is_to_be_hidden_and_other_requests_do_not(
    client: http.client.HTTPConnection, server: _Server, wire: FaultyS3Proxy
) -> None:
    """As a store whose index lies; so many times, whether its answer has a length or comes in chunks."""
    whole = (
        b"<ListBucketResult><Contents><Size>1</Size><Key>a/1</Key></Contents>"
        b"<Contents><Key>b/1</Key></Contents><CommonPrefixes><Prefix>a/2/</Prefix></CommonPrefixes></ListBucketResult>"
    )
    without = b"<ListBucketResult><Contents><Key>b/1</Key></Contents></ListBucketResult>"
    server.listing = whole
    for chunked in (False, True):
        server.chunked = chunked
        wire.weather.unlisted = {"a/": 1}
        found = []
        for target in ("/bucket?list-type=2&prefix=b%2F", "/bucket?list-type=2&prefix=", "/bucket?list-type=2"):
            client.request("GET", target)
            found.append(client.getresponse().read())
        assert found == [whole, without, whole]
        assert wire.weather.unlisted == {}
    server.listing = b""
    assert _ask(client, "GET") == (200, b"four")
