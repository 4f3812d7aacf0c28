"""A history of a concurrent run, and what no serial order of its transactions explains; in the manner of Elle.

Each transaction appends one element, its own name, to the lists of some keys; a key is a topic. Elements are unique, so
a read of a list tells all that came before it, and which transactions it was. What must not be found: aborted and
dirty reads, writes that were answered and are lost, writes that are there twice, reads that disagree on the order, and
transactions of which a reader sees half although nothing before the other half is open.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

End = Literal["committed", "aborted", "unknown", "open"]


@dataclass(slots=True)
class Write:
    """A transaction of a client."""

    name: str
    keys: Sequence[str]
    began: float
    ended: float | None = None  # when its answer had come
    end: End = "open"
    asked: float | None = None  # when its end was asked for


@dataclass(frozen=True, slots=True)
class Read:
    """One key's list, as a reader had it."""

    key: str
    began: float
    ended: float
    elements: Sequence[str]


@dataclass(slots=True)
class History:
    """What clients did and saw, by one clock."""

    writes: dict[str, Write] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)


def wrong_in(history: History, last: Mapping[str, Sequence[str]]) -> list[str]:
    """Sentences; `last` are the lists once all transactions are through."""
    return [
        *_of_each_read(history, last),
        *_at_the_end(history, last),
        *_moving_back(history),
        *_cyclic(history, last),
    ]


def _of_each_read(history: History, last: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for read in history.reads:
        if list(read.elements) != list(last[read.key][: len(read.elements)]):
            yield f"{read.key}: read as {read.elements}, which does not begin {last[read.key]}"
        for name in read.elements:
            write = history.writes.get(name)
            if write is None or read.key not in write.keys:
                yield f"{read.key}: {name} was never written there"
            elif write.end == "aborted":
                yield f"{read.key}: aborted read of {name}"
            elif write.asked is None or write.asked > read.ended:
                yield f"{read.key}: dirty read of {name}, whose commit was not asked for yet"


def _at_the_end(history: History, last: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for key, elements in last.items():
        for name in sorted({one for one in elements if list(elements).count(one) > 1}):
            yield f"{key}: {name} is there twice"
    for write in history.writes.values():
        seen = [key for key in write.keys if write.name in last[key]]
        if write.end == "committed" and len(seen) < len(write.keys):
            yield f"{write.name} was committed, and is lost of {sorted(set(write.keys) - set(seen))}"
        if write.end == "aborted" and seen:
            yield f"{write.name} was aborted, and is seen in {seen}"
        if write.end == "unknown" and 0 < len(seen) < len(write.keys):
            yield f"{write.name} is torn: seen in {seen} of {write.keys}"


def _moving_back(history: History) -> Iterator[str]:
    """A read that began after another one had ended sees no less."""
    for key in {read.key for read in history.reads}:
        longest = 0
        ends: list[tuple[float, int]] = sorted(
            (read.ended, len(read.elements)) for read in history.reads if read.key == key
        )
        at = 0
        for read in sorted((one for one in history.reads if one.key == key), key=lambda one: one.began):
            while at < len(ends) and ends[at][0] <= read.began:
                longest = max(longest, ends[at][1])
                at += 1
            if len(read.elements) < longest:
                yield f"{key}: {len(read.elements)} elements are read after {longest} were"


def _cyclic(history: History, last: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Half of a transaction: it is seen at one key, and later not at another, where nothing open stood before it.

    What stands before it in that other list was decided when its own transaction was, or had been: if all of these
    had been answered before the read began, nothing can have been in the way.
    """
    seen: dict[str, float] = {}
    for read in history.reads:
        for name in read.elements:
            seen[name] = min(seen.get(name, read.ended), read.ended)
    for write in history.writes.values():
        at = seen.get(write.name)
        if at is None:
            continue
        for read in history.reads:
            if read.key in write.keys and read.began >= at and write.name not in read.elements:
                open_then = [
                    one.name
                    for one in history.writes.values()
                    if read.key in one.keys and one.began < read.ended and (one.ended is None or one.ended > read.began)
                ]
                if not open_then:
                    yield f"{write.name} is torn: it was seen before, and not in {read.key} though nothing was open"
