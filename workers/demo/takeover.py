"""Who owned what when the first worker died, and whose writes are accepted once the second one owns everything."""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from logstore.deletion.intents import Outcome
from logstore.errors import NotOwner, ServiceFailed
from logstore.ownership import BundleId, Lease
from logstore.ports.catalog import Deletions, Ended
from workers.demo.auditor import Auditor
from workers.demo.report import PromiseRow, check_owner

_OWNED_WITHIN_S: Final = 60.0
_NO_ROW: Final = Ended(row_id=-1, outcome=Outcome.DELETED)  # a write that changes nothing where it is accepted

Fences = Mapping[int, tuple[int, str]]


def owned(auditor: Auditor, *, bundles: int, by: str) -> Fences:
    """Wait until a worker whose id begins so was the last to acquire each bundle.

    Raises:
        ServiceFailed: That did not happen.
    """
    give_up = time.monotonic() + _OWNED_WITHIN_S
    while True:
        now = auditor.fences()
        if sum(worker_id.startswith(by) for _, worker_id in now.values()) == bundles:
            return now
        if time.monotonic() > give_up:
            raise ServiceFailed(by, "it did not acquire every bundle", advice="read its log")
        time.sleep(0.1)


def check_takeover(deletions: Deletions, before: Fences, after: Fences) -> PromiseRow:
    """Try a write under every lease that the killed worker had, and under every one of its successor."""
    dead, live = list(_leases(before)), list(_leases(after))
    return check_owner(
        refused=sum(not _accepted(deletions, lease) for lease in dead),
        of_dead=len(dead),
        accepted=sum(_accepted(deletions, lease) for lease in live),
        of_live=len(live),
    )


def _leases(fences: Fences) -> Iterable[Lease]:
    for bundle, (counter, worker_id) in fences.items():
        yield Lease(bundle=BundleId(bundle), fence=counter, worker_id=worker_id)


def _accepted(deletions: Deletions, lease: Lease) -> bool:
    try:
        deletions.under(lease).finish([_NO_ROW], holder="sexton demo")
    except NotOwner:
        return False
    return True
