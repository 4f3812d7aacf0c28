"""The sentence of a failure of Spark: pages of Java and Python frames become the one line that says what is wrong."""

import logging
from typing import Final

_log = logging.getLogger(__name__)
_MAX_CHARS: Final = 1_000
_CALLING: Final = "An error occurred while calling "
_CAUSE: Final = "Caused by: "
_TRACEBACK: Final = "Traceback (most recent call last)"


def summarize_failure(text: str) -> str:
    """Return one line of at most 1,000 characters; empty for an empty text.

    Of an error in Python it is the last line of the traceback. Of one in Java it is the first sentence, and the last
    cause if there is one.
    """
    if _TRACEBACK in text:
        frames = text[text.index(_TRACEBACK) :].partition("\n SQLSTATE")[0].partition("\n\tat ")[0]
        lines = [line for line in frames.splitlines() if line.strip() and not line[0].isspace()]
        return lines[-1].strip()[:_MAX_CHARS]
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    sentences = [line for line in lines if not line.startswith((_CALLING, "at ", "... "))]
    if not sentences:
        return ""
    causes = [line.removeprefix(_CAUSE) for line in sentences[1:] if line.startswith(_CAUSE)]
    caused = f" (caused by {causes[-1]})" if causes else ""
    return f"{sentences[0][: _MAX_CHARS // 2]}{caused[: _MAX_CHARS // 2]}"


def summarize_error(error: BaseException) -> str:
    """Return the sentence of an error that Spark or py4j raised; its class where it says nothing.

    Errors of py4j ask Java for their text, so an error that outlives its Java has none, and must be no other's cause.
    """
    try:
        told = str(error)
    except Exception:  # noqa: BLE001 - py4j raises what its broken socket gives
        return type(error).__name__
    _log.debug("spark: %s", told)
    return summarize_failure(told) or type(error).__name__
