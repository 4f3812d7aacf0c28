"""Generated Pulsar cluster of a benchmark: a real ZooKeeper, and the znodes of many ledgers."""

import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient

from infra.stack.embedded_stack import define_zookeeper_service
from infra.stack.service_port_choice import LOOPBACK, ChosenPorts
from infra.stack.stack_home import StackHome
from tests.logstore.pulsar import wire

_CREATES_PER_TRANSACTION: Final = 500
_TRANSACTIONS_AHEAD: Final = 8
_BOOKIES: Final = ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")


def make_ledger(component: str, **keys: str) -> bytes:
    """Return the value of the znode of a ledger of Pulsar. `keys` name its owner."""
    custom = {"application": "pulsar", "component": component, **{f"pulsar/{name}": key for name, key in keys.items()}}
    return wire.ledger_metadata(custom=custom, bookies=_BOOKIES)


def write_znodes(zookeeper: str, znodes: Iterable[tuple[str, bytes]]) -> None:
    """Create znodes from path and value. A parent among them comes before its children."""
    pending: deque[Any] = deque()
    parents: set[str] = set()
    remaining = iter(znodes)
    with connect(zookeeper) as client:
        while batch := list(islice(remaining, _CREATES_PER_TRANSACTION)):
            transaction = client.transaction()
            own_paths = {path for path, _ in batch}
            for path, value in batch:
                parent = path.rpartition("/")[0]
                if parent not in parents and parent not in own_paths:
                    client.ensure_path(f"/{parent}")
                    parents.add(parent)
                transaction.create(f"/{path}", value)
            pending.append(transaction.commit_async())
            while len(pending) > (_TRANSACTIONS_AHEAD if len(batch) == _CREATES_PER_TRANSACTION else 0):
                failures = [result for result in pending.popleft().get() if isinstance(result, Exception)]
                if failures:
                    raise RuntimeError(f"expected new znodes, found {failures[0]!r}")
        for result in pending:
            result.get()


@contextmanager
def connect(zookeeper: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=zookeeper, timeout=60.0)
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def run_zookeeper(home: Path) -> Iterator[tuple[str, int]]:
    """Run the server of an embedded stack, with memory for all znodes. Yield its address and process id."""
    layout = StackHome.at(home)
    layout.create_directories_and_check_space()
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    service = define_zookeeper_service(layout, ChosenPorts(zookeeper=port))
    command = service.command()
    options = ("-Xmx3g", "-Dzookeeper.forceSync=no", "-Dzookeeper.snapCount=10000000")
    argv = [*command.argv[:1], *[option for option in command.argv[1:] if not option.startswith("-Xmx")]]
    argv[1:1] = options
    with subprocess.Popen(argv, cwd=command.cwd, env=dict(command.env), stdout=subprocess.DEVNULL) as process:
        try:
            while service.probe():
                time.sleep(0.1)
            yield f"{LOOPBACK}:{port}", process.pid
        finally:
            process.kill()


def tell(line: str) -> None:
    """Say how far it is; stdout has the one document."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
