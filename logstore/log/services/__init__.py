"""Log of a topic: append, roll, read.

Any process may append and read at any time, because SQL transactions make this safe. A process remembers the last
ledger of a topic and sequence ids of producers. These are hints, which a refused registration corrects.
"""

from logstore.clock import Clock
from logstore.log.services.append import AppendResult
from logstore.log.services.managed_ledger import ManagedLedger
from logstore.log.services.roll import RollPolicy, RollResult
from logstore.log.services.view import READABLE_COLUMNS

__all__ = ["READABLE_COLUMNS", "AppendResult", "Clock", "ManagedLedger", "RollPolicy", "RollResult"]
