"""A tiny S3 on loopback whose answers the test scripts: the real client is exercised, sockets and all."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the client sent."""

    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_bulk_delete(self) -> bool:
        """Whether this is a DeleteObjects."""
        return self.method == "POST" and "delete" in self.query

    @property
    def bulk_keys(self) -> list[str]:
        """The keys that a DeleteObjects names."""
        return [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", self.body.decode(), re.DOTALL)]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the peer says; status 0 closes the connection without a word."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def fault(status: int, code: str, **headers: str) -> Answer:
    """An S3 error document."""
    text = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>"
    return Answer(status, text.encode(), {name.replace("_", "-"): value for name, value in headers.items()})


def deleted(*keys: str, errors: Mapping[str, str] | None = None) -> Answer:
    """A DeleteResult: keys confirmed, and error codes by key."""
    confirmed = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
    refused = "".join(
        f"<Error><Key>{escape(key)}</Key><Code>{code}</Code><Message>scripted</Message></Error>"
        for key, code in (errors or {}).items()
    )
    return Answer(200, f"<DeleteResult>{confirmed}{refused}</DeleteResult>".encode())


def listing(*keys: str, truncated: bool = False, token: str | None = None, folders: Sequence[str] = ()) -> Answer:
    """A ListBucketResult."""
    prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders)
    contents = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
    then = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    flag = f"<IsTruncated>{str(truncated).lower()}</IsTruncated>"
    return Answer(200, f"<ListBucketResult>{flag}{then}{contents}{prefixes}</ListBucketResult>".encode())


Script = Callable[[Request], Answer]


@dataclass
class Peer:
    """A running peer: where it listens and what it was asked."""

    endpoint: str
    requests: list[Request] = field(default_factory=list)


@contextmanager
def scripted(script: Script) -> Iterator[Peer]:
    """Serve `script` until the block ends; requests of different connections call it at the same time."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            asked = Request(
                method=self.command,
                key=unquote(parts.path).removeprefix("/bucket").removeprefix("/"),
                query={name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()},
                headers={name.lower(): value for name, value in self.headers.items()},
                body=body,
            )
            peer.requests.append(asked)
            self._say(script(asked))

        def _say(self, answer: Answer) -> None:
            self.close_connection = not answer.status
            if not answer.status:
                return
            head = {"Content-Length": str(len(answer.body)), **answer.headers}
            lines = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in head.items())]
            body = b"" if self.command == "HEAD" or answer.status == 204 else answer.body
            self.wfile.write("\r\n".join([*lines, "", ""]).encode() + body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    peer = Peer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield peer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
