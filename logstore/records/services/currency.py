"""Whether a database is the one that its record log belongs to, and not an older copy of it.

A database that was restored from a backup does not know what was answered since: written to, it would give the same
positions and ids out again. So it is asked before a process uses the primary bucket, and refused.
"""

from logstore.ports.catalog import Records
from logstore.ports.objects import OwnedStore
from logstore.records.manifest import PREFIX, manifest_key
from logstore.records.services.publishing import require_known
from logstore.records.services.record_log import RecordLog


def require_current(records: Records, objects: OwnedStore) -> None:
    """Refuse a database that does not know the newest manifest: by one LIST, where it is the one that is known.

    A replica's database may be behind: every write to it is refused anyway.

    Args:
        records: The catalog.
        objects: The bucket of its record log.

    Raises:
        CatalogOutdated: There is a manifest that this catalog has not begun.
        CatalogMismatch: The newest manifest is another catalog's.
        CorruptData, Unsupported: It cannot be read.
        StoreUnavailable, ServiceRefused: The store did not answer, or refuses us.
    """
    known = records.known()
    if known.replica:  # behind its source, and read alone
        return
    start = manifest_key(known.manifest) if known.manifest else ""
    if next(iter(objects.list(PREFIX, start_after=start)), None) is None:
        return
    newest = RecordLog(objects).newest(after=known.manifest)
    if newest is not None:
        require_known(records.known(), newest)  # read behind the manifest: what a live process has begun is in it
