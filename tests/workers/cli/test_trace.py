"""`sexton trace`: the tree that an operator reads, and what is said where there is none."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.telemetry.span_reader import SpanRow, TraceRows
from infra.telemetry.span_tree import SpanNode, build_span_trees
from tests.infra.telemetry.span_lines import OTHER, TRACE, call, span, write
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from workers.cli.trace import LoadedTrace, render_trace_page

_W: dict[str, Any] = {"temporalWorkflowID": "trim-topic/7", "temporalRunID": "r1"}


@pytest.fixture
def traces(services: FakeCommandServices) -> Path:
    """A command that trims a topic, one chunk of which failed; and somebody who looked at it later."""
    folder = services.cwd / ".sexton" / "traces"
    calls = [call(f"c{at}", "S3.ListObjectsV2", parent="d", at_ms=30 + at, took_ms=2) for at in range(40)]
    write(
        folder / "sexton-1.jsonl",
        span("a", "sexton topic trim", took_ms=90, service="sexton", sexton__topic="t<1>", sexton__exit_code=1),
        span("q", "QueryWorkflow:progress", trace=OTHER, at_ms=900, service="sexton", **_W),
    )
    write(
        folder / "sexton-worker-2.jsonl",
        span("b", "RunWorkflow:trim-topic", parent="a", at_ms=10, took_ms=70, sexton__topic="t<1>", **_W),
        span("d", "RunActivity:deletion.delete_chunk", parent="b", at_ms=20, took_ms=50, sexton__outcome="DELETED 40"),
        *calls,
        call("f", "S3.DeleteObjects", parent="d", at_ms=75, took_ms=2, error="SlowDown: <try> again"),
    )
    return folder


@pytest.mark.usefixtures("traces")
def test_trace_of_a_workflow_draws_the_whole_tree(run: Run) -> None:
    """The command above it, what it was about, when, how long, and the error."""
    shown = run("trace", "trim-topic/7").stdout.splitlines()
    assert shown[0] == f"trace {TRACE}"
    assert shown[1] == "2025-06-15T15:06:40Z, 90 ms, 44 spans, 1 error"
    assert shown[2] == "sexton topic trim  90 ms +0 ms [sexton] topic=t<1> exit code=1"
    assert shown[3] == "└── RunWorkflow:trim-topic  70 ms +10 ms [sexton-worker] workflow=trim-topic/7"
    assert shown[4] == "    └── RunActivity:deletion.delete_chunk  50 ms +20 ms outcome=DELETED 40"
    assert shown[5] == "        ├── S3.ListObjectsV2 x 40  80 ms in all, longest 2 ms +30 ms"
    assert shown[6] == "        └── S3.DeleteObjects  2 ms +75 ms  error: SlowDown: <try> again"
    assert shown[8].split() == [OTHER, "QueryWorkflow:progress"]
    assert sum("ListObjectsV2" in line for line in run("trace", TRACE.upper(), "--wide").stdout.splitlines()) == 40


def test_trace_of_a_workflow_says_that_a_later_start_has_no_spans_of_its_run_yet(run: Run, traces: Path) -> None:
    """A worker writes its spans a moment later; until then an older run would be read as the one just made."""
    assert "was started later" not in run("trace", "trim-topic/7").stderr
    started = span(
        "s", "SignalWithStartWorkflow:trim-topic", trace="5" * 32, at_ms=2_000, temporalWorkflowID="trim-topic/7"
    )
    write(traces / "sexton-4.jsonl", started)
    shown = run("trace", "trim-topic/7")
    assert shown.stdout.startswith(f"trace {TRACE}")
    assert (
        f"trim-topic/7 was started later as well: its run's spans are written a second after it, in trace {'5' * 32}"
        in shown.stderr
    )


def test_trace_says_how_many_of_its_lines_cannot_be_read(run: Run, traces: Path) -> None:
    """In the tree, on the page and in the document; of a trace that is whole, nothing is said but 0."""
    told = "lines of the trace that cannot be read, and were passed over"
    assert told not in run("trace", TRACE).stdout
    assert document(run("trace", TRACE, "--json"))["unreadable"] == 0
    damaged = {name: value for name, value in span("z", "RunWorkflow:x").items() if name != "start_ns"}
    write(traces / "sexton-worker-3.jsonl", damaged, damaged)
    page = traces / "page.html"
    assert f"{told}: 2" in run("trace", TRACE, "--html", str(page)).stdout.splitlines()
    assert f"{told[1:]}: 2." in page.read_text(encoding="utf-8")
    assert document(run("trace", TRACE, "--json"))["unreadable"] == 2


def test_trace_into_a_pipe_cuts_no_line_and_says_each_thing_once(run: Run, services: FakeCommandServices) -> None:
    """An error at the end of a long line is what was looked for; a topic is told by the first span that knows it."""
    topic, why = "persistent://public/default/" + "orders" * 20, "StoreUnavailable: " + "so many words " * 15 + "end"
    below = span("c", "RunActivity:x", parent="b", at_ms=3, error=why, sexton__topic=topic)
    write(
        services.cwd / ".sexton" / "traces" / "sexton-1.jsonl",
        span("a", "sexton topic trim", took_ms=9, sexton__topic=topic),
        span("b", "StartActivity:x", parent="a", at_ms=2),
        below,
    )
    lines = run("trace", TRACE).stdout.splitlines()
    assert lines[4].strip() == f"└── RunActivity:x  1 ms +3 ms  error: {why}"
    assert sum(topic in line for line in lines) == 1


@pytest.mark.usefixtures("traces")
def test_trace_as_json_is_one_document_with_every_span(run: Run) -> None:
    """Nested, and nothing folded."""
    found = json.loads(run("trace", "trim-topic/7", "--json").stdout)
    assert (found["trace_id"], found["workflow_id"], found["spans"], found["errors"]) == (TRACE, "trim-topic/7", 44, 1)
    assert found["services"] == ["sexton", "sexton-worker"]
    assert [one["trace_id"] for one in found["related"]] == [OTHER]
    (command,) = found["tree"]
    assert (command["name"], command["attributes"]["sexton.exit_code"]) == ("sexton topic trim", 1)
    (activity,) = command["children"][0]["children"]
    assert len(activity["children"]) == 41
    assert activity["children"][-1]["error"] == "SlowDown: <try> again"
    assert document(run("trace", TRACE, "--json"))["workflow_id"] is None


@pytest.mark.usefixtures("traces")
def test_trace_as_a_page_needs_nothing_from_outside(run: Run, tmp_path: Path) -> None:
    """Every span with a bar at its time, whatever stands in it; no script and no address."""
    page = tmp_path / "trace.html"
    assert run("trace", "trim-topic/7", "--html", str(page)).exit_code == 0
    text = page.read_text()
    assert "S3.ListObjectsV2 x 40" in text
    assert "SlowDown: &lt;try&gt; again" in text
    assert "topic <b>t&lt;1&gt;</b>" in text
    assert text.count('<div class="row s3') == 42, "each of the forty, their line, and the one that failed"
    assert 'style="left:83.333%;width:2.222%"' in text, "the failed call began at 75 of 90 ms and took 2"
    assert not any(word in text for word in ("http:", "https:", "<script", "src=", "href=", "url(", "@import", "<try>"))
    assert 'Content-Security-Policy" content="default-src &#39;none&#39;;' in text


@pytest.mark.usefixtures("traces")
def test_trace_as_a_page_has_room_for_names_on_a_screen_of_400_pixels(run: Run, tmp_path: Path) -> None:
    """There a span's name has a line of its own above its times and its bar, whatever its depth."""
    page = tmp_path / "trace.html"
    assert run("trace", "trim-topic/7", "--html", str(page)).exit_code == 0
    narrow = page.read_text().partition("@media (max-width: 34rem) {")[2].partition("\n}")[0]
    columns = re.search("grid-template-columns: ([^;]*) minmax", narrow)
    indent = re.search(r"min\(var\(--d\), (\d+)\) \* (\.\d+)rem \+ 1rem", narrow)
    assert columns
    assert indent
    pixels, body = 16, 2 * 0.8
    assert (sum(float(column.removesuffix("rem")) for column in columns[1].split()) + body) * pixels < 400 / 2
    assert (int(indent[1]) * float(indent[2]) + 1 + body) * pixels < 400 / 3
    assert re.search(r"\.text { grid-column: 1 / -1;", narrow)


def test_trace_of_machines_whose_clocks_differ_begins_with_its_earliest_span(
    run: Run, services: FakeCommandServices
) -> None:
    """No offset is negative; and half a character, as a file's name may have, keeps no page from being written."""
    folder, page = services.cwd / ".sexton" / "traces", services.cwd / "page.html"
    late, early = span("a", "sexton topic trim", took_ms=100), span("b", "RunWorkflow:x\udc80", parent="a", at_ms=-50)
    write(folder / "sexton-1.jsonl", late, early)
    told = document(run("trace", TRACE, "--html", str(page), "--json"))
    assert (told["tree"][0]["offset_ms"], told["tree"][0]["children"][0]["offset_ms"]) == (50, 0)
    assert told["duration_ms"] == 150
    assert "left:-" not in page.read_text()
    assert "RunWorkflow:x&#56448;" in page.read_text()


def test_trace_of_five_thousand_spans_is_a_page_of_few_lines_that_open(run: Run, services: FakeCommandServices) -> None:
    """Equal calls are one closed line, with each of them below it; the way to the one that failed is open."""
    folder, page = services.cwd / ".sexton" / "traces", services.cwd / "page.html"
    calls = [call(f"c{at}", "S3.PutObject", parent="s7", at_ms=at / 10) for at in range(4_000)]
    steps = [span(f"s{at}", "RunActivity:x", parent="a", at_ms=at, took_ms=400) for at in range(1_000)]
    failed = call("f", "S3.DeleteObjects", parent="s500", at_ms=600, error="SlowDown")
    write(folder / "sexton-1.jsonl", span("a", "sexton topic trim", took_ms=2_000), *steps, *calls, failed)
    assert run("trace", TRACE, "--html", str(page)).exit_code == 0
    text = page.read_text()
    assert text.count('class="row ') == 1 + 1 + 4_000 // 4_000 + 1_000 + 1_000 + 1, "command, folds, and each of theirs"
    assert text.count("<details") == text.count("</details>")
    assert "3,000 spans are in no line of their own here" in text
    assert len(text) < 3_000_000
    (way,) = [part for part in text.split("<details")[1:] if "S3.DeleteObjects" in part]
    assert way.startswith(' class="way" open>')


@pytest.mark.usefixtures("traces")
def test_trace_as_a_page_that_cannot_be_written_is_bad_input(run: Run, tmp_path: Path) -> None:
    """The option is named."""
    told = document(run("trace", TRACE, "--html", str(tmp_path / "no" / "page.html"), "--json"), 2)
    assert told["error"]["field"] == "html"


@pytest.mark.parametrize("name", ["trim-topic/70", "0" * 32])
@pytest.mark.usefixtures("traces")
def test_trace_of_an_unknown_id_is_bad_input(run: Run, services: FakeCommandServices, name: str) -> None:
    """Field, expected, found; and where else spans may be, by its address."""
    told = document(run("trace", name, "--json"), 2)["error"]
    assert (told["type"], told["field"]) == ("UnknownObject", "id")
    assert str(services.cwd / ".sexton" / "traces") in told["message"]
    assert told["message"].endswith(f"found {name!r}")
    assert "collector" not in told["message"]
    services.sends_spans_to = "http://collector:4318"
    assert "http://collector:4318" in document(run("trace", name, "--json"), 2)["error"]["message"]


def test_page_looks_at_each_span_a_few_times_however_deep_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a chain of thousands every span is below all before it: to look below each would take minutes."""
    looks, many, walk = [0], 3_000, SpanNode.walk

    def counted(node: SpanNode) -> Iterator[SpanNode]:
        for one in walk(node):
            looks[0] += 1
            yield one

    rows = TraceRows(trace_id=TRACE)
    for at in range(many):
        parent = f"{at - 1:016x}" if at else None
        row = SpanRow(
            span_id=f"{at:016x}", parent_id=parent, name=f"step {at}", service="s", start_ns=at, end_ns=2 * many - at
        )
        rows.spans[row.span_id] = row if at < many - 1 else replace(row, error="the last one failed")
    found = LoadedTrace(
        trace_id=TRACE, workflow_id=None, roots=build_span_trees(rows), omitted_spans=0, unreadable_lines=0, related=[]
    )
    monkeypatch.setattr(SpanNode, "walk", counted)
    drawn = render_trace_page(found)
    assert looks[0] <= 20 * many
    assert drawn.count('<div class="row') == many
    assert drawn.count('<details class="way" open>') == 200, "the way to the error is open"
