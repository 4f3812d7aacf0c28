"""Prints the text of `docs/reference/workflows.md`."""

import sys

from workers.reference.page import page

sys.stdout.write(page())
