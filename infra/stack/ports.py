"""Choose the ports of a stack, all of them on the loopback address."""

import json
import random
import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from infra.stack.home import StackHome
from logstore.errors import InvalidInput, ServiceFailed

LOOPBACK = "127.0.0.1"

TEMPORAL = "temporal"
SEAWEEDFS = "seaweedfs"
ZOOKEEPER = "zookeeper"
ALL_SERVICES = (TEMPORAL, SEAWEEDFS, ZOOKEEPER)

PORTS_OF = {
    TEMPORAL: ("temporal", "ui", "temporal_http", "temporal_metrics"),
    SEAWEEDFS: ("s3", "s3_grpc", "master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc"),
    ZOOKEEPER: ("zookeeper",),
}

_LOWEST = 10_000  # below are the well-known ports of other software
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPorts:
    """The ports a person knows by heart. 0 means any free port; those not named here are always free ones."""

    temporal: int = 7233
    ui: int = 8233
    s3: int = 8333
    zookeeper: int = 2181

    def __post_init__(self) -> None:
        """Refuse what no port can be."""
        for name, number in asdict(self).items():
            if not 0 <= number <= 65535:
                raise InvalidInput(f"{name}_port", expected="0 to 65535", found=number)

    @classmethod
    def any_free(cls) -> "WantedPorts":
        """Whatever is free: for tests and for stacks side by side."""
        return cls(temporal=0, ui=0, s3=0, zookeeper=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPorts:
    """Every port of a stack; 0 for those of a service that this stack does not have."""

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

    def services(self) -> tuple[str, ...]:
        """The services that have their ports."""
        known = asdict(self)
        return tuple(name for name in ALL_SERVICES if all(known[port] for port in PORTS_OF[name]))


def recorded_ports(home: StackHome) -> ChosenPorts | None:
    """The ports of the home's last start, or None before the first."""
    stored = home.read_json(home.ports_file)
    if stored is None:
        return None
    known = {field.name for field in fields(ChosenPorts)}
    return ChosenPorts(**{name: port for name, port in stored.items() if name in known and isinstance(port, int)})


def record_ports(home: StackHome, ports: ChosenPorts) -> None:
    """Keep the ports for the next start and for other processes."""
    home.write(home.ports_file, json.dumps(asdict(ports), indent=1))


def choose_ports(
    wanted: WantedPorts,
    *,
    services: Collection[str],
    running: Collection[str],
    earlier: ChosenPorts | None,
    in_use: bool = False,
) -> ChosenPorts:
    """The ports for the next start.

    A running service keeps the ports it has. Otherwise a wanted number is taken as it is, and 0 takes the number of
    the last start when that is free, so that addresses given to other tools stay true. All chosen ports are
    held open until the last is found, so that they differ. While the stack is in use, what died comes back where it
    was, whatever is wanted: its users know no other address.

    Args:
        wanted: The numbers asked for.
        services: The services to start.
        running: The services that run now, by this home's pid files.
        earlier: What the last start recorded.
        in_use: Whether a service or a worker of the stack runs.

    Raises:
        ServiceFailed: A wanted port is taken.
    """
    before = asdict(earlier or ChosenPorts())
    asked = {port: 0 if in_use and before[port] else number for port, number in asdict(wanted).items()}
    chosen = {port: before[port] for name in running for port in PORTS_OF[name]}
    chosen |= {port: before[port] for name in ALL_SERVICES if name not in services for port in PORTS_OF[name]}
    open_ports = [port for name in services if name not in running for port in PORTS_OF[name]]
    with ExitStack() as held:
        for port in (p for p in open_ports if asked.get(p)):
            chosen[port] = _hold_wanted(port, asked[port], held, chosen)
        spare = _spare_ports(held, set(chosen.values()))
        for port in (p for p in open_ports if not asked.get(p)):
            reusable = before[port] not in chosen.values() and _hold(before[port], held)
            chosen[port] = before[port] if reusable else next(spare)
    return ChosenPorts(**chosen)


def _hold_wanted(name: str, number: int, held: ExitStack, chosen: dict[str, int]) -> int:
    twin = next((other for other, taken in chosen.items() if taken == number), None)
    if twin is None and _hold(number, held):
        return number
    problem = f"port {number} on {LOOPBACK} is taken" + (f" by the setting for {twin}" if twin else "")
    service = next(one for one in ALL_SERVICES if name in PORTS_OF[one])
    raise ServiceFailed(
        service, problem, advice=f"stop what uses it, or try `--free-ports`, or set another {name} port"
    )


def _hold(number: int, held: ExitStack) -> bool:
    """Hold the port open until `held` closes; False when it cannot be had."""
    if not number:
        return False
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # As the servers do: connections of an earlier run that linger in TIME_WAIT are no obstacle.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((LOOPBACK, number))
        probe.listen(1)
    except OSError:
        probe.close()
        return False
    held.enter_context(probe)
    return True


def _spare_ports(held: ExitStack, taken: set[int]) -> Iterator[int]:
    """Free ports upwards from a random start, held.

    They lie below the range from which the system serves outgoing connections, so that none of those takes a
    port between this choice and the server's start. Neighbouring ports make it unlikely that two stacks that
    start at once overlap.
    """
    ceiling = 32_768
    with suppress(OSError, ValueError):
        ceiling = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    span = ceiling - _LOWEST
    start = random.randrange(span) if span > 0 else 0  # noqa: S311 - nothing secret about a port
    for step in range(span):
        number = _LOWEST + (start + step) % span
        if number not in taken and _hold(number, held):
            yield number
    while True:
        probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        probe.bind((LOOPBACK, 0))
        yield int(probe.getsockname()[1])
