"""A history of a concurrent run, and what no serial order of its transactions explains; in the manner of Elle.

Each transaction appends one element, its own name, to the lists of some keys; a key is a topic. Elements are unique, so
a read of a list tells all that came before it, and which transactions it was. What must not be found: aborted and
dirty reads, writes that were answered and are lost, writes that are there twice, reads that disagree on the order, and
transactions of which a reader sees half although nothing before the other half is open.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

TransactionEnd = Literal["committed", "aborted", "unknown", "open"]


@dataclass(slots=True)
class TransactionWrite:
    """A transaction of a client."""

    name: str
    keys: Sequence[str]
    began: float
    ended: float | None = None  # when its answer had come
    end: TransactionEnd = "open"
    asked: float | None = None  # when its end was asked for


@dataclass(frozen=True, slots=True)
class ListRead:
    """One key's list, as a reader had it."""

    key: str
    began: float
    ended: float
    elements: Sequence[str]


@dataclass(slots=True)
class ClientHistory:
    """What clients did and saw, by one clock."""

    writes: dict[str, TransactionWrite] = field(default_factory=dict)
    reads: list[ListRead] = field(default_factory=list)


def find_history_violations(history: ClientHistory, final_lists: Mapping[str, Sequence[str]]) -> list[str]:
    """Sentences; `final_lists` are the lists once all transactions are through."""
    return [
        *_find_wrong_reads(history, final_lists),
        *_find_wrong_final_lists(history, final_lists),
        *_find_reads_moving_back(history),
        *_find_torn_reads(history, final_lists),
    ]


def _find_wrong_reads(history: ClientHistory, final_lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for read in history.reads:
        if list(read.elements) != list(final_lists[read.key][: len(read.elements)]):
            yield f"{read.key}: read as {read.elements}, which does not begin {final_lists[read.key]}"
        for name in read.elements:
            write = history.writes.get(name)
            if write is None or read.key not in write.keys:
                yield f"{read.key}: {name} was never written there"
            elif write.end == "aborted":
                yield f"{read.key}: aborted read of {name}"
            elif write.asked is None or write.asked > read.ended:
                yield f"{read.key}: dirty read of {name}, whose commit was not asked for yet"


def _find_wrong_final_lists(history: ClientHistory, final_lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for key, elements in final_lists.items():
        for name in sorted({element for element in elements if list(elements).count(element) > 1}):
            yield f"{key}: {name} is there twice"
    for write in history.writes.values():
        keys_with_write = [key for key in write.keys if write.name in final_lists[key]]
        if write.end == "committed" and len(keys_with_write) < len(write.keys):
            yield f"{write.name} was committed, and is lost of {sorted(set(write.keys) - set(keys_with_write))}"
        if write.end == "aborted" and keys_with_write:
            yield f"{write.name} was aborted, and is seen in {keys_with_write}"
        if write.end == "unknown" and 0 < len(keys_with_write) < len(write.keys):
            yield f"{write.name} is torn: seen in {keys_with_write} of {write.keys}"


def _find_reads_moving_back(history: ClientHistory) -> Iterator[str]:
    """A read that began after another one had ended sees no less."""
    for key in {read.key for read in history.reads}:
        longest = 0
        ends: list[tuple[float, int]] = sorted(
            (read.ended, len(read.elements)) for read in history.reads if read.key == key
        )
        next_end = 0
        for read in sorted((one for one in history.reads if one.key == key), key=lambda one: one.began):
            while next_end < len(ends) and ends[next_end][0] <= read.began:
                longest = max(longest, ends[next_end][1])
                next_end += 1
            if len(read.elements) < longest:
                yield f"{key}: {len(read.elements)} elements are read after {longest} were"


def _find_torn_reads(history: ClientHistory, final_lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Half of a transaction: it is seen at one key, and later not at another, where nothing open stood before it.

    What stands before it in that other list was decided when its own transaction was, or had been: if all of these
    had been answered before the read began, nothing can have been in the way.
    """
    first_seen_by_write: dict[str, float] = {}
    for read in history.reads:
        for name in read.elements:
            first_seen_by_write[name] = min(first_seen_by_write.get(name, read.ended), read.ended)
    for write in history.writes.values():
        first_seen = first_seen_by_write.get(write.name)
        if first_seen is None:
            continue
        for read in history.reads:
            if read.key in write.keys and read.began >= first_seen and write.name not in read.elements:
                open_then = [
                    other_write.name
                    for other_write in history.writes.values()
                    if read.key in other_write.keys
                    and other_write.began < read.ended
                    and (other_write.ended is None or other_write.ended > read.began)
                ]
                if not open_then:
                    yield f"{write.name} is torn: it was seen before, and not in {read.key} though nothing was open"
