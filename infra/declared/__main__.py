"""Print the source text of `infra/catalog/tables.py`."""

import sys

from infra.declared import render_tables
from infra.declared.models import metadata

sys.stdout.write(render_tables(metadata))
