"""Addresses of a Pulsar cluster, and sessions for reads of its ZooKeeper."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from infra.coordination.zookeeper_errors import PemFiles
from infra.coordination.zookeeper_session import EnsembleOptions, ZooKeeperSession
from infra.pulsar.znode_reads import ZnodeReader

READS_PER_S = 20_000
"""Default limit of reads a second. One server answers some 5,000 asynchronous reads of one client a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarCluster:
    """Addresses of one cluster. Executors get them within tasks."""

    zookeeper: str  # one or more `host:port`, and optionally a slash and the chroot
    ledgers_root: str = "ledgers"  # without a slash at its ends
    auth: tuple[str, str] | None = field(default=None, repr=False)
    tls: PemFiles | None = None
    session_timeout_s: float = 30.0
    reads_per_s: float = READS_PER_S  # of one session

    @contextmanager
    def open_reader(self) -> Iterator[ZnodeReader]:
        """Open a session that ends with the block. Its first reads show all that was committed before.

        Raises:
            ServiceFailed: No server answers, or the servers refuse the identity.
        """
        options = EnsembleOptions(
            hosts=self.zookeeper,
            timeout_s=self.session_timeout_s,
            auth=self.auth,
            tls=self.tls,
            setting="pulsar_zookeeper",
        )
        with closing(ZooKeeperSession(options, lambda _: None)) as session:
            reader = ZnodeReader(session, reads_per_s=self.reads_per_s)
            reader.sync()
            yield reader
