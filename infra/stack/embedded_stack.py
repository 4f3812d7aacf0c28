"""Start, stop, health and addresses of an embedded stack."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra.stack.seaweedfs_service import REGION, define_seaweedfs_service
from infra.stack.service_lifecycle import (
    EmbeddedService,
    ServiceHealth,
    end_services,
    start_services,
    stop_started_service,
)
from infra.stack.service_port_choice import (
    ALL_SERVICES,
    LOOPBACK,
    SEAWEEDFS,
    TEMPORAL,
    ZOOKEEPER,
    ChosenPorts,
    RequestedPorts,
    choose_ports,
    read_last_ports,
    write_ports,
)
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome, StoreCredentials
from infra.stack.temporal_service import define_temporal_service
from infra.stack.worker_records import read_live_workers
from infra.stack.zookeeper_service import define_zookeeper_service
from logstore.errors import InvalidInput, ServiceFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """Options of `start_stack`. `temporal_in_memory` does not affect a Temporal server that runs already."""

    home: Path | str
    ports: RequestedPorts = field(default_factory=RequestedPorts)
    temporal_in_memory: bool = False
    buckets: tuple[str, ...] = ()  # created when missing
    services: tuple[str, ...] = ALL_SERVICES

    def __post_init__(self) -> None:
        for name in self.services:
            if name not in ALL_SERVICES:
                raise InvalidInput("services", expected=f"one of {', '.join(ALL_SERVICES)}", found=name)
        if SEAWEEDFS in self.services and "," in str(StackHome.at(self.home).root):
            raise InvalidInput(
                "home", expected="a path without a comma, at which SeaweedFS splits", found=str(self.home)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAddresses:
    """Addresses of the services. An address is empty if the stack does not have the service."""

    temporal: str  # host:port
    ui: str  # URL
    s3: str  # URL
    zookeeper: str  # host:port
    access_key: str
    secret_key: str = field(repr=False)
    region: str
    started: tuple[str, ...] = field(default=(), compare=False)  # services that this call of `start_stack` started


def start_stack(options: StackOptions, *, on_progress: Callable[[str], None] = lambda _: None) -> StackAddresses:
    """Start the services that are not healthy, wait until all are healthy, and return their addresses.

    A service that died starts again with its data. After an error, the services that this call started are stopped
    again. `on_progress` receives sentences for people, on the caller's thread.

    Raises:
        ServiceFailed: A service, a port, Java, a program or the home is not usable. The message says what to try.
    """
    home = StackHome.at(options.home)
    _require_free_ports_for_new_home(home, options)
    home.create_directories_and_check_space()
    with home.hold_lock():
        credentials = home.ensure_credentials()
        running = [name for name in options.services if ServiceProcess(name, home).find_process()]
        earlier = read_last_ports(home)
        in_use = bool(running or read_live_workers(home))
        ports = choose_ports(
            options.ports,
            services=options.services,
            running_services=running,
            last_ports=earlier,
            is_stack_in_use=in_use,
        )
        write_ports(home, ports)
        service_by_name = _build_services(home, ports, credentials, options)
        started = start_services([service_by_name[name] for name in dict.fromkeys(options.services)], on_progress)
    return replace(_build_addresses(ports, credentials), started=started)


def stop_stack(home: Path | str) -> list[str]:
    """Stop the running services of this home, in parallel. Return their names in a fixed order.

    Each service gets SIGTERM, and SIGKILL after its timeout (SeaweedFS: 3 s).
    """
    return _end_services_of_home(home, lambda service: service.process.stop(service.stop_timeout_s))


def stop_started_services(home: Path | str, started: Collection[str]) -> list[str]:
    """Undo a start: stop the services in `StackAddresses.started`. Return the names of services that ran."""
    return _end_services_of_home(home, stop_started_service, only=started)


def kill_stack(home: Path | str) -> list[str]:
    """Send SIGKILL to the services of a temporary stack. Return the names of services that ran."""
    return _end_services_of_home(home, lambda service: service.process.kill())


def check_stack_health(home: Path | str) -> list[ServiceHealth]:
    """Return the health of each service of the home's last start. Before a first start, all are unhealthy."""
    stack_home = StackHome.at(home)
    ports = read_last_ports(stack_home)
    credentials = stack_home.read_credentials()
    if ports is None or credentials is None:
        return [ServiceHealth(name=name, ok=False, detail="never started: run `sexton up`") for name in ALL_SERVICES]
    service_by_name = _build_services(stack_home, ports, credentials)
    with ThreadPoolExecutor(len(ALL_SERVICES)) as pool:
        return list(pool.map(_check_health, (service_by_name[name] for name in ports.services())))


def read_stack_addresses(home: Path | str) -> StackAddresses:
    """Return the addresses of the home's last start, whether or not its services run now."""
    stack_home = StackHome.at(home)
    ports = read_last_ports(stack_home)
    credentials = stack_home.read_credentials()
    if ports is None or credentials is None:
        raise ServiceFailed("stack", f"{stack_home.root} was never started", advice="run `sexton up` first")
    return _build_addresses(ports, credentials)


def _require_free_ports_for_new_home(home: StackHome, options: StackOptions) -> None:
    if home.root.exists():
        return
    try:
        choose_ports(options.ports, services=options.services, running_services=(), last_ports=None)
    except ServiceFailed:
        if not home.root.exists():  # otherwise a concurrent start of this home may hold the ports
            raise


def _build_services(
    home: StackHome, ports: ChosenPorts, credentials: StoreCredentials, options: StackOptions | None = None
) -> dict[str, EmbeddedService]:
    options = options or StackOptions(home=home.root)
    return {
        TEMPORAL: define_temporal_service(home, ports, in_memory=options.temporal_in_memory),
        SEAWEEDFS: define_seaweedfs_service(home, ports, credentials=credentials, buckets=options.buckets),
        ZOOKEEPER: define_zookeeper_service(home, ports),
    }


def _build_addresses(ports: ChosenPorts, credentials: StoreCredentials) -> StackAddresses:
    def format_address(port: int, scheme: str = "") -> str:
        return f"{scheme}{LOOPBACK}:{port}" if port else ""

    return StackAddresses(
        temporal=format_address(ports.temporal),
        ui=format_address(ports.ui, "http://"),
        s3=format_address(ports.s3, "http://"),
        zookeeper=format_address(ports.zookeeper),
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        region=REGION,
    )


def _check_health(service: EmbeddedService) -> ServiceHealth:
    if service.process.find_process() is None:
        return ServiceHealth(name=service.name, ok=False, detail="not running: run `sexton up`")
    return service.probe()


def _end_services_of_home(
    home: Path | str, end: Callable[[EmbeddedService], bool], only: Collection[str] = ALL_SERVICES
) -> list[str]:
    stack_home = StackHome.at(home)
    if not stack_home.pids.exists():
        return []
    with stack_home.hold_lock():
        empty_credentials = StoreCredentials(access_key="", secret_key="")  # a stop needs none
        service_by_name = _build_services(stack_home, read_last_ports(stack_home) or ChosenPorts(), empty_credentials)
        return end_services([service for name, service in service_by_name.items() if name in only], end)
