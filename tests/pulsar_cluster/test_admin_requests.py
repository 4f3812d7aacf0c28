"""Requests to the admin API of a broker that has just started."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.stack.service_port_choice import LOOPBACK
from tests.pulsar_cluster.cluster import RealCluster


@contextmanager
def run_admin(statuses: list[int]) -> Iterator[int]:
    """Answer each request with the next status. Yield the port."""

    class Admin(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def _answer(self) -> None:
            content = b'{"ledgers": []}'
            self.send_response(statuses.pop(0))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((LOOPBACK, 0), Admin) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def make_cluster(home: Path, admin_port: int) -> RealCluster:
    names = ("zookeeper", "bookie", "bookie_http", "stream_storage", "broker")
    (home / "pulsar-ports.json").write_text(json.dumps({**dict.fromkeys(names, 1), "admin": admin_port}))
    return RealCluster(home)


def test_read_that_fails_in_the_broker_is_repeated(tmp_path: Path) -> None:
    statuses = [500, 503, 200]
    with run_admin(statuses) as port:
        answer = make_cluster(tmp_path, port).request_admin("GET", "persistent/public/default/a/internalStats")
    assert (answer, statuses) == ({"ledgers": []}, [])


def test_change_and_expected_error_are_not_repeated(tmp_path: Path) -> None:
    statuses = [500, 500, 200]
    with run_admin(statuses) as port:
        cluster = make_cluster(tmp_path, port)
        assert cluster.request_admin("GET", "persistent/public/default/a", expected_errors=(500,)) is None
        with pytest.raises(RuntimeError, match=r"PUT .*: 500"):
            cluster.request_admin("PUT", "persistent/public/default/a")
    assert statuses == [200]
