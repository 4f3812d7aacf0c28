"""Bounds of what a job may be told, whoever wrote it: beyond them it could only hang."""

from collections.abc import Mapping
from typing import Final

from temporalio.exceptions import ApplicationError

_MONTH_S = 30 * 86_400

ALONE: Final = {
    "max_attempts": (1, 1_000_000),
    "retry_interval_s": (0, _MONTH_S),
    "owner_patience_s": (1, _MONTH_S),
}
"""Of `DeleteLedgerInput`, both ends inclusive."""

DELETION: Final = {**ALONE, "parallelism": (1, 256), "chunk": (1, 1_000_000), "alone": (1, 1_500)}
"""Of `DeletionPolicy`; a chunk is cut to what fits an answer anyway."""

OFFLOAD: Final = {"timeout_s": (1, _MONTH_S), "attempts": (1, 1_000_000), "parallelism": (1, 64)}
"""Of `OffloadPolicy`."""


def check(what: str, value: object, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Refuse a value with a field beyond its bounds.

    Raises:
        ApplicationError: Of type `InvalidInput`, final; names the field, the bounds and what was found.
    """
    for name, (least, most) in bounds.items():
        found = getattr(value, name)
        if not least <= found <= most:
            message = f"{what}.{name}: expected {least:,} to {most:,}, found {found:,}"
            raise ApplicationError(message, type="InvalidInput", non_retryable=True)
