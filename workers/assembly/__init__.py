"""The one composition root: `log` over any ports, `activities` over it, `adapters` from settings.

Production and tests pass through the same functions; nothing else constructs these services.
"""

from workers.assembly.adapters import open_log
from workers.assembly.log import LogStore, Policies, assemble

__all__ = ["LogStore", "Policies", "assemble", "open_log"]
