"""A ledger's explanation for people: sections, no line longer than a narrow terminal where words allow."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workers.pages.texts import harmless, plain

_WIDTH = 80
_LABEL = 16


def in_sections(found: Mapping[str, Any]) -> str:
    """The document of `ledger explain` as text."""
    lines = [f"ledger {found['ledger_id']}", *_wrapped(found["verdict"], indent="  ")]
    for title, facts in _sections(found):
        lines += ["", title, *facts]
    return harmless("\n".join(lines)) + "\n"


def _sections(found: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    shown = ("state", "entries", "size_bytes", "generation")
    yield "row", [line for name in shown for line in _fact(name, found[name])]
    if found["owner"]:
        yield "owner", [line for name, value in found["owner"].items() for line in _fact(name, value)]
    if found["bundle"]:
        yield "bundle of the topic", [line for name, value in found["bundle"].items() for line in _fact(name, value)]
    yield "references", _each(found["references"], _reference)
    yield "copies", _each(found["copies"], _copy)
    yield "intents", _each(found["intents"], _intent)
    if found["tombstone"]:
        yield "tombstone", [line for name, value in found["tombstone"].items() for line in _fact(name, value)]
    yield "decisions, newest first", _each(found["decisions"], _decision)


def _each(rows: Sequence[Mapping[str, Any]], write: Any) -> list[str]:  # noqa: ANN401 - one of the functions below
    return [line for row in rows for line in write(row)] or ["  none"]


def _reference(row: Mapping[str, Any]) -> Iterator[str]:
    yield from _fact(
        row["kind"].lower(), {name: value for name, value in row.items() if name != "kind" and value != {}}
    )


def _copy(row: Mapping[str, Any]) -> Iterator[str]:
    storage = row["storage"]
    yield f"  {row['kind']}, {row['state']}"
    yield from _fact("context", row["context"], deeper="  ")
    held = f"{storage['finding']}, {plain(storage['objects'])} objects, {plain(storage['size_bytes'])} bytes"
    yield from _fact("storage", held if storage["finding"] else "unknown", deeper="  ")
    yield from _fact("says", storage["detail"], deeper="  ")
    yield from _fact("statement", storage["statement"], deeper="  ")


def _intent(row: Mapping[str, Any]) -> Iterator[str]:
    outcome = f", {row['outcome']}" if row["outcome"] and row["outcome"] != row["state"] else ""
    stalled = ", stalled" if row["stalled"] else ""
    yield f"  {row['id']}: {row['copy']}, generation {row['generation']}, {row['state']}{outcome}{stalled}"
    names = ("filed", "finished", "attempts", "last_error", "batch_id", "workflow_id", "trace_id", "objects_deleted")
    for name in names:
        yield from _fact(name, row[name], deeper="  ")


def _decision(row: Mapping[str, Any]) -> Iterator[str]:
    reason = f": {row['reason']}" if row["reason"] else ""
    yield from _wrapped(f"{row['at']} {row['act']} by {row['actor'] or 'nobody'}{reason}", indent="  ")
    yield from _fact("workflow_id", row["workflow_id"], deeper="  ")
    yield from _fact("trace_id", row["trace_id"], deeper="  ")
    yield from _fact("detail", row["detail"], deeper="  ")


def _fact(name: str, value: object, *, deeper: str = "") -> Iterator[str]:
    """A name and its value; one that is empty is left out."""
    if value in (None, "", {}, []):
        return
    label = f"  {deeper}{name.replace('_', ' '):<{_LABEL - len(deeper)}} "
    yield from _wrapped(plain(value), indent=label, then=" " * len(label))


def _wrapped(text: str, *, indent: str, then: str | None = None) -> list[str]:
    """Lines of words; a name that is longer than a line stays whole, so that it can be copied."""
    rest = indent if then is None else then
    shape = textwrap.TextWrapper(
        _WIDTH, initial_indent=indent, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return shape.wrap(text) or [indent]
