"""Record answers of a real broker about open transactions into `transactions.json`.

`python -m tests.infra.pulsar.recorded.record_transactions LIB ADMIN_URL SERVICE_URL ZOOKEEPER`

`LIB` is the folder with the jars of Pulsar's distribution. The broker needs `transactionCoordinatorEnabled=true` and
`systemTopicEnabled=true`, and must be new: nothing has used a transaction of it. The answers are recorded twice, the
second time after the unload of a topic with messages of a transaction. The entries of the coordinator's log are in
hexadecimal digits.
"""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.transaction_log_reads import read_log_payloads

_FOLDER: Final = Path(__file__).parent
_TIMEOUT_S: Final = 20.0
_PATHS: Final = (
    "/admin/v2/brokers/ready",
    "/admin/v2/clusters",
    "/admin/v2/persistent/acme/orders/placed/compaction",
    "/admin/v2/persistent/acme/orders/placed/internalStats",
    "/admin/v2/persistent/acme/orders/shipped/internalStats",
    "/admin/v3/transactions/coordinators",
    "/admin/v3/transactions/slowTransactions/-1?coordinatorId=0",
    "/admin/v3/transactions/slowTransactions/-1?coordinatorId=7",
    "/admin/v3/transactions/transactionInBufferStats/acme/orders/placed/0/0",
    "/admin/v3/transactions/transactionInBufferStats/acme/orders/placed/0/1",
    "/admin/v3/transactions/transactionInBufferStats/acme/orders/shipped/0/1",
    "/admin/v3/transactions/transactionInPendingAckStats/acme/orders/raw/importer/0/0",
    "/admin/v3/transactions/transactionInPendingAckStats/acme/orders/raw/audit/0/1",
    "/admin/v3/transactions/transactionInPendingAckStats/acme/orders/placed/billing/0/2",
    "/admin/v3/transactions/transactionBufferStats/acme/orders/placed",
    "/admin/v3/transactions/transactionBufferStats/acme/orders/shipped",
    "/admin/v3/transactions/pendingAckStats/acme/orders/raw/importer",
    "/admin/v3/transactions/pendingAckStats/acme/orders/raw/audit",
)
_LOADING: Final = "/admin/v2/persistent/acme/orders/shipped/internalStats"  # would load the topic again


def _request(url: str, method: str = "GET", body: Any = None) -> tuple[int, str] | None:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=data, method=method, headers=headers)  # noqa: S310 - the caller's broker
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except TimeoutError:
        return None


def _record(admin_url: str, paths: tuple[str, ...]) -> dict[str, Any]:
    """Return status and body by path, or `None` for a request that got no answer."""
    place = urlsplit(admin_url).netloc
    answers: dict[str, Any] = {}
    for path in paths:
        answer = _request(admin_url + path)
        if answer is not None:
            text = answer[1].replace(place, "broker:8080").replace(urlsplit(admin_url).hostname or "", "broker")
            lines = text.split("\\n")  # within JSON; a stack trace is long, and its first lines say enough
            answer = (answer[0], "\\n".join(lines[:10]) + ('"}' if len(lines) > 10 else ""))
        answers[path] = answer
    return answers


def _record_log(zookeeper: str) -> list[str]:
    with PulsarCluster(zookeeper=zookeeper).open_reader(parallel_sessions=1) as reader:
        directory = BookieDirectory(reader, "ledgers")
        return [payload.hex() for payload in read_log_payloads(reader, directory, "ledgers", 0) or ()]


def main(lib: str, admin_url: str, service_url: str, zookeeper: str) -> None:
    _request(f"{admin_url}/admin/v2/tenants/acme", "PUT", {"allowedClusters": ["standalone"]})
    _request(f"{admin_url}/admin/v2/namespaces/acme/orders", "PUT")
    program = ["java", "-cp", f"{lib}/*", str(_FOLDER / "OpenTransactions.java"), service_url]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert any("ready" in line for line in client.stdout), "expected open transactions, found a failed client"
        loaded = _record(admin_url, _PATHS)
        _request(f"{admin_url}/admin/v2/persistent/acme/orders/shipped/unload", "PUT")
        unloaded = _record(admin_url, tuple(path for path in _PATHS if path != _LOADING))
        log = _record_log(zookeeper)
        client.stdin.close()
    text = json.dumps({"loaded": loaded, "unloaded": unloaded, "log": log}, indent=1)
    (_FOLDER / "transactions.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
