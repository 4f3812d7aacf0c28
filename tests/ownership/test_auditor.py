"""The auditor finds what it is there to find."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.ownership.fence_story import StoryRow
from tests.ownership.story_auditor import find_story_violations


def _raised(fence: int, worker_id: str) -> StoryRow:
    return StoryRow(bundle=1, fence=fence, worker_id=worker_id, attempt=None)


def _wrote(fence: int, worker_id: str, attempt: str) -> StoryRow:
    return StoryRow(bundle=1, fence=fence, worker_id=worker_id, attempt=attempt)


def _said(attempt: str, outcome: str, error: str = "") -> dict[str, Any]:
    return {"attempt": attempt, "outcome": outcome, "error": error}


_REFUSED = "bundle 1: expected fence 1 of worker a, found fence 2 of worker b; look the owner up again"
_GOOD = [_raised(1, "a"), _wrote(1, "a", "a.1/0"), _raised(2, "b"), _wrote(2, "b", "b.2/0")]
_SAID = [_said("a.1/0", "accepted"), _said("a.1/1", "refused", _REFUSED), _said("b.2/0", "accepted")]


def test_auditor_is_content_with_one_owner_after_the_other() -> None:
    """The promise kept."""
    assert find_story_violations(_GOOD, _SAID) == []


@pytest.mark.parametrize(
    ("story", "said", "word"),
    [
        ([*_GOOD, _wrote(1, "a", "a.1/2")], [*_SAID, _said("a.1/2", "accepted")], "was accepted under fence 1"),
        ([*_GOOD, _wrote(2, "a", "a.1/2")], [*_SAID, _said("a.1/2", "accepted")], "was accepted under fence 2"),
        ([*_GOOD, _wrote(2, "b", "b.9/0")], [*_SAID, _said("b.9/0", "accepted")], "wrote under the same fence 2"),
        ([*_GOOD, _raised(2, "a")], _SAID, "raised to 2, expected 3"),
        ([*_GOOD, _raised(4, "a")], _SAID, "raised to 4, expected 3"),
        ([_wrote(1, "a", "a.1/0"), *_GOOD[2:]], _SAID, "after None"),
        (_GOOD, [*_SAID[:1], _said("b.2/0", "refused", _REFUSED)], "refused, and left 1 rows"),
        (_GOOD[:3], _SAID, "accepted, and left 0 rows"),
        (_GOOD, [_SAID[0], _said("a.1/1", "refused", "no"), _SAID[2]], "refused without a clear word"),
        ([*_GOOD, _wrote(2, "b", "b.2/7"), _wrote(2, "b", "b.2/8")], _SAID, "2 rows of which it said nothing"),
    ],
)
def test_auditor_finds_what_breaks_the_promise(
    story: Sequence[StoryRow], said: list[dict[str, Any]], word: str
) -> None:
    """Each of its rules, broken once."""
    assert word in "\n".join(find_story_violations(story, said))
