"""Entries of ledgers, as the bookie of the cluster returns them."""

from infra.pulsar.bookie_reads import BookieConnections, BookieDirectory, BookieEntry, read_stored_entries
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.ledger_scan import read_ledger_metadata
from tests.pulsar_cluster.cluster import RealCluster


def read_entries(cluster: RealCluster, ledger_id: int) -> list[bytes]:
    """Return the payloads of a closed ledger.

    Raises:
        StoreUnavailable: The bookie does not have one of them.
    """
    access = PulsarCluster(zookeeper=f"{cluster.zookeeper}/")
    with access.open_reader(parallel_sessions=1) as reader:
        metadata = read_ledger_metadata(reader, access.ledgers_root, [ledger_id])[ledger_id]
        if isinstance(metadata, Exception):
            raise metadata
        places = [(ledger_id, entry_id) for entry_id in range(metadata.last_entry + 1)]
        with BookieConnections(BookieDirectory(reader, access.ledgers_root)) as connections:
            entries = read_stored_entries(connections, {ledger_id: metadata}, places)
    return [_require_payload(entries[place]) for place in places]


def _require_payload(entry: BookieEntry | Exception) -> bytes:
    if isinstance(entry, Exception):
        raise entry
    return entry.payload
