"""Choice of a stack's ports on the loopback address."""

import json
import random
import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from infra.stack.stack_home import StackHome
from logstore.errors import InvalidInput, ServiceFailed

LOOPBACK = "127.0.0.1"

TEMPORAL = "temporal"
SEAWEEDFS = "seaweedfs"
ZOOKEEPER = "zookeeper"
ALL_SERVICES = (TEMPORAL, SEAWEEDFS, ZOOKEEPER)

PORT_NAMES_BY_SERVICE = {
    TEMPORAL: ("temporal", "ui", "temporal_http", "temporal_metrics"),
    SEAWEEDFS: ("s3", "s3_grpc", "master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc"),
    ZOOKEEPER: ("zookeeper",),
}

_MIN_PORT = 10_000  # lower numbers are the well-known ports of other software
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPorts:
    """Ports that a person may choose. 0 means any free port. All other ports of a stack are chosen automatically."""

    temporal: int = 7233
    ui: int = 8233
    s3: int = 8333
    zookeeper: int = 2181

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if not 0 <= number <= 65535:
                raise InvalidInput(f"{name}_port", expected="0 to 65535", found=number)

    @classmethod
    def any_free(cls) -> "RequestedPorts":
        return cls(temporal=0, ui=0, s3=0, zookeeper=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPorts:
    """All ports of a stack. The ports of a service that the stack does not have are 0."""

    temporal: int = 0
    ui: int = 0
    temporal_http: int = 0
    temporal_metrics: int = 0
    s3: int = 0
    s3_grpc: int = 0
    master: int = 0
    master_grpc: int = 0
    volume: int = 0
    volume_grpc: int = 0
    filer: int = 0
    filer_grpc: int = 0
    zookeeper: int = 0


def read_last_ports(home: StackHome) -> ChosenPorts | None:
    stored = home.read_json_if_exists(home.ports_file)
    if stored is None:
        return None
    names = {field.name for field in fields(ChosenPorts)}
    return ChosenPorts(**{name: port for name, port in stored.items() if name in names and isinstance(port, int)})


def write_ports(home: StackHome, ports: ChosenPorts) -> None:
    home.write_file(home.ports_file, json.dumps(asdict(ports), indent=1))


def choose_ports(
    requested_ports: RequestedPorts,
    *,
    services: Collection[str],
    running_services: Collection[str],
    last_ports: ChosenPorts | None,
    is_stack_in_use: bool = False,
) -> ChosenPorts:
    """Choose the ports for the next start.

    1. A running service keeps its ports.
    2. While the stack is in use, a service that died keeps its ports, too, because its users know no other address.
    3. Any other port gets its requested number.
    4. If the requested number is 0, the port keeps its number of the last start, because other tools may know the
       address. If this number is taken, the port gets any free number.

    All chosen ports stay bound until the last port is chosen, so that no two are equal.
    """
    earlier_number_by_name = asdict(last_ports or ChosenPorts())
    wanted_number_by_name = {
        name: 0 if is_stack_in_use and earlier_number_by_name[name] else number
        for name, number in asdict(requested_ports).items()
    }
    kept_services = [*running_services, *(service for service in ALL_SERVICES if service not in services)]
    chosen = {
        name: earlier_number_by_name[name] for service in kept_services for name in PORT_NAMES_BY_SERVICE[service]
    }
    open_names = [
        name for service in services if service not in running_services for name in PORT_NAMES_BY_SERVICE[service]
    ]
    with ExitStack() as bound_sockets:
        for name in open_names:
            if number := wanted_number_by_name.get(name):
                chosen[name] = _bind_requested_port(name, number, bound_sockets, chosen)
        free_numbers = bind_free_ports(bound_sockets, set(chosen.values()))
        for name in open_names:
            if not wanted_number_by_name.get(name):
                number = earlier_number_by_name[name]
                is_reusable = number not in chosen.values() and _try_bind(number, bound_sockets)
                chosen[name] = number if is_reusable else next(free_numbers)
    return ChosenPorts(**chosen)


def _bind_requested_port(
    name: str, number: int, bound_sockets: ExitStack, reserved_port_by_name: dict[str, int]
) -> int:
    duplicate = next((other for other, port in reserved_port_by_name.items() if port == number), None)
    if duplicate is None and _try_bind(number, bound_sockets):
        return number
    problem = f"port {number} on {LOOPBACK} is taken" + (f" by the setting for {duplicate}" if duplicate else "")
    service = next(service for service in ALL_SERVICES if name in PORT_NAMES_BY_SERVICE[service])
    raise ServiceFailed(
        service, problem, advice=f"stop what uses it, or try `--free-ports`, or set another {name} port"
    )


def _try_bind(number: int, bound_sockets: ExitStack) -> bool:
    """Bind the port until `bound_sockets` closes. Return whether the port was free. Port 0 is never free."""
    if not number:
        return False
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # As the servers do. With this option, connections of an earlier run in TIME_WAIT do not block the port.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((LOOPBACK, number))
        probe.listen(1)
    except OSError:
        probe.close()
        return False
    bound_sockets.enter_context(probe)
    return True


def bind_free_ports(bound_sockets: ExitStack, excluded: set[int]) -> Iterator[int]:
    """Yield free ports below the system's range of ephemeral ports. Each port is bound until `bound_sockets` closes."""
    ceiling = 32_768
    with suppress(OSError, ValueError):
        ceiling = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    span = ceiling - _MIN_PORT
    start = random.randrange(span) if span > 0 else 0  # noqa: S311 - nothing secret about a port
    for step in range(span):
        number = _MIN_PORT + (start + step) % span
        if number not in excluded and _try_bind(number, bound_sockets):
            yield number
    while True:
        probe = bound_sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        probe.bind((LOOPBACK, 0))
        yield int(probe.getsockname()[1])
