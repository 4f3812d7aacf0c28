"""Bring a stack up, take it down, and tell how it is."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.stack.home import Credentials, StackHome
from infra.stack.ports import (
    ALL_SERVICES,
    LOOPBACK,
    SEAWEEDFS,
    TEMPORAL,
    ZOOKEEPER,
    ChosenPorts,
    WantedPorts,
    choose_ports,
    record_ports,
    recorded_ports,
)
from infra.stack.process import ServiceProcess
from infra.stack.seaweedfs import REGION, seaweedfs_service
from infra.stack.service import Service, ServiceHealth, bring_all_up, end_all, undone
from infra.stack.temporal import temporal_service
from infra.stack.workers import live_workers
from infra.stack.zookeeper import zookeeper_service
from logstore.errors import InvalidInput, ServiceFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """The stack that is wanted; a Temporal that runs already goes on as it was started."""

    home: Path | str
    ports: WantedPorts = field(default_factory=WantedPorts)
    temporal_in_memory: bool = False
    buckets: tuple[str, ...] = ()  # created when missing
    services: tuple[str, ...] = ALL_SERVICES

    def __post_init__(self) -> None:
        """Refuse a service that is not known, and a home that the object store would take for several folders."""
        for name in self.services:
            if name not in ALL_SERVICES:
                raise InvalidInput("services", expected=f"one of {', '.join(ALL_SERVICES)}", found=name)
        if SEAWEEDFS in self.services and "," in str(StackHome.at(self.home).root):
            raise InvalidInput(
                "home", expected="a path without a comma, at which SeaweedFS splits", found=str(self.home)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAddresses:
    """Where the services are. An address is empty when the stack has no such service."""

    temporal: str  # host:port
    ui: str  # URL
    s3: str  # URL
    zookeeper: str  # host:port
    access_key: str
    secret_key: str = field(repr=False)
    region: str
    started: tuple[str, ...] = field(default=(), compare=False)  # services that this very call of `up` started


def up(options: StackOptions, *, on_progress: Callable[[str], None] = lambda _: None) -> StackAddresses:
    """Start what does not run, wait until all is healthy, and tell the addresses.

    Services that run and are healthy are left alone; one that died is started again on its data. When one
    cannot be started, those that this call started are stopped again.

    Args:
        options: The stack that is wanted.
        on_progress: Called from this thread with a sentence for people.

    Raises:
        ServiceFailed: A service, a port, Java, a program or the home stands in the way; names which, and what to try.
    """
    home = StackHome.at(options.home)
    _refuse_taken(home, options)
    home.prepare()
    with home.locked():
        credentials = home.ensure_credentials()
        running = [name for name in options.services if ServiceProcess(name, home).find_process()]
        earlier = recorded_ports(home)
        in_use = bool(running or live_workers(home))
        ports = choose_ports(options.ports, services=options.services, running=running, earlier=earlier, in_use=in_use)
        record_ports(home, ports)
        every = _services(home, ports, credentials, options)
        started = bring_all_up([every[name] for name in dict.fromkeys(options.services)], on_progress)
    return replace(_addresses(ports, credentials), started=started)


def down(home: Path | str) -> list[str]:
    """Stop the services that run by this home's pid files, all at once.

    Each is asked first, and killed when it has not obeyed in its time (SeaweedFS: 3 s).

    Returns:
        The names of those that ran, in a fixed order.

    Raises:
        ServiceFailed: A process does not let itself be stopped.
    """
    return _end(home, lambda service: service.process.stop(service.stop_timeout_s))


def undo(home: Path | str, started: Collection[str]) -> list[str]:
    """Stop again what a start began that failed later; see `StackAddresses.started`.

    Returns:
        The names of those that ran, in a fixed order.

    Raises:
        ServiceFailed: A process does not let itself be stopped.
    """
    return _end(home, undone, only=started)


def kill(home: Path | str) -> list[str]:
    """Kill the services of a throw-away stack at once.

    Returns:
        The names of those that ran, in a fixed order.
    """
    return _end(home, lambda service: service.process.kill())


def health(home: Path | str) -> list[ServiceHealth]:
    """How each service of the home's last start is now; all services, not well, when it never started."""
    at = StackHome.at(home)
    ports = recorded_ports(at)
    credentials = at.credentials()
    if ports is None or credentials is None:
        return [ServiceHealth(name=name, ok=False, detail="never started: run `sexton up`") for name in ALL_SERVICES]
    services = _services(at, ports, credentials)
    with ThreadPoolExecutor(len(ALL_SERVICES)) as pool:
        return list(pool.map(_health, (services[name] for name in ports.services())))


def addresses(home: Path | str) -> StackAddresses:
    """Where the services of the home's last start are, whether or not they run now.

    Raises:
        ServiceFailed: The home never saw a start.
    """
    at = StackHome.at(home)
    ports = recorded_ports(at)
    credentials = at.credentials()
    if ports is None or credentials is None:
        raise ServiceFailed("stack", f"{at.root} never saw a start", advice="run `sexton up` first")
    return _addresses(ports, credentials)


def _refuse_taken(home: StackHome, options: StackOptions) -> None:
    """Begin no new home for a start whose ports are taken."""
    if home.root.exists():
        return
    try:
        choose_ports(options.ports, services=options.services, running=(), earlier=None)
    except ServiceFailed:
        if not home.root.exists():  # otherwise another start of this very home may be what holds them
            raise


def _services(
    home: StackHome, ports: ChosenPorts, credentials: Credentials, options: StackOptions | None = None
) -> dict[str, Service]:
    """Every service by name. What a start does not need to know (health, stop) needs no options."""
    wish = options or StackOptions(home=home.root)
    return {
        TEMPORAL: temporal_service(home, ports, in_memory=wish.temporal_in_memory),
        SEAWEEDFS: seaweedfs_service(home, ports, credentials=credentials, buckets=wish.buckets),
        ZOOKEEPER: zookeeper_service(home, ports),
    }


def _addresses(ports: ChosenPorts, credentials: Credentials) -> StackAddresses:
    def at(port: int, scheme: str = "") -> str:
        return f"{scheme}{LOOPBACK}:{port}" if port else ""

    return StackAddresses(
        temporal=at(ports.temporal),
        ui=at(ports.ui, "http://"),
        s3=at(ports.s3, "http://"),
        zookeeper=at(ports.zookeeper),
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        region=REGION,
    )


def _health(service: Service) -> ServiceHealth:
    if service.process.find_process() is None:
        return ServiceHealth(name=service.name, ok=False, detail="not running: run `sexton up`")
    return service.probe()


def _end(home: Path | str, stop: Callable[[Service], bool], only: Collection[str] = ALL_SERVICES) -> list[str]:
    at = StackHome.at(home)
    if not at.pids.exists():
        return []
    with at.locked():
        no_keys = Credentials(access_key="", secret_key="")
        services = _services(at, recorded_ports(at) or ChosenPorts(), no_keys)
        return end_all([service for name, service in services.items() if name in only], stop)
