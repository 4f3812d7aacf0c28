"""The audit log in memory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from logstore.failpoints import effect
from logstore.ports.catalog import Cause

if TYPE_CHECKING:
    from tests.fakes.catalog.state import FakeCatalog


class FakeAuditLog:
    """The `AuditLog` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def record(self, act: str, cause: Cause, *, detail: Mapping[str, object]) -> None:
        with effect("catalog.record_act"), self._catalog.lock:
            self._catalog.audit(act, cause, detail)
