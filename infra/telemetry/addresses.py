"""Addresses at which a process lets others look at it: which host and port a setting means, and which port is free."""

import socket
from typing import Final

from logstore.errors import InvalidInput

TRIES: Final = 10  # a free port may be taken between being found and being used


def resolved(setting: str, address: str) -> tuple[str, int]:
    """The address of the host and the port that `host:port` means; 0 is any free port.

    Raises:
        InvalidInput: The host is not known; names the setting.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidInput(setting, expected=f"a host that is known ({error})", found=address) from error
    first = min(found, key=lambda one: one[0] != socket.AF_INET)  # `localhost` is 127.0.0.1, as for the stack
    return str(first[4][0]), int(port)


def free_port(setting: str, host: str) -> int:
    """A port of the host that nothing listened at just now.

    Raises:
        InvalidInput: The host is none of this machine; names the setting.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise InvalidInput(setting, expected=f"a host of this machine ({error})", found=host) from error
        return int(probe.getsockname()[1])


def joined(host: str, port: int) -> str:
    """`host:port` as it stands in an URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
