"""What a request is about, in a line that the Web UI shows beside an activity and above a run."""

from collections.abc import Iterator
from typing import Final

from workers.hosting.span_facts import BATCH, LEDGER, LEDGERS, TOPIC, facts_of

MOST_BYTES: Final = 200
"""Of one summary; servers refuse, with the whole workflow task, what is longer than 400."""


def summary_of(request: object) -> str:
    """Rows, ledgers, topics, batch and topic, as far as the request names them, in at most `MOST_BYTES` of UTF-8.

    Args:
        request: What an activity or a workflow takes. The answer depends on nothing else: replay gives it again.
    """
    return shortened(", ".join(_parts(request)))


def shortened(text: str) -> str:
    """The text, cut to `MOST_BYTES` of UTF-8."""
    raw = text.encode()
    return text if len(raw) <= MOST_BYTES else raw[: MOST_BYTES - 3].decode(errors="ignore") + "…"


def _parts(request: object) -> Iterator[str]:
    facts, key = facts_of(request), getattr(request, "key", request)
    chunk, page = getattr(request, "chunk", None), getattr(request, "page", None)
    if chunk is not None:
        yield f"rows {chunk.first} to {chunk.last}"
    if page is not None and hasattr(page, "first"):
        yield f"topics {page.first} to {page.last}"
    if LEDGER in facts:
        yield f"ledger {facts[LEDGER]}"
    if hasattr(key, "copy"):
        yield f"copy {key.copy}"
    if LEDGERS in facts:
        yield _ledgers(request)
    yield from _page(request)
    if BATCH in facts:
        yield f"batch {facts[BATCH]}"
    if TOPIC in facts:
        yield str(facts[TOPIC])


def _ledgers(request: object) -> str:
    """The first of them, and how many there are."""
    ids = getattr(getattr(request, "detach", request), "ledger_ids")  # noqa: B009 - a request of any type
    if len(ids) == 1:
        return f"ledger {ids[0]}"
    return f"{len(ids):,} ledgers: " + ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")


def _page(request: object) -> Iterator[str]:
    """Where a page begins, and how much it takes at most."""
    after, limit = getattr(request, "after", None), getattr(request, "limit", None)
    if not isinstance(limit, int):
        return
    if after is None:
        yield f"at most {limit:,} rows"
    elif after >= 0:
        what = next((name for name in ("rows", "topics") if hasattr(request, name)), "ledgers")
        yield f"{what} after {after}"
