"""Stand-ins for spans that no file has: of what still runs, and of a process that was killed before it wrote them.

A worker writes spans a second after they ended, and a run's span only when the run ends. What was below a lost span
says where it stood: activities and children of a run carry the run's ids, and an attempt carries its number.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from infra.telemetry.span_reader import ATTEMPT, SpanRow

WORKFLOW_ID: Final = "temporalWorkflowID"
RUN: Final = "RunWorkflow:"
START: Final = "StartActivity:"
_RUN_ID: Final = "temporalRunID"
_ATTEMPT_SPAN: Final = "RunActivity:"
_NOT_ENDED: Final = "not ended yet, or its span is lost"
_LOST: Final = "its span is lost"
_KILLED: Final = "no span: its worker was killed, or lost it"


def stand_in(spans: dict[str, SpanRow]) -> None:
    """Add what is missing: parents that others name, and attempts between those that are known.

    A lost parent stands below the run that its children name; otherwise below the trace's first span, where there is
    one.
    """
    parents = _parents(spans)
    spans.update(parents)
    runs = {_run_of(span): span_id for span_id, span in spans.items() if span.name.startswith(RUN)}
    for lost in parents.values():
        if lost.attributes.get(_RUN_ID) and not lost.name.startswith(START):
            runs.setdefault(_run_of(lost), lost.span_id)
    firsts = [span_id for span_id, span in spans.items() if span.parent_id is None and not span.lost]
    (first,) = firsts if len(firsts) == 1 else (None,)
    for lost in parents.values():
        above = runs.get(_run_of(lost)) if lost.name.startswith(START) else None
        lost.parent_id = above or first
    spans.update((one.span_id, one) for one in list(_attempts(spans)))


def _parents(spans: Mapping[str, SpanRow]) -> dict[str, SpanRow]:
    orphans: dict[str, list[SpanRow]] = defaultdict(list)
    for span in spans.values():
        if span.parent_id is not None and span.parent_id not in spans:
            orphans[span.parent_id].append(span)
    return {span_id: _parent_of(span_id, children) for span_id, children in orphans.items()}


def _parent_of(span_id: str, children: Sequence[SpanRow]) -> SpanRow:
    names = {one.name for one in children}
    steps = [one for one in children if not one.name.startswith(RUN)] or children  # a next run has another run id
    shared = {key: values.pop() for key in (WORKFLOW_ID, _RUN_ID) if len(values := _values(steps, key)) == 1}
    of = str(shared.get(WORKFLOW_ID, "a span"))
    name, attributes = f"{of}: {_NOT_ENDED}", shared
    if len(names) == 1 and (only := names.pop()).startswith(_ATTEMPT_SPAN):
        name = f"{START}{only.removeprefix(_ATTEMPT_SPAN)}: {_LOST}"
    elif all(one.name.startswith(RUN) for one in children):
        name, attributes = f"start of {of}: {_LOST}", {}
    time_ns = min(one.start_ns for one in children), max(one.end_ns for one in children)
    return _lost(span_id, name, time_ns, children[0], attributes)


def _values(children: Sequence[SpanRow], key: str) -> set[Any]:
    return {one.attributes[key] for one in children if key in one.attributes}


def _run_of(span: SpanRow) -> tuple[Any, Any]:
    return span.attributes.get(WORKFLOW_ID), span.attributes.get(_RUN_ID)


def _attempts(spans: Mapping[str, SpanRow]) -> Iterator[SpanRow]:
    """For each gap in the numbers of an activity's attempts, one span over the time in which they were made."""
    made: dict[str, list[SpanRow]] = defaultdict(list)
    for span in spans.values():
        if span.parent_id is not None and span.name.startswith(_ATTEMPT_SPAN) and attempt_of(span):
            made[span.parent_id].append(span)
    for parent_id, attempts in made.items():
        number, since = 0, spans[parent_id].start_ns
        for span in sorted(attempts, key=attempt_of):
            first, last = number + 1, attempt_of(span) - 1
            if first <= last:
                which = f"attempt {first}" if first == last else f"attempts {first:,} to {last:,}"
                end = max(since, span.start_ns)
                one = _lost(f"{parent_id}-{first}", span.name, (min(since, end), end), span, {})
                one.parent_id, one.error = parent_id, f"{which}: {_KILLED}"
                yield one
            number, since = attempt_of(span), span.end_ns


def attempt_of(span: SpanRow) -> int:
    """The number of the attempt that it is the span of, from 1; 0 where it is none."""
    found = span.attributes.get(ATTEMPT)
    return found if isinstance(found, int) else 0


def _lost(span_id: str, name: str, time_ns: tuple[int, int], like: SpanRow, attributes: Mapping[str, Any]) -> SpanRow:
    """A span of the service of `like`, from one time to another."""
    start, end = time_ns
    return SpanRow(
        span_id=span_id,
        parent_id=None,
        name=name,
        service=like.service,
        start_ns=start,
        end_ns=end,
        attributes=attributes,
        lost=True,
        total_ns=end - start,
        most_ns=end - start,
    )
