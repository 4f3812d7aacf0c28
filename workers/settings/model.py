"""Every setting of Sexton, validated once, immutable afterwards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from logstore.errors import ServiceFailed
from logstore.ownership import MAX_BUNDLES
from logstore.reconciliation.jobs import MIN_SCRUB_RATE, SCRUB_RATE
from logstore.transactions.transactions import MAX_COORDINATORS
from workers.settings.kinds import (
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
    Identity,
    Interval,
    Listening,
    Master,
    Port,
    Seconds,
    ServerName,
    WebAddress,
    Word,
    no_truth_value,
    upper,
)

SERVICES = frozenset({
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
    "bulk_dir",
    "spark_master",
})  # fmt: skip
"""Settings that name services and our credentials there: those of one home mean nothing in another."""


class Settings(BaseModel):
    """The settings of every part of Sexton. Durations are whole seconds, sizes are bytes.

    An address that is empty is not known: no stack was started in this home and none was configured. There are no
    default addresses on purpose, or a command with another home would reach the stack on the usual ports.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: Path
    temporal_address: Address = ""
    temporal_namespace: Word = "default"
    temporal_tls: Literal["auto", "on", "off"] = "auto"  # auto: on where one of the next six is given
    temporal_ca_file: File = ""  # the authorities that may sign the server's certificate; empty: those of this machine
    temporal_server_name: ServerName = ""  # the name in the server's certificate, where the address is another one
    temporal_cert_file: File = ""  # our certificate, with its chain
    temporal_key_file: File = ""  # and its key
    temporal_api_key: SecretStr = SecretStr("")
    temporal_api_key_file: File = ""  # read again every few seconds, so that the key can change
    payload_key_file: File = ""  # keys by which Temporal's payloads are encrypted; empty: they are not
    codec_origin: WebAddress = ""  # of the Web UI, for which workers decrypt what it shows; empty: for none
    ui_address: WebAddress = ""
    task_queue: Word = "sexton"
    deployment_name: DeploymentName = ""  # of Worker Versioning; empty: workers take no part in it
    build_id: BuildId = ""  # of a worker in it; empty: made of the version and of the code that is installed
    database_url: str = Field(default="", repr=False)  # may hold a password. Filled in: a SQLite file in the home
    s3_endpoint: WebAddress = ""
    s3_region: Word = "us-east-1"
    s3_access_key: SecretStr = SecretStr("")
    s3_secret_key: SecretStr = SecretStr("")
    s3_ca_file: File = ""  # the authorities that may sign the store's certificate; executors must see it, too
    primary_bucket: Bucket = "sexton-primary"
    tiered_bucket: Bucket = "sexton-tiered"
    records_bucket: Bucket = "sexton-records"
    replica_buckets: BucketList = ""  # of the record log, in the same store
    ownership: Literal["zookeeper", "single"] = "zookeeper"  # single: one worker owns everything, without ZooKeeper
    zookeeper: Ensemble = ""  # one or several addresses, separated by commas; then the path of ours, if any
    zookeeper_auth: Identity = SecretStr("")
    zookeeper_acl: Literal["anyone", "creator"] = "anyone"  # creator: our nodes are for this identity alone
    zookeeper_tls: Literal["auto", "on", "off"] = "auto"  # auto: on where one of the next three is given
    zookeeper_ca_file: File = (
        ""  # the authorities that may sign the servers' certificates; empty: those of this machine
    )
    zookeeper_cert_file: File = ""
    zookeeper_key_file: File = ""
    session_timeout: Annotated[Seconds, Field(ge=1, le=300)] = 10  # the server ends a session that is silent so long
    session_expired_policy: Literal["reconnect", "shutdown"] = "reconnect"
    session_reconnect_attempts: Count = 10
    bundles: Annotated[Count, Field(le=MAX_BUNDLES)] = 64  # of a catalog that is created; it never changes
    application: Word = "sexton"
    deletion_parallelism: Annotated[Count, Field(le=256)] = 4
    deletion_max_attempts: Annotated[Count, Field(le=1_000_000)] = 10
    deletion_retry_interval: Annotated[Seconds, Field(ge=0, le=30 * 86_400)] = 600
    deletion_chunk: Annotated[Count, Field(le=1_000)] = 100
    finished_retention: Annotated[Seconds, Field(ge=3_600)] = 30 * 86_400  # of finished rows; dead letters stay
    sweep_interval: Interval = 60  # of deletions, and of transactions
    transaction_coordinators: Annotated[Count, Field(le=MAX_COORDINATORS)] = 16  # may be raised at any time
    trim_interval: Interval = 300
    delayed_tolerance: Annotated[Seconds, Field(ge=0, le=3_600)] = 0  # how much too early a message may be delivered
    delayed_limit: Annotated[Seconds, Field(ge=1)] = 3_650 * 86_400  # `topic append` takes none later than that
    delayed_interval: Interval = 60  # of looks for topics whose delayed messages are to be sealed
    delayed_messages: Count = 50_000  # behind the last bucket, from which on they are sealed
    delayed_ledgers: Count = 100  # the same of ledgers
    delayed_idle: Annotated[Seconds, Field(ge=1)] = 3_600  # or any, when no new one has come for so long
    delayed_buckets: Count = 20  # more of a topic are merged
    records_interval: Annotated[Seconds, Field(ge=1, le=3_600)] = 5  # of flushes of what has changed
    records_cursor_interval: Annotated[Seconds, Field(ge=1, le=86_400)] = 60  # of flushes of cursors
    defragment_interval: Interval = 3_600  # of the record log
    replicate_interval: Interval = 60  # of copies of the record log into its replicas
    raid_interval: Interval = 86_400  # of raids for tombstones that cover nothing
    eligible_age: Annotated[Seconds, Field(ge=0)] = 86_400  # a tombstone younger than that stays
    tomb_raider_sleep: Annotated[int, BeforeValidator(no_truth_value), Field(ge=0, le=60_000)] = 1  # ms between blocks
    functions: FunctionList = ""  # over records, each as module:function: what `records end` may be asked for
    clock_bound: Annotated[Seconds, Field(ge=1, le=3_600)] = 60  # so far a writer's clock may be from the store's
    plan_interval: Interval = 86_400  # of reconciliations that are planned, and never applied
    scrub_interval: Interval = 0  # of scrubs, which read all that is stored; 0: only when asked for
    scrub_rate: Annotated[int, BeforeValidator(no_truth_value), Field(ge=MIN_SCRUB_RATE, le=1 << 40)] = (
        SCRUB_RATE  # bytes that a scrub reads a second
    )
    ledger_max_entries: Count = 50_000
    ledger_max_bytes: Count = 64 * 1024 * 1024
    ledger_max_age: Annotated[Seconds, Field(ge=1)] = 4 * 3_600
    cursor_inline_bytes: Count = 16 * 1024
    registration_timeout: Annotated[Seconds, Field(ge=1, le=86_400)] = 600
    offload_timeout: Annotated[Seconds, Field(ge=1, le=86_400)] = 45 * 60
    offload_parallelism: Annotated[Count, Field(le=64)] = 2
    bulk_dir: Folder = ""  # filled in: in the home. Every worker and every executor of the cluster must see it
    spark_master: Master = "local[*]"
    upload_threads: Annotated[Count, Field(le=64)] = 4
    temporal_port: Port = 7233
    ui_port: Port = 8233
    s3_port: Port = 8333
    zookeeper_port: Port = 2181
    metrics_address: Listening = "127.0.0.1:9464"  # of each worker; a taken port gives way to a free one
    http_address: Listening = "127.0.0.1:9465"  # of each worker's probes and pages; as `metrics_address`
    activity_threads: Annotated[Count, Field(le=1_024)] = 16
    trace_retention: Annotated[Seconds, Field(ge=3_600)] = 7 * 86_400  # of span files that no process writes to
    trace_max_bytes: Annotated[Count, Field(ge=1024 * 1024)] = 256 * 1024 * 1024  # of all span files of the home
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(upper)] = "INFO"
    drain_timeout: Annotated[Seconds, Field(ge=0)] = 30

    @model_validator(mode="before")
    @classmethod
    def _in_the_home(cls, values: object) -> object:
        if not isinstance(values, Mapping) or "home" not in values:
            return values
        home = Path(str(values["home"])).absolute()
        path = quote(str(home / "catalog.db"))  # `?` and `%` mean something in a URL
        filled = {"database_url": f"sqlite:///{path}", "bulk_dir": str(home / "bulk")}
        return {**values, **{name: value for name, value in filled.items() if not values.get(name)}}

    def environment(self) -> dict[str, str]:
        """The settings as variables of a process's environment, secrets included; empty ones are left out."""
        values = self.model_dump(mode="json")
        shown = {name: value for name, value in self if isinstance(value, SecretStr)}
        values |= {name: secret.get_secret_value() for name, secret in shown.items()}
        return {f"SEXTON_{name.upper()}": str(value) for name, value in values.items() if value not in {"", None}}

    @property
    def temporal_by_tls(self) -> bool:
        """Whether Temporal is to be reached by TLS: the settings say so, or something that needs it is given."""
        files = (self.temporal_ca_file, self.temporal_cert_file, self.temporal_key_file, self.temporal_api_key_file)
        named = bool(self.temporal_server_name or self.temporal_api_key.get_secret_value() or any(files))
        return named or self.temporal_tls == "on"

    @property
    def store_is_known(self) -> bool:
        """Whether an object store is known: one with an address, or AWS beside a database outside of the home."""
        return bool(self.s3_endpoint) or self.database_url != Settings(home=self.home).database_url

    @property
    def replicas(self) -> tuple[str, ...]:
        """Buckets of replicas of the record log."""
        return tuple(filter(None, self.replica_buckets.split(",")))

    @property
    def traces_dir(self) -> Path:
        """Where the home's span files are."""
        return self.home / "traces"

    def but(self, **changes: object) -> "Settings":
        """The same settings with these in the place of theirs, validated together.

        A setting that was not given is left out: it may have a default that says just that, and refuse to be given it.
        """
        return Settings.model_validate(self.model_dump(exclude_defaults=True) | changes)

    def without_services(self) -> "Settings":
        """The same settings with no service known, as of a home in which nothing was started."""
        return Settings.model_validate({name: value for name, value in self if name not in SERVICES})

    def required(self, name: str) -> str:
        """The address of that name, which must be known.

        Raises:
            ServiceFailed: It is empty: no stack was started in this home and none was configured.
        """
        value = str(getattr(self, name))
        if not value:
            advice = f"run `sexton up` there, or set SEXTON_{name.upper()}"
            raise ServiceFailed(name, f"no stack has been started in {self.home}", advice=advice)
        return value
