"""The setting `database_url`: which database it names, and how it is shown without what is secret in it."""

import re
from typing import Final

from sqlalchemy import URL
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from logstore.errors import InvalidInput

_URLS: Final = "sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE"
_SECRET: Final = re.compile(
    r"^([\w+.-]*:/{1,2}[^:/?]*:|[^:?]*:(?!/))[^@]*(?:@[^?@]*)*(?=@)"  # up to the last @ before words of libpq
    r"|((?:password|secret)=)[^&]*"
)


def shown_url(url: str) -> str:
    """The URL as it may be printed: no password, wherever it stands in it."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", url)


def parsed_url(url: str) -> URL:
    """Read `sqlite:///PATH` or `postgresql+psycopg://…`.

    Raises:
        InvalidInput: Neither of the two, or SQLite without a plain path: every connection to `:memory:` would
            see a database of its own.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # from None: their messages show the password
        raise InvalidInput("database_url", expected=_URLS, found=shown_url(url)) from None
    if parsed.drivername == "postgresql+psycopg":
        return parsed
    path = parsed.database or ""
    plain = path and not (parsed.host or parsed.username or path.startswith((":memory:", "file:")))
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"} and plain:
        return parsed
    shown = parsed.render_as_string(hide_password=True)
    raise InvalidInput("database_url", expected=_URLS, found=shown_url(shown))
