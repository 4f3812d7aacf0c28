"""How a page is made of its template: all that is filled in is escaped, and nothing is loaded from anywhere.

Templates are in this folder. A page holds its own style, and its browser is told to run no script and to load nothing:
whatever stands in a topic's name or in an error is text.

Source: W3C, "Content Security Policy Level 3"; Jinja, "Autoescaping".
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of every page."""


def rendered(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever a template shows
    """The page of a template of this folder.

    Raises:
        jinja2.UndefinedError: The template shows what it was not given.
    """
    return str(_environment().get_template(template).render(policy=POLICY, **values))


@cache
def _environment() -> Any:  # noqa: ANN401 - of a package whose import takes a command 30 ms
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, cache_size=-1
    )
