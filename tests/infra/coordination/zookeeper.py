"""A real ZooKeeper that a test may stop, wipe and have expire a session."""

import logging
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import ZooKeeperSession
from infra.stack.embedded_stack import StackAddresses, StackOptions, kill_stack, start_stack
from infra.stack.service_port_choice import ZOOKEEPER, RequestedPorts
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from tests.logstore.eventually import assert_eventually

_quiet = logging.getLogger("tests.zookeeper")


class ZooKeeper:
    """The server of one home."""

    def __init__(self, home: Path) -> None:
        """Start it."""
        self._home = home
        self.start()

    def start(self) -> None:
        """Start it, or bring it back on its data and port."""
        self.address = self._up().zookeeper

    def _up(self) -> StackAddresses:
        return start_stack(StackOptions(home=self._home, ports=RequestedPorts.any_free(), services=(ZOOKEEPER,)))

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        kill_stack(self._home)

    def wipe(self) -> None:
        """Bring it back, on its port, without anything that it ever knew."""
        self.kill()
        shutil.rmtree(StackHome.at(self._home).zookeeper / "data")
        self.start()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It answers nothing and drops nothing until the end.

        SIGSTOP reaches the threads of a process one after the other: until the last one stands, some of them answer.
        """
        running = ServiceProcess(ZOOKEEPER, StackHome.at(self._home)).find_process()
        assert running
        os.kill(running.pid, signal.SIGSTOP)
        try:
            threads = Path(f"/proc/{running.pid}/task")
            assert_eventually(lambda: all(_stands(thread) for thread in threads.iterdir()))
            yield
        finally:
            os.kill(running.pid, signal.SIGCONT)

    @contextmanager
    def client(self, hosts: str | None = None, *, session: tuple[int, bytes] | None = None) -> Iterator[KazooClient]:
        """A plain client; given a session it takes that one over."""
        client = KazooClient(hosts=hosts or self.address, timeout=5.0, client_id=session, logger=_quiet)
        client.start(timeout=20)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def expire(self, session: ZooKeeperSession) -> None:
        """End a session on the server's side: its holder learns of it when it is connected again."""
        found = session.run_idempotent("telling its id", lambda client: client.client_id)
        with self.client(session=found):
            pass  # whoever closes the connection closes the session


def _stands(thread: Path) -> bool:
    """The state is the first field behind the name, which ends with the last parenthesis; an ended thread stands."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True
