"""Log of a topic: append, roll, read.

Any process may append to and read any topic at any time. SQL transactions make this safe. A process remembers the last
ledger of a topic and sequence ids of producers. If these values are outdated, the catalog refuses the next
registration, and the process reads these values again.
"""

from logstore.log.services.batched_appends import AppendResult
from logstore.log.services.entry_reader import READABLE_COLUMNS
from logstore.log.services.segment_placement import RollPolicy, RollResult
from logstore.log.services.topic_logs import TopicLogs
from logstore.retrying_clock import Clock

__all__ = ["READABLE_COLUMNS", "AppendResult", "Clock", "RollPolicy", "RollResult", "TopicLogs"]
