"""Addresses of a Pulsar cluster, and sessions for reads of its ZooKeeper."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field

from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.objects.s3_store import BucketAddress
from infra.pulsar.broker_admin import BrokerAdminAddress
from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.plan_jobs import READS_PER_S
from logstore.pulsar.znode_names import LOG_ROOTS
from logstore.rate_limiter import RateLimiter
from logstore.setting_files import PemFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarCluster:
    """Addresses of one cluster. Executors get them within tasks."""

    zookeeper: str  # one or more `host:port`, and optionally a slash and the chroot
    configuration_store: str = ""  # in the same form; empty: `zookeeper`
    ledgers_root: str = "ledgers"  # without a slash at its ends
    auth: tuple[str, str] | None = field(default=None, repr=False)  # of both ensembles, as `tls`
    tls: PemFiles | None = None
    session_timeout_s: float = 30.0
    reads_per_s: float = READS_PER_S  # of all sessions that read at the same time
    admin: BrokerAdminAddress | None = None
    offloads: BucketAddress | None = None
    log_roots: tuple[str, ...] = LOG_ROOTS  # of DistributedLog, without a slash at their ends
    shared_clusters: tuple[str, ...] = ()  # names of further clusters with the same BookKeeper

    def open_reader(self, *, parallel_sessions: int) -> AbstractContextManager[ZnodeReader]:
        """Open a session that ends with the block. Its first reads show all that was committed before.

        Each of `parallel_sessions` that read at the same time has an equal share of `reads_per_s`. Sessions of one
        thread count once, because they read in turn.

        Raises:
            ServiceFailed: No server answers, or the servers refuse the identity.
        """
        return self._open(self.zookeeper, "pulsar_zookeeper", parallel_sessions)

    def open_configuration_reader(self, *, parallel_sessions: int) -> AbstractContextManager[ZnodeReader]:
        """Open a session with the configuration store, as `open_reader` does."""
        if not self.configuration_store:
            return self.open_reader(parallel_sessions=parallel_sessions)
        return self._open(self.configuration_store, "pulsar_configuration_store", parallel_sessions)

    def open_session(self) -> ZooKeeperSession:
        """Open a session for changes. For errors see `open_reader`."""
        return self._open_session(self.zookeeper, "pulsar_zookeeper")

    def _open_session(self, ensemble: str, setting: str) -> ZooKeeperSession:
        options = EnsembleOptions(
            hosts=ensemble, timeout_s=self.session_timeout_s, auth=self.auth, tls=self.tls, setting=setting
        )
        return ZooKeeperSession(options, lambda _: None)

    @contextmanager
    def _open(self, ensemble: str, setting: str, parallel_sessions: int) -> Iterator[ZnodeReader]:
        with closing(self._open_session(ensemble, setting)) as session:
            reader = ZnodeReader(session, RateLimiter(self.reads_per_s / parallel_sessions))
            reader.sync()
            yield reader
