"""A broker's port for clients, which speaks as much of the real protocol as the load of a coordinator needs."""

import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from logstore.pulsar.protos.broker_commands_pb2 import Command, Empty, Failure

_SIZES: Final = struct.Struct(">II")
LOADED: Final = Command(type=Command.COORDINATOR_LOADED, coordinator_loaded=Failure(request_id=1))
PING: Final = Command(type=Command.PING)


@dataclass
class FakeBroker:
    """Broker that answers the load of a coordinator with `answers`. `commands` has what it received."""

    answers: list[Command | bytes] = field(default_factory=lambda: [LOADED])
    commands: list[Command] = field(default_factory=list)
    before_answer: Callable[[], None] = lambda: None
    url: str = ""

    def types(self) -> list[int]:
        return [command.type for command in self.commands]


class _Handler(socketserver.BaseRequestHandler):
    server: "_Server"

    def handle(self) -> None:
        broker = self.server.broker
        while (command := self._receive()) is not None:
            broker.commands.append(command)
            if command.type == Command.CONNECT:
                self._send(Command(type=Command.CONNECTED))
            elif command.type == Command.LOAD_COORDINATOR:
                broker.before_answer()
                for answer in broker.answers:
                    self._send(answer)
                if broker.answers and isinstance(broker.answers[-1], bytes):
                    return

    def _receive(self) -> Command | None:
        sizes = self.request.recv(_SIZES.size, 0x100)  # MSG_WAITALL
        if len(sizes) < _SIZES.size:
            return None
        frame_bytes, command_bytes = _SIZES.unpack(sizes)
        assert frame_bytes == command_bytes + 4
        return Command.FromString(self.request.recv(command_bytes, 0x100))

    def _send(self, answer: Command | bytes) -> None:
        if isinstance(answer, bytes):
            self.request.sendall(answer)
            return
        body = answer.SerializeToString()
        self.request.sendall(_SIZES.pack(len(body) + 4, len(body)) + body)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.broker = broker

    def handle_error(self, *_: object) -> None:
        """Ignore clients that have gone away."""


@contextmanager
def serve_broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    server = _Server(broker)
    broker.url = f"pulsar://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield broker
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_failure(command_type: "Command.Type", message: str) -> Command:
    failure = Failure(request_id=1, error=20, message=message)
    if command_type == Command.ERROR:
        return Command(type=command_type, error=failure)
    return Command(type=command_type, coordinator_loaded=failure)


def make_unknown_command() -> Command:
    return Command(type=Command.PONG, pong=Empty())
