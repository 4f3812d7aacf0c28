"""The cluster of a plan, under a lease that all attempts of a job hold by the same name."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from logstore.errors import PreconditionFailed
from logstore.ports.pulsar_cluster import ClusterChanges, PulsarClusterAccess


def name_apply(run_id: str, catalog_id: str) -> str:
    """Return the name of the applies of a plan."""
    return f"the apply of {run_id}, catalog {catalog_id}"


def name_undo(run_id: str, catalog_id: str) -> str:
    """Return the name of the undo of applies of a plan."""
    return f"the undo of {run_id}, catalog {catalog_id}"


@contextmanager
def open_planned_cluster(
    cluster: PulsarClusterAccess,
    run_id: str,
    identity: str,
    holder: str,
    *,
    shadow_topics: Collection[str] = (),
    overtakes: str = "",
    continues: bool = False,
) -> Iterator[ClusterChanges]:
    """Take the lease of the cluster of a plan, by the plan's id and the cluster's identity.

    For the other arguments see `PulsarClusterAccess.open_changes`.

    Raises:
        PreconditionFailed: Another job has the lease, or the settings name another cluster than that of the plan. The
            job does not have the lease then.
    """
    with cluster.open_changes(holder, shadow_topics=shadow_topics, overtakes=overtakes, continues=continues) as changes:
        if changes.identity != identity:
            cluster.release_lease(holder)
            expected = f"expected the cluster {identity}"
            raise PreconditionFailed(f"plan {run_id}: {expected}, found {changes.identity}; plan again")
        yield changes
