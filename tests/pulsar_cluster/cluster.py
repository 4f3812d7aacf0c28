"""Processes of the cluster: ZooKeeper and a bookie in one, the broker in another, and SeaweedFS for offloads.

The broker has a process of its own, so that it can be killed alone. Everything is in one home, and nothing listens on
another address than the loopback.
"""

import json
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from infra.objects.s3_store import create_s3_client
from infra.stack import embedded_stack
from infra.stack.service_port_choice import LOOPBACK, SEAWEEDFS, RequestedPorts, bind_free_ports, read_last_ports
from infra.stack.service_process import (
    PROBE_TIMEOUT_S,
    EmbeddedService,
    ServerCommand,
    ServiceProcess,
    build_child_environment,
    query_local_port,
    start_services,
)
from infra.stack.stack_home import StackHome
from tests.pulsar_cluster.distribution import prepare_distribution
from tests.pulsar_cluster.waits import wait_until
from workers.operations.embedded_stack import stop_stack
from workers.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

OFFLOAD_BUCKET: Final = "pulsar-offload"
CLUSTER_NAME: Final = "standalone"  # Pulsar's name for every cluster of this kind
STORE, BROKER = "pulsar-store", "pulsar-broker"

_PORTS_FILE: Final = "pulsar-ports.json"
_CONFIG_FILE: Final = "pulsar.conf"
_START_TIMEOUT_S: Final = 240.0  # 10 s on an idle machine
_STOP_TIMEOUT_S: Final = 20.0
_ADMIN_TIMEOUT_S: Final = 120.0  # a busy machine
_PAUSE_S: Final = 0.2  # before a request is repeated
_GARBAGE_COLLECTIONS: Final = "bookie_MAJOR_COMPACTION_TOTAL"  # the last step of a collection that was asked for

_METRIC: Final = re.compile(r"^(bookie_[A-Z_]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)

_MEMORY_BY_SERVICE: Final = {
    STORE: "-Xms64m -Xmx256m -XX:MaxDirectMemorySize=256m",
    BROKER: "-Xms128m -Xmx512m -XX:MaxDirectMemorySize=384m",
}
_CONFIG: Final = {
    # Small ledgers, and references that are written soon.
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCursorMaxEntriesPerLedger": "5",
    "managedLedgerCursorPositionFlushSeconds": "1",
    "managedLedgerDefaultMarkDeleteRateLimit": "0",
    # A bookie that collects garbage when it is asked to, and that tells of it. It frees space in files that are full,
    # even if one ledger in them is deleted. So entries are soon written to files, which are small.
    "gcWaitTime": "3600000",
    "flushInterval": "1000",
    "logSizeLimit": "16384",
    "majorCompactionThreshold": "0.99",
    "httpServerEnabled": "true",
    "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
    "httpServerHost": LOOPBACK,
    "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    "prometheusStatsHttpAddress": LOOPBACK,
    # Everything that creates ledgers.
    "transactionCoordinatorEnabled": "true",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE",
    "enablePackagesManagement": "true",
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "1",
    "managedLedgerOffloadDriver": "S3",  # `aws-s3` would ask Amazon for the location of the bucket
    "managedLedgerOffloadBucket": OFFLOAD_BUCKET,
    # Nothing that happens by itself.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "retentionCheckIntervalInSeconds": "86400",  # it trims topics that nobody uses
    "loadBalancerEnabled": "false",
    # A small process that nobody else reaches.
    "bindAddress": LOOPBACK,
    "metadataStoreSessionTimeoutMillis": "10000",
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    "numOrderedExecutorThreads": "2",
    "numExecutorThreadPoolSize": "2",
    "numCacheExecutorThreadPoolSize": "2",
    "managedLedgerCacheSizeMB": "16",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": "8388608",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarPorts:
    zookeeper: int
    bookie: int
    bookie_http: int
    stream_storage: int
    broker: int
    admin: int


class RealCluster:
    """Pulsar cluster in one home. The home stays where it is: a bookie starts empty if its folder was moved."""

    def __init__(self, home: Path, on_progress: Callable[[str], None] = lambda _: None) -> None:
        self.home = StackHome.at(home)
        self._say = on_progress

    def start(self, *, broker_zookeeper_port: int = 0) -> None:
        """Start what does not run yet, and wait until all answer.

        `broker_zookeeper_port` is the port at which the broker finds ZooKeeper, if there is something between them.
        """
        self.distribution = prepare_distribution(self._say)
        self.home.create_directories_and_check_space()
        self.storage = embedded_stack.start_stack(
            embedded_stack.StackOptions(
                home=self.home.root,
                ports=RequestedPorts.any_free(),
                services=(SEAWEEDFS,),
                buckets=(OFFLOAD_BUCKET,),
            ),
            on_progress=self._say,
        )
        self._write_config()
        start_services([self._define_store()], self._say)
        self.start_broker(zookeeper_port=broker_zookeeper_port)
        self.home.write_file(self.environment_file, self.format_environment())
        self.request_admin(
            "PUT", "persistent/public/default/first", expected_errors=(409,)
        )  # a cluster without topics cannot be planned

    @classmethod
    def attach(cls, home: Path) -> Self:
        """Return the cluster of a home that was started before."""
        cluster = cls(home)
        cluster.distribution = prepare_distribution(lambda _: None)
        ports, credentials = read_last_ports(cluster.home), cluster.home.read_credentials()
        if ports is None or credentials is None:
            raise RuntimeError(f"{cluster.home.root}: expected a home that was started before")
        cluster.storage = embedded_stack.build_addresses(ports, credentials)
        return cluster

    def start_broker(self, *, zookeeper_port: int = 0) -> None:
        start_services([self._define_broker(zookeeper_port or self.ports.zookeeper)], self._say)

    def kill_broker(self) -> None:
        ServiceProcess(BROKER, self.home).kill()

    def make_anew(self) -> None:
        """Kill ZooKeeper, the bookie and the broker, and start them without their data at the same addresses."""
        for name in (BROKER, STORE):
            ServiceProcess(name, self.home).kill()
        shutil.rmtree(self._data)
        self.start()

    def stop(self) -> list[str]:
        """Stop everything, the broker first. Return the names of the processes that ran."""
        if not self.home.pids.exists():
            return []
        names = [name for name in (BROKER, STORE) if ServiceProcess(name, self.home).stop(_STOP_TIMEOUT_S)]
        return names + stop_stack(Settings(home=self.home.root))

    def kill(self) -> None:
        """Kill everything, and leave the data as after a power cut."""
        with ExitStack() as kills:
            kills.callback(embedded_stack.kill_stack, self.home.root)
            for name in (BROKER, STORE):
                kills.callback(ServiceProcess(name, self.home).kill)

    @property
    def ports(self) -> PulsarPorts:
        """Ports of this home, chosen at the first use."""
        stored = self.home.read_json_if_exists(self.home.root / _PORTS_FILE)
        if stored is None:
            with ExitStack() as bound:
                free = bind_free_ports(bound, set())
                self.home.create_directories_and_check_space()
                stored = {name: next(free) for name in PulsarPorts.__dataclass_fields__}
            self.home.write_file(self.home.root / _PORTS_FILE, json.dumps(stored))
        return PulsarPorts(**{name: int(str(number)) for name, number in stored.items()})

    @property
    def _data(self) -> Path:
        return self.home.root / "pulsar"

    @property
    def environment_file(self) -> Path:
        return self.home.root / "pulsar.env"

    @property
    def admin_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.admin}"

    @property
    def _bookie_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.bookie_http}"

    @property
    def service_url(self) -> str:
        return f"pulsar://{LOOPBACK}:{self.ports.broker}"

    @property
    def zookeeper(self) -> str:
        return f"{LOOPBACK}:{self.ports.zookeeper}"

    def format_environment(self) -> str:
        """Return `settings` as lines for a shell."""
        return "".join(f"export {name}={value}\n" for name, value in self.settings().items())

    def settings(self) -> dict[str, str]:
        """Return the settings of Sexton that name this cluster, as environment variables."""
        return {
            "SEXTON_PULSAR_ZOOKEEPER": self.zookeeper,
            "SEXTON_PULSAR_ADMIN_URL": self.admin_url,
            "SEXTON_PULSAR_BOOKKEEPER_EXCLUSIVE": "true",
            "SEXTON_PULSAR_OFFLOAD_BUCKET": OFFLOAD_BUCKET,
            "SEXTON_PULSAR_OFFLOAD_BUCKET_EXCLUSIVE": "true",
            "SEXTON_PULSAR_OFFLOAD_ENDPOINT": self.storage.s3,
            "SEXTON_PULSAR_OFFLOAD_REGION": self.storage.region,
            "SEXTON_PULSAR_OFFLOAD_ACCESS_KEY": self.storage.access_key,
            "SEXTON_PULSAR_OFFLOAD_SECRET_KEY": self.storage.secret_key,
        }

    def request_admin(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        expected_errors: Collection[int] = (),
        timeout_s: float = _ADMIN_TIMEOUT_S,
    ) -> Any:
        """Send a request to the admin API, below `/admin/v2` unless the path begins with a slash. Return its JSON.

        An expected error has the answer `None`. A read that fails in the broker is repeated: while a killed broker
        still owns topics, the next broker cannot answer.
        """
        url = f"{self.admin_url}{path}" if path.startswith("/") else f"{self.admin_url}/admin/v2/{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})  # noqa: S310
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
                    content = response.read()
            except urllib.error.HTTPError as error:
                if error.code in expected_errors:
                    return None
                is_repeated = method == "GET" and error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
                if is_repeated and time.monotonic() < deadline_s:
                    time.sleep(_PAUSE_S)
                    continue
                raise RuntimeError(f"{method} {url}: {error.code} {error.read()[:300]!r}") from error
            return json.loads(content) if content else None

    def collect_garbage(self) -> None:
        """Let the bookie forget ledgers without metadata, and give their space back. It does so by itself rarely."""
        before = self.read_bookie_metrics()[_GARBAGE_COLLECTIONS]
        self._put_to_bookie("gc")
        wait_until(
            lambda: self.read_bookie_metrics()[_GARBAGE_COLLECTIONS] > before, "the end of the bookie's collection"
        )

    def register_bookie(self) -> None:
        """Let the bookie create its registration again: it does so when it can be written to again.

        A registration that another session has created would end the bookie when its own session expires.
        """
        for is_read_only in (True, False):
            self._put_to_bookie("state/readonly", {"readOnly": is_read_only})

    def read_bookie_metrics(self) -> dict[str, float]:
        """Return the bookie's own counters and gauges. It has one folder of ledgers, so that each has one value."""
        with urllib.request.urlopen(f"{self._bookie_url}/metrics", timeout=_ADMIN_TIMEOUT_S) as response:  # noqa: S310
            text = response.read().decode()
        return {name: float(value) for name, value in _METRIC.findall(text)}

    def open_s3(self) -> "S3Client":
        return create_s3_client(self.storage.s3, self.storage.region, self.storage.access_key, self.storage.secret_key)

    def define_tool(self, *argv: str) -> "ServerCommand":
        """Return the command of a program in the distribution's folder `bin`, on this cluster."""
        return ServerCommand(
            argv=(str(self.distribution / "bin" / argv[0]), *argv[1:]),
            cwd=self.home.scratch,
            env=self._environment("-Xmx128m"),
        )

    def _put_to_bookie(self, path: str, body: object = None) -> None:
        content = None if body is None else json.dumps(body).encode()
        url = f"{self._bookie_url}/api/v1/bookie/{path}"
        request = urllib.request.Request(url, data=content, method="PUT")  # noqa: S310
        urllib.request.urlopen(request, timeout=_ADMIN_TIMEOUT_S).close()  # noqa: S310

    def _write_config(self) -> None:
        ports = self.ports
        config = _CONFIG | {
            "brokerServicePort": str(ports.broker),
            "webServicePort": str(ports.admin),
            "httpServerPort": str(ports.bookie_http),
            "managedLedgerOffloadServiceEndpoint": self.storage.s3,
            "managedLedgerOffloadRegion": self.storage.region,
            "offloadersDirectory": str(self.distribution / "offloaders"),
            "narExtractionDirectory": str(self.home.scratch),
        }
        defaults = (self.distribution / "conf" / "standalone.conf").read_text(encoding="utf-8")
        lines = [line for line in defaults.splitlines() if line.partition("=")[0] not in config]
        changed = [f"{name}={value}" for name, value in config.items()]
        self.home.write_file(self.home.root / _CONFIG_FILE, "\n".join([*lines, *changed, ""]))

    def _define_store(self) -> EmbeddedService:
        ports, data = self.ports, self._data
        argv = (
            *("--no-broker", "--num-bookies", "1"),
            *("--zookeeper-port", str(ports.zookeeper), "--zookeeper-dir", str(data / "zookeeper")),
            *("--bookkeeper-port", str(ports.bookie), "--bookkeeper-dir", str(data / "bookie")),
            *("--stream-storage-port", str(ports.stream_storage)),
        )
        return self._define_service(STORE, argv, self._probe_store)

    def _define_broker(self, zookeeper_port: int) -> EmbeddedService:
        return self._define_service(
            BROKER, ("--only-broker", "--zookeeper-port", str(zookeeper_port), "-nfw"), self._probe_broker
        )

    def _define_service(self, name: str, argv: tuple[str, ...], probe: Callable[[], str | None]) -> EmbeddedService:
        command = ServerCommand(
            argv=(str(self.distribution / "bin" / "pulsar"), "standalone", "-a", LOOPBACK, *argv),
            cwd=self.home.root,
            env=self._environment(_MEMORY_BY_SERVICE[name]),
        )
        return EmbeddedService(
            process=ServiceProcess(name, self.home),
            command=lambda: command,
            probe=probe,
            start_timeout_s=_START_TIMEOUT_S,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )

    def _environment(self, memory: str) -> dict[str, str]:
        return build_child_environment("PULSAR_", "BOOKIE_", "BK_", "OPTS", "AWS_") | {
            "PULSAR_STANDALONE_USE_ZOOKEEPER": "1",
            "PULSAR_STANDALONE_CONF": str(self.home.root / _CONFIG_FILE),
            "PULSAR_LOG_DIR": str(self.home.logs),
            "PULSAR_LOG_APPENDER": "Console",
            "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # other collectors touch the whole heap at once
            "PULSAR_GC_LOG": " ",
            "PULSAR_MEM": memory,
            "ACCESS_KEY_ID": self.storage.access_key,  # for the driver `S3`
            "ACCESS_KEY_SECRET": self.storage.secret_key,
        }

    def _probe_store(self) -> str | None:
        try:
            is_ok = query_local_port(self.ports.zookeeper, b"ruok") == b"imok"
            query_local_port(self.ports.bookie)
        except OSError as fault:
            return f"ZooKeeper or the bookie does not answer: {fault}"
        return None if is_ok else f"ZooKeeper on {self.zookeeper} does not serve"

    def _probe_broker(self) -> str | None:
        """Ask for the default namespace: the broker calls itself ready before it has created it."""
        try:
            self.request_admin("GET", "namespaces/public/default", timeout_s=PROBE_TIMEOUT_S)
        except (OSError, RuntimeError) as fault:
            return f"{self.admin_url} does not answer: {fault}"
        return None
