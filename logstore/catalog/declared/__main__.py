"""Print the source text of `logstore/catalog/tables.py`."""

import sys

from logstore.catalog.declared import render_tables
from logstore.catalog.declared.catalog_tables import metadata

sys.stdout.write(render_tables(metadata))
