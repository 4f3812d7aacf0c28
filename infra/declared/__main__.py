"""Print the source text of `infra/catalog/tables.py`."""

import sys

from infra.declared import render_tables
from infra.declared.catalog_tables import metadata

sys.stdout.write(render_tables(metadata))
