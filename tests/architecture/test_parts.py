"""The parts of a divided run are disjoint and together the whole."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.run_parts import RunPart, split_tests


def _tests(*names: str, fixtures: tuple[str, ...] = ()) -> list[Any]:
    return [SimpleNamespace(nodeid=name, fixturenames=fixtures) for name in names]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 500])
def test_each_case_is_in_exactly_one_part(count: int) -> None:
    cases = [f"case {number}" for number in range(300)]
    parts = [RunPart(number, count).select("a test", cases) for number in range(1, count + 1)]
    assert sorted(case for part in parts for case in part) == sorted(cases)


def test_cases_and_tests_are_about_evenly_divided() -> None:
    sizes = [len(RunPart(number, 4).select("a test", range(1_000))) for number in range(1, 5)]
    assert min(sizes) > 150, sizes


def test_each_test_is_in_exactly_one_part_unless_it_divides_its_own_cases() -> None:
    whole, dividing = _tests(*(f"test {number}" for number in range(50))), _tests("divides", fixtures=("run_part",))
    divided = [split_tests([*whole, *dividing], RunPart(number, 3)) for number in (1, 2, 3)]
    assert all(selected[-1] is dividing[0] for selected, _ in divided)
    names = [item.nodeid for selected, _ in divided for item in cast("list[Any]", selected[:-1])]
    assert sorted(names) == sorted(item.nodeid for item in whole)
    assert all(len(selected) + len(others) == 51 for selected, others in divided)


def test_without_a_part_all_is_run() -> None:
    items = _tests("a", "b", "c")
    assert split_tests(items, RunPart()) == (items, [])


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "3/", "-1/8", "3/8/2", "a/b"])
def test_text_that_names_no_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--part: expected a part such as 3/8"):
        RunPart.parse(text)


def test_part_is_read() -> None:
    assert RunPart.parse("3/8") == RunPart(3, 8)
