"""`python -m workers` that looks for few unused ledger ids, for rebuilds on real servers.

A rebuild asks for 1,024 ids above those that the catalog knows. On real servers that is half of its CPU.
`tests/logstore/records/test_absence.py` tests the whole bound.
"""

from logstore.records.services import upload_adoption
from workers.cli import main

PROBED_IDS = 1
"""Ids of each shard, of which there are 256."""

if __name__ == "__main__":
    vars(upload_adoption)["PROBED_IDS_PER_SHARD"] = PROBED_IDS
    main()
