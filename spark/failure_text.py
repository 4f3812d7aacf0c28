"""Summaries of Spark failures: one line instead of pages of Java and Python frames."""

import logging
from typing import Final

_log = logging.getLogger(__name__)
_MAX_CHARS: Final = 1_000
_CALL_PREFIX: Final = "An error occurred while calling "
_CAUSE_PREFIX: Final = "Caused by: "
_TRACEBACK_HEADER: Final = "Traceback (most recent call last)"


def summarize_failure(text: str) -> str:
    """Return one line of at most 1,000 characters, or an empty text for an empty text.

    The line of a Python error is the last line of the traceback. The line of a Java error is the first sentence and, if
    there are causes, the last cause.
    """
    if _TRACEBACK_HEADER in text:
        frames = text[text.index(_TRACEBACK_HEADER) :].partition("\n SQLSTATE")[0].partition("\n\tat ")[0]
        lines = [line for line in frames.splitlines() if line.strip() and not line[0].isspace()]
        return lines[-1].strip()[:_MAX_CHARS]
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    sentences = [line for line in lines if not line.startswith((_CALL_PREFIX, "at ", "... "))]
    if not sentences:
        return ""
    causes = [line.removeprefix(_CAUSE_PREFIX) for line in sentences[1:] if line.startswith(_CAUSE_PREFIX)]
    cause = f" (caused by {causes[-1]})" if causes else ""
    return f"{sentences[0][: _MAX_CHARS // 2]}{cause[: _MAX_CHARS // 2]}"


def summarize_error(error: BaseException) -> str:
    """Return one line for an error of Spark or py4j: the text, or at least the class name.

    The caller must not chain `error` as a cause, because an error of py4j asks Java for its text when it is printed.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - py4j raises any error of its broken socket
        return type(error).__name__
    _log.debug("spark: %s", text)
    return summarize_failure(text) or type(error).__name__
