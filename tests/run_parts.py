"""Parts of a run, so that a long run can be done in pieces, also on several machines."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar
from zlib import crc32

import pytest

Case = TypeVar("Case")


@dataclass(frozen=True, slots=True)
class RunPart:
    """One of several disjoint parts, counted from 1, which together are the whole run."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the part that `3/8` names.

        Raises:
            ValueError: The text names no part.
        """
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise ValueError(f'--part: expected a part such as 3/8, found "{text}"')
        return cls(int(number), int(count))

    def includes(self, name: str) -> bool:
        """Say whether the part has the case of this name, which is the same in every process."""
        return crc32(name.encode()) % self.count == self.number - 1

    def select(self, test: str, cases: Iterable[Case]) -> list[Case]:
        """Return the cases of a test that belong to the part. Each case needs a text of its own."""
        return [case for case in cases if self.includes(f"{test} {case}")]


def split_tests(items: Sequence[pytest.Item], part: RunPart) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of the part, and the others.

    A test that asks for the fixture `run_part` divides its own cases, so it belongs to every part.
    """
    selected = [item for item in items if "run_part" in getattr(item, "fixturenames", ()) or part.includes(item.nodeid)]
    chosen = {item.nodeid for item in selected}
    return selected, [item for item in items if item.nodeid not in chosen]
