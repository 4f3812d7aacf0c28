"""Prints the text of `infra/catalog/tables.py`."""

import sys

from infra.declared import source
from infra.declared.models import metadata

sys.stdout.write(source(metadata))
