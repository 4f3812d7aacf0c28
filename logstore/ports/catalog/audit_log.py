"""The audit log, for acts that change something outside the catalog, and its port."""

from collections.abc import Mapping
from typing import Protocol

from logstore.ports.catalog.batches import Cause


class AuditLog(Protocol):
    """Who did what, and why. What the catalog itself destroys it writes down in the same transaction, without this."""

    def record(self, act: str, cause: Cause, *, detail: Mapping[str, object]) -> None:
        """Write down what is about to be done elsewhere, or what came of it: so no act is without a row.

        Idempotency: none, and none is needed. A repeated call leaves another row, which says the same.

        Args:
            act: What is done, in kebab-case.
            cause: Who and why.
            detail: What it is done to, as JSON has it.
        """
