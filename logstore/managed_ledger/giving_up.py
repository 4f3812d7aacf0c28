"""Giving up an upload: whoever leaves it without an answer of the catalog tells the catalog so.

An uploader may sleep in its request for so long that its ledger is deleted meanwhile. What lands then stands where
phase two has looked already. A refused registration tells the catalog that somebody came late; so must who does not
come at all, because its time is over or nobody answers. An uploader that dies leaves its object to reconciliation.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from logstore.errors import TerminalError
from logstore.managed_ledger.clock import Clock
from logstore.ports.catalog import Ledgers
from logstore.positions import LedgerId

_PATIENCE_S: Final = 5.0
"""As long as tries with pauses last at the most. The caller is waiting for an error that it could have already."""

_LOG: Final = logging.getLogger(__name__)


@contextmanager
def telling(ledgers: Ledgers, ledger_id: LedgerId, *, epoch: int, clock: Clock) -> Iterator[None]:
    """Surround an upload and the transaction that makes it exist; what they raise is raised.

    A terminal error needs no telling: it is storage that took nothing, or the catalog's own answer.

    Args:
        ledgers: The catalog.
        ledger_id: What is uploaded to.
        epoch: Of the catalog that the ledger is of.
        clock: For pauses between tries.
    """
    try:
        yield
    except TerminalError:
        raise
    except Exception:
        _tell(ledgers, ledger_id, epoch, clock)
        raise


def _tell(ledgers: Ledgers, ledger_id: LedgerId, epoch: int, clock: Clock) -> None:
    """At its best: where the catalog does not hear it either, reconciliation finds what is left."""
    try:
        clock.patiently(lambda: ledgers.gave_up(ledger_id, epoch=epoch), deadline_s=clock.monotonic_s() + _PATIENCE_S)
    except Exception as error:  # noqa: BLE001 - the reason for giving up must not be hidden
        _LOG.warning("ledger %s: an upload was given up, and the catalog was not told: %s", ledger_id, error)
