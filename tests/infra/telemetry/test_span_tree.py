"""Span files are read as one tree, whatever their processes have left of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.telemetry import span_reader, span_tree
from infra.telemetry.span_reader import SpanReader, SpanRow
from infra.telemetry.span_tree import SpanNode, build_span_trees, count_errors, group_equal_siblings, tree_to_json
from tests.infra.telemetry.span_lines import OTHER, TRACE, call, span, write


def shape(nodes: Sequence[SpanNode]) -> dict[str, object]:
    """Names below names."""
    return {node.span.name: shape(node.children) for node in nodes}


def tree(traces: Path) -> list[SpanNode]:
    return build_span_trees(SpanReader(traces).read_trace(TRACE))


def test_a_trace_is_joined_over_all_files_and_processes(tmp_path: Path) -> None:
    """Rolled files and other services' alike; other traces, torn lines and other files are passed over."""
    write(tmp_path / "sexton-1.jsonl", span("a", "command", took_ms=9, service="sexton"), span("x", "no", trace=OTHER))
    write(tmp_path / "sexton-worker-2.17.jsonl", span("b", "RunWorkflow:w", parent="a", at_ms=2), tail='{"trace_id":')
    write(tmp_path / "sexton-worker-2.jsonl", call("c", "S3.PutObject", parent="b", at_ms=3), tail=f'["{TRACE}"]\n')
    (tmp_path / "notes.txt").write_text(TRACE)
    assert shape(tree(tmp_path)) == {"command": {"RunWorkflow:w": {"S3.PutObject": {}}}}


def test_a_span_that_was_written_twice_is_there_once(tmp_path: Path) -> None:
    """A workflow task that is replayed may end a span again (pydantic/pydantic-ai#6974); the later end counts."""
    twice = [span("b", "RunWorkflow:w", parent="a", took_ms=took) for took in (2, 5)]
    write(tmp_path / "one.jsonl", span("a", "command"), *twice)
    (root,) = tree(tmp_path)
    (child,) = root.children
    assert child.duration_ns == 5_000_000


def test_spans_of_a_workflow_that_still_runs_hang_on_a_stand_in_that_says_so(tmp_path: Path) -> None:
    """A workflow's span is written at its end; what it has called so far is shown all the same."""
    at_work: dict[str, Any] = {"parent": "gone", "temporalWorkflowID": "trim-topic/7"}
    first, second = span("a", "StartActivity:x", **at_work), span("b", "StartActivity:y", at_ms=4, **at_work)
    write(tmp_path / "one.jsonl", first, second)
    (root,) = tree(tmp_path)
    assert root.span.name == "trim-topic/7: not ended yet, or its span is lost"
    assert shape(root.children) == {"StartActivity:x": {}, "StartActivity:y": {}}
    assert root.duration_ns == 5_000_000


def test_a_run_that_goes_on_in_a_new_one_stands_beside_it(tmp_path: Path) -> None:
    """A batch of a thousand runs is no stair of a thousand steps; another workflow's run stays below."""
    runs = [
        span(f"r{at}", "RunWorkflow:w", parent=f"r{at - 1}" if at else "a", at_ms=at, temporalWorkflowID="w/1")
        for at in range(1_000)
    ]
    child = span("c", "RunWorkflow:w", parent="r999", at_ms=2_000, temporalWorkflowID="w/2")
    write(tmp_path / "one.jsonl", span("a", "command"), *runs, child)
    (root,) = tree(tmp_path)
    assert len(root.children) == 1_000
    assert shape(root.children[-1].children) == {"RunWorkflow:w": {}}


def test_a_workflow_of_very_many_runs_is_joined_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without end goes on in a new run for weeks: each run is looked at once, however many there are."""
    runs = [
        span(f"r{at}", "RunWorkflow:w", parent=f"r{at - 1}" if at else None, at_ms=at, temporalWorkflowID="w/1")
        for at in range(100)
    ]
    write(tmp_path / "one.jsonl", *runs)
    looks, goes_on = [0], span_tree._is_next_run

    def counted(earlier: SpanRow, later: SpanRow) -> bool:
        looks[0] += 1
        return goes_on(earlier, later)

    monkeypatch.setattr(span_tree, "_is_next_run", counted)
    assert len(build_span_trees(SpanReader(tmp_path).read_trace(TRACE))) == 100
    assert looks[0] < 2 * 100


def test_spans_that_go_round_or_too_deep_are_all_there(tmp_path: Path) -> None:
    """A damaged file costs order, and no span; no depth is too deep to be walked and printed."""
    deep = [span(f"d{at}", f"d{at}", parent=f"d{at - 1}" if at else None, at_ms=at) for at in range(3_000)]
    write(tmp_path / "one.jsonl", *deep, span("x", "x", parent="y"), span("y", "y", parent="x"))
    roots = tree(tmp_path)
    names = [node.span.name for root in roots for node in root.walk()]
    assert sorted(names) == sorted([*(f"d{at}" for at in range(3_000)), "x", "y"])
    assert tree_to_json(roots[0], 0)["children"]


def test_equal_siblings_are_one_line_with_how_many_and_how_long(tmp_path: Path) -> None:
    """Four hundred calls: their count, their sum, the longest. One that failed has a line of its own."""
    calls = [call(f"c{at}", "S3.PutObject", parent="a", at_ms=at, took_ms=1 + (at == 7)) for at in range(400)]
    failed = call("f", "S3.PutObject", parent="a", at_ms=500, error="SlowDown")
    write(tmp_path / "one.jsonl", span("a", "command"), *calls, failed)
    (whole,) = tree(tmp_path)
    assert len(whole.children) == 401
    assert count_errors([whole]) == 1
    many, alone = group_equal_siblings(whole).children
    assert (many.span.count, many.span.total_ns, many.span.longest_ns) == (400, 401_000_000, 2_000_000)
    assert (alone.span.count, alone.span.error) == (1, "SlowDown")
    told = tree_to_json(group_equal_siblings(whole), whole.span.start_ns)["children"][0]
    assert (told["count"], told["total_ms"], told["longest_ms"], told["offset_ms"]) == (400, 401.0, 2.0, 0.0)


def test_equal_steps_are_one_line_with_the_longest_or_one_that_failed_below(tmp_path: Path) -> None:
    """Of a thousand chunks an operator wants the slowest; where some failed, one of those."""
    steps = [span(f"s{at}", "RunActivity:x", parent="a", at_ms=at, took_ms=1 + (at == 3)) for at in range(20)]
    calls = [call(f"c{at}", f"S3.{at}", parent=f"s{at}", at_ms=at) for at in range(20)]
    write(tmp_path / "one.jsonl", span("a", "command"), *steps, *calls)
    (one,) = group_equal_siblings(tree(tmp_path)[0]).children
    assert (one.span.count, one.has_example_children, shape(one.children)) == (20, True, {"S3.3": {}})
    calls[9]["status"] = {"code": "error", "description": "SlowDown"}
    write(tmp_path / "one.jsonl", span("a", "command"), *steps, *calls)
    (one,) = group_equal_siblings(tree(tmp_path)[0]).children
    assert shape(one.children) == {"S3.9": {}}


def test_of_a_huge_trace_calls_beyond_the_most_are_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the calls of a trace, and their count is still right."""
    monkeypatch.setattr(span_reader, "MAX_SPANS_PER_TRACE", 10)
    calls = [call(f"c{at}", "S3.PutObject", parent="a", at_ms=at) for at in range(100)]
    steps = [span(f"s{at}", "step", parent="a", at_ms=at) for at in range(3)]
    write(tmp_path / "one.jsonl", span("a", "command"), *calls, *steps)
    rows = SpanReader(tmp_path).read_trace(TRACE)
    assert len(rows.spans) == 11
    assert rows.dropped_spans == 3
    assert sum(one.count for one in rows.spans.values()) == 101


@pytest.mark.parametrize("field", ["name", "start_ns", "span_id", "trace_id"])
def test_a_line_that_lacks_a_field_of_a_span_is_passed_over_and_counted(tmp_path: Path, field: str) -> None:
    """One damaged line does not hide the rest of a trace, nor the traces of a workflow."""
    whole, damaged = (span(one, "RunWorkflow:w", temporalWorkflowID="w/1") for one in "ab")
    damaged["sexton.note"] = TRACE  # the line names the trace whatever it lacks
    del damaged[field]
    write(tmp_path / "one.jsonl", damaged, whole)
    rows = SpanReader(tmp_path).read_trace(TRACE)
    assert (list(rows.spans), rows.unreadable_lines) == (["a"], 1)
    assert [one.trace_id for one in SpanReader(tmp_path).find_workflow_traces("w/1")] == [TRACE]


@pytest.mark.parametrize(
    "damage",
    [
        {"start_ns": 10**30},
        {"start_ns": -1},
        {"end_ns": 2**63},
        {"status": {"code": "error", "description": {"a": 1}}},
        {"attributes": {"temporalWorkflowID": ["w/1"]}},
        {"attributes": {"temporalWorkflowID": "w/1", "temporalRunID": {}}},
    ],
)
def test_a_line_whose_values_no_span_has_is_passed_over_and_counted(tmp_path: Path, damage: dict[str, Any]) -> None:
    """Times that no calendar has, texts that are none: the rest of the trace is there."""
    whole = span("a", "RunWorkflow:w", temporalWorkflowID="w/1")
    write(tmp_path / "one.jsonl", span("b", "RunWorkflow:w", temporalWorkflowID="w/1") | damage, whole)
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write(f'["{TRACE}",' + "[" * 100_000)
    rows = SpanReader(tmp_path).read_trace(TRACE)
    assert (list(rows.spans), rows.unreadable_lines) == (["a"], 2)
    assert [one.trace_id for one in SpanReader(tmp_path).find_workflow_traces("w/1")] == [TRACE]


def test_a_span_during_which_the_clock_was_set_back_took_no_time(tmp_path: Path) -> None:
    """A negative length would make bars and sums of nonsense."""
    write(tmp_path / "one.jsonl", span("a", "sexton topic trim", took_ms=-60_000))
    (found,) = SpanReader(tmp_path).read_trace(TRACE).spans.values()
    assert (found.end_ns - found.start_ns, found.total_ns, found.longest_ns) == (0, 0, 0)


def test_a_workflow_is_found_by_its_own_newest_run(tmp_path: Path) -> None:
    """Not by a later question that somebody asked it, nor by a name that only begins like it."""
    write(
        tmp_path / "one.jsonl",
        span("a", "RunWorkflow:w", trace="1" * 32, at_ms=1, temporalWorkflowID="w/1", temporalRunID="r1"),
        span("b", "RunActivity:x", trace="2" * 32, at_ms=5, temporalWorkflowID="w/1", temporalRunID="r2"),
        span("c", "QueryWorkflow:progress", trace="3" * 32, at_ms=9, temporalWorkflowID="w/1"),
        span("d", "RunWorkflow:w", trace="4" * 32, at_ms=9, temporalWorkflowID="w/11"),
        span("e", "SignalWithStartWorkflow:w", trace="5" * 32, at_ms=7, temporalWorkflowID="w/1"),
    )
    found = SpanReader(tmp_path).find_workflow_traces("w/1")
    assert [one.trace_id[0] for one in found] == ["2", "1", "5", "3"]
    assert found[0].run_id == "r2"
    assert SpanReader(tmp_path / "none").find_workflow_traces("w/1") == []
