"""Print one page of `docs/reference`: `workflows` or `settings`."""

import sys

from workers.reference.settings_page import render_settings_page
from workers.reference.workflows_page import render_workflows_page

_RENDERER_BY_PAGE = {"workflows": render_workflows_page, "settings": render_settings_page}

sys.stdout.write(_RENDERER_BY_PAGE[sys.argv[1] if len(sys.argv) > 1 else "workflows"]())
