"""Taking a bundle away from its owner: its node goes, it lets go, and another takes the bundle.

What is removed is the node of the session that was read, in one step with a check that this session still stands: a
later owner's node is never touched (apache/pulsar#295).
"""

import time
from dataclasses import dataclass
from typing import Final

from infra.coordination.directory import Directory
from logstore.errors import PreconditionFailed
from logstore.ownership import BundleId, bundle_name
from logstore.ports.catalog import AuditLog, Cause, Fence, Fences

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A bundle with its owner, as read."""

    bundle: BundleId
    name: str
    worker_id: str
    session: int
    fence: int  # as raised last, by this owner or one before


class Unloading:
    """For one command."""

    def __init__(self, fences: Fences, audit_log: AuditLog, directory: Directory) -> None:
        """Take the ports."""
        self._fences, self._audit_log, self._directory = fences, audit_log, directory

    def find(self, bundle: BundleId) -> Owned:
        """Who has it.

        Raises:
            PreconditionFailed: Nobody has.
        """
        name = bundle_name(bundle, bundles=self._fences.bundles())
        fence = self._fences.fence(bundle)  # before the node: a later raise is then told from this one
        node = self._directory.owners([bundle]).get(bundle)
        if node is None:
            raise PreconditionFailed(f"bundle {name}: expected an owner, found none; nothing was changed")
        return Owned(
            bundle=bundle,
            name=name,
            worker_id=node.worker_id,
            session=node.session,
            fence=fence.counter if fence else 0,
        )

    def unload(self, owned: Owned, cause: Cause) -> None:
        """Remove the owner's node, with a row in the audit log before it and one after.

        Raises:
            PreconditionFailed: It stays, for the session that it names does not stand.
            StoreUnavailable, SessionLost: No answer; it may have gone. Who looks again knows.
        """
        detail = {
            "bundle": owned.name,
            "worker_id": owned.worker_id,
            "session": f"{owned.session:#x}",
            "fence": owned.fence,
        }
        self._audit_log.record("unload", cause, detail=detail)
        removed = self._directory.remove(owned.bundle, owned.session)
        outcome = "REMOVED" if removed else self._kept(owned)
        self._audit_log.record("unloaded", cause, detail={**detail, "outcome": outcome})
        if outcome == "KEPT":
            raise PreconditionFailed(
                f"bundle {owned.name}: expected its node to be of a live session, found session {owned.session:#x}, "
                "which does not stand; nothing was changed"
            )

    def _kept(self, owned: Owned) -> str:
        """It may have gone by itself meanwhile, or by this very call, whose first answer was lost."""
        node = self._directory.owners([owned.bundle]).get(owned.bundle)
        return "KEPT" if node and node.session == owned.session else "GONE"

    def taken(self, owned: Owned, *, within_s: float) -> Fence | None:
        """Wait until somebody has acquired it since, the one who had it included; None: nobody did."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            fence, node = self._fences.fence(owned.bundle), self._directory.owners([owned.bundle]).get(owned.bundle)
            if fence and fence.counter > owned.fence and node and node.worker_id == fence.worker_id:
                return fence
            time.sleep(_LOOK_S)
        return None
