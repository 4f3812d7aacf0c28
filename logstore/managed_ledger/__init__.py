"""A topic's log: append, roll, read.

Any process may append and read at any time; SQL makes it safe. What a process remembers between calls (the last
ledger of a topic, sequence ids of producers) is a hint that a refused registration corrects.
"""

from logstore.managed_ledger.append import AppendResult
from logstore.managed_ledger.clock import Clock
from logstore.managed_ledger.log import ManagedLedger
from logstore.managed_ledger.read import READABLE
from logstore.managed_ledger.roll import Rolled, RollPolicy

__all__ = ["READABLE", "AppendResult", "Clock", "ManagedLedger", "RollPolicy", "Rolled"]
