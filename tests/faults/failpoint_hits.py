"""Every effect that the source names, found by reading it, and what a run of the main job hits of them."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from logstore import failpoints

ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDERS = ("logstore", "activities", "workflows", "infra", "spark", "workers")
_NAMING_FUNCTIONS = {"effect", "in_write_transaction"}
_NEVER_REACHED_HIT: Final = 1_000_000  # a hit that never comes

MOMENTS_AND_ACTIONS: Final = (
    ("before", "crash"),
    ("after", "crash"),
    ("before", "fail"),
    ("reported_failed", "fail"),
)
"""Killed before, killed after, refused, and done but reported as failed."""


@cache
def find_effect_names() -> dict[str, str]:
    """Every name given to `effect(…)`, or to the catalog's `in_write_transaction(…)`, and where."""
    source_line_by_effect: dict[str, str] = {}
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if not any(
                f"{name}(" in source for name in _NAMING_FUNCTIONS
            ):  # to parse all takes every process of a run two seconds
                continue
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", None) in _NAMING_FUNCTIONS and node.args:
                    (name,) = node.args
                    assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: an effect's name is a literal"
                    source_line_by_effect[str(name.value)] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return source_line_by_effect


def hits(run: Callable[[], object]) -> dict[str, int]:
    """How often each point is hit while `run` runs undisturbed."""
    for effect in find_effect_names():
        for moment in ("before", "after", "reported_failed"):
            failpoints.arm(f"{effect}.{moment}", "fail", nth=_NEVER_REACHED_HIT)
    run()
    hits_by_failpoint = {name: armed.hits for name, armed in failpoints._armed_by_point.items() if armed.hits}
    assert failpoints.disarm_all_and_take_hits() == hits_by_failpoint.keys(), (
        "a point was hit whose name is not in the source"
    )
    return hits_by_failpoint


@dataclass(frozen=True, slots=True, order=True)
class Interruption:
    """One point, what happens there, and at which hit."""

    point: str
    action: str
    nth: int

    def arm(self) -> None:
        """Let it happen."""
        failpoints.arm(self.point, self.action, nth=self.nth)

    @property
    def happened(self) -> bool:
        """Whether it did, since it was armed."""
        armed = failpoints._armed_by_point.get(self.point)
        return armed is not None and armed.hits >= self.nth

    def __str__(self) -> str:
        return f"{self.point}={self.action}@{self.nth}"


def spread_interruptions(
    hits_by_failpoint: dict[str, int], effect: str, moment: str, action: str, *, max_count: int
) -> list[Interruption]:
    """At the first and the last hit of a point, and evenly between, at most so many."""
    point = f"{effect}.{moment}"
    count = hits_by_failpoint.get(point, 0)
    step = max(1, -(-(count - 1) // max(1, max_count - 1)))
    hit_numbers = sorted({*range(1, count + 1, step), count} - {0})
    return [Interruption(point, action, nth) for nth in hit_numbers]
