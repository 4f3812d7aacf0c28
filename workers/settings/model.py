"""All settings of Sexton, as one validated and immutable value."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from logstore.errors import ServiceFailed
from logstore.field_bounds import (
    DELETION_ATTEMPTS,
    DELETION_PARALLELISM,
    RETRY_INTERVAL_S,
    ROWS_PER_CHUNK,
    UPLOAD_PARALLELISM,
    UPLOAD_TIMEOUT_S,
)
from logstore.ownership import MAX_BUNDLES
from logstore.pulsar.plan_jobs import MIN_READS_PER_S, READS_PER_S
from logstore.pulsar.znode_names import LOG_ROOTS
from logstore.reconciliation.bulk_job_inputs_and_results import SCRUB_BYTES_PER_S, SCRUB_RATE
from logstore.transactions.transaction_ids_and_states import MAX_COORDINATORS
from workers.settings.setting_types import (
    Address,
    Bucket,
    BucketList,
    BuildId,
    Count,
    DeploymentName,
    Ensemble,
    File,
    Folder,
    FunctionList,
    Interval,
    ListenAddress,
    Port,
    PulsarClusterList,
    SchemeAndCredential,
    Seconds,
    ServerName,
    SparkMaster,
    WebAddress,
    Word,
    ZnodePath,
    ZnodePathList,
    refuse_boolean,
    to_upper,
)

SERVICE_SETTINGS = frozenset({
    "temporal_address",
    "temporal_namespace",
    "temporal_tls",
    "temporal_ca_file",
    "temporal_server_name",
    "temporal_cert_file",
    "temporal_key_file",
    "temporal_api_key",
    "temporal_api_key_file",
    "payload_key_file",
    "ui_address",
    "database_url",
    "s3_endpoint",
    "s3_region",
    "s3_access_key",
    "s3_secret_key",
    "s3_ca_file",
    "primary_bucket",
    "tiered_bucket",
    "records_bucket",
    "replica_buckets",
    "zookeeper",
    "zookeeper_auth",
    "zookeeper_acl",
    "zookeeper_tls",
    "zookeeper_ca_file",
    "zookeeper_cert_file",
    "zookeeper_key_file",
    "pulsar_zookeeper",
    "pulsar_zookeeper_auth",
    "pulsar_zookeeper_tls",
    "pulsar_zookeeper_ca_file",
    "pulsar_zookeeper_cert_file",
    "pulsar_zookeeper_key_file",
    "pulsar_configuration_store",
    "pulsar_ledgers_root",
    "pulsar_log_roots",
    "pulsar_shared_clusters",
    "pulsar_bookkeeper_exclusive",
    "pulsar_admin_url",
    "pulsar_admin_token_file",
    "pulsar_admin_ca_file",
    "pulsar_offload_bucket",
    "pulsar_offload_bucket_exclusive",
    "pulsar_offload_endpoint",
    "pulsar_offload_region",
    "pulsar_offload_access_key",
    "pulsar_offload_secret_key",
    "pulsar_offload_ca_file",
    "bulk_dir",
    "spark_master",
})  # fmt: skip
"""Settings that name services and credentials of services. They are valid for one home only."""


class Settings(BaseModel):
    """Settings of every part of Sexton. Durations are whole seconds, sizes are bytes.

    Addresses have no defaults. Otherwise a command with another home could use the stack on the usual ports.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: Path  # folder of catalog.db, objects, logs, spans and credentials
    application: Word = "sexton"  # part of the digest of every ledger owner; must not change once ledgers exist
    temporal_address: Address = ""  # address of Temporal's frontend
    temporal_namespace: Word = "default"  # one namespace serves one catalog
    temporal_tls: Literal["auto", "on", "off"] = "auto"  # auto: TLS if one of the next six settings is set
    temporal_ca_file: File = ""  # authorities for the server's TLS certificate; empty: this machine's authorities
    temporal_server_name: ServerName = ""  # name in the server's TLS certificate, if not the address
    temporal_cert_file: File = ""  # TLS certificate of the client, with its chain
    temporal_key_file: File = ""  # private key of the client's TLS certificate
    temporal_api_key: SecretStr = SecretStr("")  # sent with each call, never without TLS
    temporal_api_key_file: File = ""  # read again every few seconds, so that the key can change
    payload_key_file: File = ""  # keys that encrypt workflow payloads; empty: no encryption
    codec_origin: WebAddress = ""  # Web UI for which workers decrypt workflow payloads; empty: none
    ui_address: WebAddress = ""  # Temporal's Web UI, for links in messages and pages
    task_queue: Word = "sexton"  # the same for all workers, commands and programs of a catalog
    deployment_name: DeploymentName = ""  # the same for all workers of a task queue; empty: no Worker Versioning
    build_id: BuildId = ""  # empty: Sexton's version and a digest of the installed code
    activity_threads: Annotated[Count, Field(le=1_024)] = 16  # activities that a worker runs at the same time
    drain_timeout: Annotated[Seconds, Field(ge=0)] = 30  # time that a stopping worker leaves to its activities
    database_url: str = Field(default="", repr=False)  # may hold a password; empty: a SQLite file in the home
    s3_endpoint: WebAddress = ""  # empty: Amazon S3 if database_url is outside the home, otherwise no object store
    s3_region: Word = "us-east-1"  # region of the buckets
    s3_access_key: SecretStr = SecretStr("")  # empty: the usual sources of AWS credentials
    s3_secret_key: SecretStr = SecretStr("")  # secret key of s3_access_key
    s3_ca_file: File = ""  # authorities for the object store's TLS certificate; Spark's executors must see it, too
    primary_bucket: Bucket = "sexton-primary"  # primary copies of ledgers
    tiered_bucket: Bucket = "sexton-tiered"  # tiered copies of ledgers
    records_bucket: Bucket = "sexton-records"  # blocks and manifests of the record log
    replica_buckets: BucketList = ""  # replica buckets of the record log, in the same object store
    ownership: Literal["zookeeper", "single"] = (
        "zookeeper"  # single: one worker owns all bundles, without ZooKeeper; the same for all workers
    )
    zookeeper: Ensemble = ""  # addresses, separated by commas, and an optional path
    zookeeper_auth: SchemeAndCredential = SecretStr("")  # digest:USER:PASSWORD, or sasl:USER:PASSWORD (DIGEST-MD5)
    zookeeper_acl: Literal["anyone", "creator"] = "anyone"  # creator: only zookeeper_auth has access to Sexton's nodes
    zookeeper_tls: Literal["auto", "on", "off"] = "auto"  # auto: TLS if one of the next three settings is set
    zookeeper_ca_file: File = ""  # authorities for the servers' TLS certificates; empty: this machine's authorities
    zookeeper_cert_file: File = ""  # TLS certificate of the client, with its chain
    zookeeper_key_file: File = ""  # private key of the client's TLS certificate
    session_timeout: Annotated[Seconds, Field(ge=1, le=300)] = 10  # silence after which ZooKeeper ends a session
    session_expired_policy: Literal["reconnect", "shutdown"] = "reconnect"  # shutdown: the worker ends with exit code 4
    session_reconnect_attempts: Count = (
        10  # attempts to open a session after a loss, at most 5 s apart; after the last one the worker ends
    )
    bundles: Annotated[Count, Field(le=MAX_BUNDLES)] = 64  # number of bundles, fixed when the catalog is created
    pulsar_zookeeper: Ensemble = ""  # ZooKeeper of a Pulsar cluster: addresses, separated by commas, and optional path
    pulsar_zookeeper_auth: SchemeAndCredential = SecretStr("")  # as zookeeper_auth; to read, and to apply also to write
    pulsar_zookeeper_tls: Literal["auto", "on", "off"] = "auto"  # auto: TLS if one of the next three settings is set
    pulsar_zookeeper_ca_file: File = ""  # authorities for the servers' TLS certificates; Spark's executors need it, too
    pulsar_zookeeper_cert_file: File = ""  # TLS certificate of the client, with its chain
    pulsar_zookeeper_key_file: File = ""  # private key of the client's TLS certificate
    pulsar_configuration_store: Ensemble = ""  # ZooKeeper of tenants, namespaces and clusters; empty: pulsar_zookeeper
    pulsar_ledgers_root: ZnodePath = "/ledgers"  # path of BookKeeper's ledgers, below the path in pulsar_zookeeper
    pulsar_log_roots: ZnodePathList = ",".join(
        f"/{root}" for root in LOG_ROOTS
    )  # paths of the logs of functions, packages and the table service, below the path in pulsar_zookeeper
    pulsar_shared_clusters: PulsarClusterList = ""  # names of further Pulsar clusters that use the same BookKeeper
    pulsar_bookkeeper_exclusive: bool = (
        False  # set it if no other cluster and no other application has ledgers in the BookKeeper; an apply needs it
    )
    pulsar_reads_per_s: Annotated[Count, Field(ge=MIN_READS_PER_S, le=1_000_000)] = (
        READS_PER_S  # reads a second on pulsar_zookeeper, of a plan or an apply: 4 to 11 for each deletion
    )
    pulsar_admin_url: WebAddress = ""  # admin REST API of a broker or proxy; empty: compacted ledgers stay unconfirmed
    pulsar_admin_token_file: File = ""  # token for pulsar_admin_url, read for each request; executors need it, too
    pulsar_admin_ca_file: File = ""  # authorities for the brokers' TLS certificates; executors need it, too
    pulsar_offload_bucket: Bucket = ""  # bucket of offloaded ledgers; empty: none, or not to be checked
    pulsar_offload_bucket_exclusive: bool = (
        False  # set it if no other cluster has offloads in this bucket; an apply that removes offloads needs it
    )
    pulsar_offload_endpoint: WebAddress = ""  # empty: Amazon S3
    pulsar_offload_region: Word = "us-east-1"  # region of pulsar_offload_bucket
    pulsar_offload_access_key: SecretStr = SecretStr("")  # empty: the usual sources of AWS credentials
    pulsar_offload_secret_key: SecretStr = SecretStr("")  # secret key of pulsar_offload_access_key
    pulsar_offload_ca_file: File = ""  # authorities for the bucket's TLS certificate; executors need it, too
    pulsar_plan_interval: Interval = 86_400  # between plans for the Pulsar cluster, which change nothing
    deletion_parallelism: Annotated[Count, DELETION_PARALLELISM] = (
        4  # chunks of one batch that are deleted at the same time
    )
    deletion_max_attempts: Annotated[Count, DELETION_ATTEMPTS] = (
        10  # attempts to delete a copy; after the last one its intent is a dead letter
    )
    deletion_retry_interval: Annotated[Seconds, RETRY_INTERVAL_S] = 600  # time between two attempts to delete a copy
    deletion_chunk: Annotated[Count, ROWS_PER_CHUNK] = (
        100  # maximum number of copies that one activity deletes, at most 1,000 for all parallel chunks of a batch
    )
    finished_retention: Annotated[Seconds, Field(ge=3_600)] = (
        30 * 86_400
    )  # time for which rows of finished deletions stay; dead letters stay forever
    sweep_interval: Interval = 60  # between sweeps of deletions, transactions and the record log
    transaction_coordinators: Annotated[Count, Field(le=MAX_COORDINATORS)] = (
        16  # number of coordinators; may be raised at any time
    )
    trim_interval: Interval = 300  # between trims of all topics
    delayed_tolerance: Annotated[Seconds, Field(ge=0, le=3_600)] = 0  # time by which a message may be delivered early
    delayed_limit: Annotated[Seconds, Field(ge=1)] = 3_650 * 86_400  # longest delay that `topic append` accepts
    delayed_interval: Interval = 60  # between checks for delayed messages to seal
    delayed_messages: Count = 50_000  # number of messages after the last index bucket at which a seal is due
    delayed_ledgers: Count = 100  # number of ledgers after the last index bucket at which a seal is due
    delayed_idle: Annotated[Seconds, Field(ge=1)] = 3_600  # time without a new message after which a seal is due
    delayed_buckets: Count = 20  # maximum number of index buckets of a topic; above it, a merge starts
    records_interval: Annotated[Seconds, Field(ge=1, le=3_600)] = 5  # between flushes of changed records
    records_cursor_interval: Annotated[Seconds, Field(ge=1, le=86_400)] = 60  # between flushes of changed cursors
    defragment_interval: Interval = 3_600  # between defragmentations of the record log
    replicate_interval: Interval = 60  # between shipments to the replica buckets
    raid_interval: Interval = 86_400  # between raids, which remove tombstones that nothing needs
    eligible_age: Annotated[Seconds, Field(ge=0)] = 86_400  # minimum age of a tombstone that a raid may remove
    tomb_raider_sleep: Annotated[int, BeforeValidator(refuse_boolean), Field(ge=0, le=60_000)] = (
        1  # milliseconds that a raid sleeps between two blocks that it scans
    )
    functions: FunctionList = ""  # functions that `records end` may name; workers import them
    clock_bound: Annotated[Seconds, Field(ge=1, le=3_600)] = (
        60  # maximum difference between the clocks of catalog and object store; above it, nothing is flushed
    )
    plan_interval: Interval = 86_400  # between reconciliation plans, which change nothing
    scrub_interval: Interval = 0  # between scrubs, which read every segment and tiered copy and compare digests
    scrub_rate: Annotated[int, BeforeValidator(refuse_boolean), SCRUB_BYTES_PER_S] = (
        SCRUB_RATE  # bytes per second that a scrub reads
    )
    ledger_max_entries: Count = 50_000  # number of entries at which a new ledger begins
    ledger_max_bytes: Count = 64 * 1024 * 1024  # size in bytes at which a new ledger begins
    ledger_max_age: Annotated[Seconds, Field(ge=1)] = 4 * 3_600  # age of a ledger at which a new ledger begins
    cursor_inline_bytes: Count = 16 * 1024  # packed size above which a cursor's state moves to a ledger
    registration_timeout: Annotated[Seconds, Field(ge=1, le=86_400)] = (
        600  # time after which an append fails if its segment is not registered; a new ledger that is in no
        # list after this time is abandoned, and the next trim or sweep deletes it
    )
    offload_timeout: Annotated[Seconds, UPLOAD_TIMEOUT_S] = 45 * 60  # maximum duration of one upload
    offload_parallelism: Annotated[Count, UPLOAD_PARALLELISM] = (
        2  # ledgers of one topic that are uploaded at the same time
    )
    bulk_dir: Folder = ""  # empty: a folder in the home. Every worker and every Spark executor must see this folder
    spark_master: SparkMaster = "local[*]"  # local[*], or the URL of a cluster
    upload_threads: Annotated[Count, Field(le=64)] = 4  # uploads that a worker runs at the same time
    temporal_port: Port = 7233  # of the embedded server; 0: any free port
    ui_port: Port = 8233  # of the embedded Web UI; 0: any free port
    s3_port: Port = 8333  # of the embedded object store; 0: any free port
    zookeeper_port: Port = 2181  # of the embedded server; 0: any free port
    metrics_address: ListenAddress = (
        "127.0.0.1:9464"  # Prometheus metrics of each worker; if the port is taken, a free port is used
    )
    http_address: ListenAddress = (
        "127.0.0.1:9465"  # probes and pages of each worker; if the port is taken, a free port is used
    )
    trace_retention: Annotated[Seconds, Field(ge=3_600)] = (
        7 * 86_400
    )  # time that a span file stays after its last write
    trace_max_bytes: Annotated[Count, Field(ge=1024 * 1024)] = (
        256 * 1024 * 1024
    )  # maximum bytes of all span files; the oldest are deleted first
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(to_upper)] = (
        "INFO"  # lowest level that workers log
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_home_defaults(cls, values: object) -> object:
        if not isinstance(values, Mapping) or "home" not in values:
            return values
        home = Path(str(values["home"])).absolute()
        path = quote(str(home / "catalog.db"))  # escapes `?` and `%`, which have a meaning in a URL
        defaults = {"database_url": f"sqlite:///{path}", "bulk_dir": str(home / "bulk")}
        return {**values, **{name: value for name, value in defaults.items() if not values.get(name)}}

    def environment(self) -> dict[str, str]:
        """Return the settings as environment variables, secrets included. Empty settings are left out."""
        values = self.model_dump(mode="json")
        secrets = {name: value for name, value in self if isinstance(value, SecretStr)}
        values |= {name: secret.get_secret_value() for name, secret in secrets.items()}
        return {f"SEXTON_{name.upper()}": str(value) for name, value in values.items() if value not in {"", None}}

    @property
    def temporal_uses_tls(self) -> bool:
        files = (self.temporal_ca_file, self.temporal_cert_file, self.temporal_key_file, self.temporal_api_key_file)
        has_name_or_key = bool(self.temporal_server_name or self.temporal_api_key.get_secret_value())
        return has_name_or_key or any(files) or self.temporal_tls == "on"

    @property
    def has_object_store(self) -> bool:
        """Whether an object store is configured: `s3_endpoint`, or AWS if `database_url` is not the home's database."""
        return bool(self.s3_endpoint) or self.database_url != Settings(home=self.home).database_url

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(filter(None, self.replica_buckets.split(",")))

    @property
    def pulsar_cluster_names(self) -> tuple[str, ...]:
        """Names in `pulsar_shared_clusters`."""
        return tuple(filter(None, self.pulsar_shared_clusters.split(",")))

    @property
    def pulsar_log_root_paths(self) -> tuple[str, ...]:
        """Paths in `pulsar_log_roots`, without slashes at their ends."""
        return tuple(root.strip("/") for root in filter(None, self.pulsar_log_roots.split(",")))

    @property
    def traces_dir(self) -> Path:
        return self.home / "traces"

    def with_changes(self, **changes: object) -> "Settings":
        """Return a validated copy with changes. Defaults are not validated, because some validators refuse them."""
        return Settings.model_validate(self.model_dump(exclude_defaults=True) | changes)

    def without_services(self) -> "Settings":
        return Settings.model_validate({name: value for name, value in self if name not in SERVICE_SETTINGS})

    def require_address(self, name: str) -> str:
        """Return the address in the setting `name`. Raise `ServiceFailed` if it is empty."""
        value = str(getattr(self, name))
        if not value:
            advice = f"run `sexton up` there, or set SEXTON_{name.upper()}"
            raise ServiceFailed(name, f"no stack has been started in {self.home}", advice=advice)
        return value
