"""A worker that was killed takes spans with it: the trace is one tree all the same, and says what is missing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.telemetry.span_reader import SpanReader
from infra.telemetry.span_tree import (
    SpanNode,
    build_span_trees,
    count_errors,
    describe_missing_or_merged_children,
    group_equal_siblings,
)
from tests.infra.telemetry.span_lines import TRACE, call, span, write

_RUN: dict[str, Any] = {"temporalWorkflowID": "w/1", "temporalRunID": "r1"}


def tree(folder: Path, *spans: dict[str, Any]) -> list[SpanNode]:
    write(folder / "one.jsonl", *spans)
    return build_span_trees(SpanReader(folder).read_trace(TRACE))


def shape(nodes: Sequence[SpanNode]) -> dict[str, object]:
    """Names below names."""
    return {node.span.name: shape(node.children) for node in nodes}


def attempt(number: int, *, at_ms: float, parent: str = "s", error: str | None = None) -> dict[str, Any]:
    """One attempt at the activity that `parent` starts."""
    name, facts = "RunActivity:x", {"sexton.attempt": number, **_RUN}
    return span(f"t{number}", name, parent=parent, at_ms=at_ms, error=error, **facts)


def test_an_attempt_without_a_span_is_shown_as_lost_for_the_time_it_may_have_taken(tmp_path: Path) -> None:
    """Its worker was killed: the second attempt says that there was a first."""
    start = span("s", "StartActivity:x", at_ms=0, took_ms=1, **_RUN)
    (root,) = tree(tmp_path, start, attempt(2, at_ms=50), attempt(5, at_ms=90, error="SlowDown"))
    told = [(one.span.error, one.span.is_lost, one.duration_ns // 1_000_000) for one in root.children]
    lost = "no span: its worker was killed, or lost it"
    assert told == [
        (f"attempt 1: {lost}", True, 50),
        (None, False, 1),
        (f"attempts 3 to 4: {lost}", True, 39),
        ("SlowDown", False, 1),
    ]
    assert count_errors([root]) == 3


def test_attempts_that_follow_each_other_have_nothing_lost_between_them(tmp_path: Path) -> None:
    """Nor has what is no attempt."""
    (root,) = tree(
        tmp_path,
        span("s", "StartActivity:x", **_RUN),
        attempt(1, at_ms=1, error="SlowDown"),
        attempt(2, at_ms=5),
        call("c", "S3.PutObject", parent="s", at_ms=6),
    )
    assert [one.span.is_lost for one in root.walk()] == [False] * 4


def test_a_start_that_was_lost_stands_below_the_run_that_its_attempts_name(tmp_path: Path) -> None:
    """And not beside the tree, nor below another run of the same workflow."""
    (root,) = tree(
        tmp_path,
        span("a", "command", took_ms=90),
        span("r0", "RunWorkflow:w", parent="a", at_ms=1, temporalWorkflowID="w/1", temporalRunID="r0"),
        span("r", "RunWorkflow:w", parent="r0", at_ms=2, took_ms=80, **_RUN),
        attempt(1, at_ms=5, parent="gone"),
    )
    earlier, run = root.children
    assert shape([earlier]) == {"RunWorkflow:w": {}}
    assert shape([run]) == {"RunWorkflow:w": {"StartActivity:x: its span is lost": {"RunActivity:x": {}}}}


def test_a_start_that_was_lost_stands_below_a_run_that_is_not_written_yet(tmp_path: Path) -> None:
    """The run's own stand-in is known by its other steps, also where it went on in a new run."""
    (root,) = tree(
        tmp_path,
        span("b", "StartActivity:y", parent="run", **_RUN),
        span("n", "RunWorkflow:w", parent="run", at_ms=9, temporalWorkflowID="w/1", temporalRunID="r2"),
        attempt(1, at_ms=5, parent="gone"),
    )
    assert root.span.name == "w/1: not ended yet, or its span is lost"
    assert list(shape(root.children)) == ["StartActivity:y", "StartActivity:x: its span is lost", "RunWorkflow:w"]


def test_a_child_whose_start_was_lost_stands_below_the_first_span_of_its_trace(tmp_path: Path) -> None:
    """The one that is certainly above it."""
    child = span("c", "RunWorkflow:child", parent="gone", at_ms=5, temporalWorkflowID="w/1/c", temporalRunID="r9")
    (root,) = tree(tmp_path, span("a", "command", took_ms=90), child)
    assert shape([root]) == {"command": {"start of w/1/c: its span is lost": {"RunWorkflow:child": {}}}}


def test_each_attempt_has_a_line_of_its_own_but_for_the_midst_of_very_many(tmp_path: Path) -> None:
    """Twenty equal errors are no one error: when each came is what an operator looks for."""
    tries = [attempt(number, at_ms=number * 10, error="SlowDown") for number in range(1, 101)]
    (root,) = tree(tmp_path, span("s", "StartActivity:x", **_RUN), *tries)
    shown = group_equal_siblings(root).children
    assert [one.span.count for one in shown] == [1, 1, 1, 1, 84, *[1] * 12]
    few = group_equal_siblings(tree(tmp_path, span("s", "StartActivity:x", **_RUN), *tries[:16])[0]).children
    assert [one.span.attributes["sexton.attempt"] for one in few] == list(range(1, 17))


def test_an_activity_without_any_attempt_says_so_beside_its_start(tmp_path: Path) -> None:
    """Its worker was killed before anybody tried again, or nobody has taken it up: no line is an error for it."""
    (root,) = tree(tmp_path, span("a", "command"), span("s", "StartActivity:x", parent="a", **_RUN))
    assert describe_missing_or_merged_children(root.children[0]).startswith("no attempt has a span")
    assert count_errors([root]) == 0
    (root,) = tree(tmp_path, span("s", "StartActivity:x", **_RUN), attempt(1, at_ms=1))
    assert [describe_missing_or_merged_children(one) for one in root.walk()] == ["", ""]
