"""HTML pages from the templates in this package. Templates escape every value.

The Content-Security-Policy of a page allows no scripts, and no resources of other addresses.

Source: W3C, "Content Security Policy Level 3"; Jinja, "Autoescaping".
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from workers.human_readable_values import escape_unprintable

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)


def render_template(template: str, **values: Any) -> str:  # noqa: ANN401 - values depend on the template
    """Return the page of a template in this folder. A missing value raises `jinja2.UndefinedError`."""
    return str(_create_template_environment().get_template(template).render(policy=CONTENT_SECURITY_POLICY, **values))


def stream_template(template: str, **values: Any) -> Iterator[str]:  # noqa: ANN401 - values depend on the template
    """Return the page in parts. If a value is an iterator of rows, only one row is in memory at a time."""
    return iter(
        _create_template_environment().get_template(template).generate(policy=CONTENT_SECURITY_POLICY, **values)
    )


@cache
def _create_template_environment() -> Any:  # noqa: ANN401 - the import of the type would slow down commands by 30 ms
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, cache_size=-1
    )
    environment.filters["escape_unprintable"] = escape_unprintable
    return environment
