"""Print the text of `docs/reference/workflows.md`."""

import sys

from workers.reference.page import render_page

sys.stdout.write(render_page())
