"""Load of a transaction coordinator by its broker. The admin API has no request for it.

A broker loads a coordinator when the first client with transactions connects. After a restart of the broker, a
transaction of a client that is gone stays open until then, even after its timeout.

Source: Pulsar's `ServerCnx.handleTcClientConnectRequest`. A frame has its size, the size of a command, and the command.
"""

import socket
import struct
from typing import Final

from google.protobuf.message import DecodeError

from infra.pulsar.broker_admin import ADVICE_UNKNOWN_VERSION, AdminRequestFailed, BrokerAdmin
from logstore.errors import shorten_text
from logstore.pulsar.protos.broker_commands_pb2 import Command, Connect, LoadCoordinator

_CLIENT_VERSION: Final = "Sexton"
_PROTOCOL_VERSION: Final = 19  # the first one with coordinators
_REQUEST_ID: Final = 1
_SIZES: Final = struct.Struct(">II")
_MAX_FRAME_BYTES: Final = 5 << 20  # of brokers by default; the answers here have some bytes
_MAX_PINGS: Final = 10  # before an answer; a broker asks every 30 s by default whether its client lives


def load_coordinator(admin: BrokerAdmin, service_url: str, coordinator: int) -> None:
    """Make the broker at `service_url` load a coordinator that it owns. Idempotent.

    Raises:
        AdminRequestFailed: The broker does not answer, refuses the token, or does not own the coordinator.
        InvalidInput: The file of the token or of the authorities cannot be read.
    """
    subject = f"{service_url}, load of coordinator {coordinator}"
    connect = Connect(client_version=_CLIENT_VERSION, protocol_version=_PROTOCOL_VERSION)
    if token := admin.read_token():
        connect.auth_method, connect.auth_data = "token", token.encode()
    load = LoadCoordinator(request_id=_REQUEST_ID, coordinator=coordinator)
    try:
        with admin.connect_to_broker(service_url) as connection:
            _ask(connection, Command(type=Command.CONNECT, connect=connect), Command.CONNECTED)
            _ask(connection, Command(type=Command.LOAD_COORDINATOR, load_coordinator=load), Command.COORDINATOR_LOADED)
    except (OSError, DecodeError, _BrokerRefused) as error:
        reason = shorten_text(str(error)) or type(error).__name__
        advice = "see the log of the broker, or connect any client with transactions, and try again"
        raise AdminRequestFailed(subject, expected="success", found=reason, advice=advice, method="CONNECT") from None


class _BrokerRefused(Exception):
    """Answer of a broker that is a failure, or none that Sexton knows."""


def _ask(connection: socket.socket, command: Command, expected: int) -> None:
    """Send a command, and wait for its answer. Answer the pings that come before it."""
    _send(connection, command)
    for _ in range(_MAX_PINGS + 1):
        answer = _receive(connection)
        if answer.type == Command.PING:
            pong = Command(type=Command.PONG)
            pong.pong.SetInParent()
            _send(connection, pong)
        elif answer.type == Command.ERROR or answer.coordinator_loaded.HasField("error"):
            failure = answer.error if answer.type == Command.ERROR else answer.coordinator_loaded
            raise _BrokerRefused(failure.message or f"error {failure.error}")
        elif answer.type == expected:
            return
        else:
            raise _BrokerRefused(f"a command of type {answer.type}; {ADVICE_UNKNOWN_VERSION}")
    raise _BrokerRefused(f"{_MAX_PINGS + 1} pings and no answer")


def _send(connection: socket.socket, command: Command) -> None:
    body = command.SerializeToString()
    connection.sendall(_SIZES.pack(len(body) + 4, len(body)) + body)


def _receive(connection: socket.socket) -> Command:
    frame_bytes, command_bytes = _SIZES.unpack(_read_exactly(connection, _SIZES.size))
    if not 4 <= frame_bytes <= _MAX_FRAME_BYTES or command_bytes > frame_bytes - 4:
        raise _BrokerRefused("an answer that is no command of Pulsar")
    frame = _read_exactly(connection, frame_bytes - 4)
    return Command.FromString(frame[:command_bytes])


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise _BrokerRefused("the end of the connection")
        data += part
    return bytes(data)
