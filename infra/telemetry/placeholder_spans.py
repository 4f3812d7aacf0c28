"""Placeholders for spans that are in no file: spans of unfinished work, and spans of a process that was killed.

The children of a missing span show the place of its placeholder, because they name workflow run and attempt.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from infra.telemetry.span_reader import ATTEMPT_ATTRIBUTE, SpanRow

WORKFLOW_ID_ATTRIBUTE: Final = "temporalWorkflowID"
RUN_WORKFLOW_PREFIX: Final = "RunWorkflow:"
START_ACTIVITY_PREFIX: Final = "StartActivity:"
_RUN_ID_ATTRIBUTE: Final = "temporalRunID"
_RUN_ACTIVITY_PREFIX: Final = "RunActivity:"
_RUNNING_OR_LOST_TEXT: Final = "not ended yet, or its span is lost"
_LOST_TEXT: Final = "its span is lost"
_KILLED_TEXT: Final = "no span: its worker was killed, or lost it"


def add_placeholder_spans(spans: dict[str, SpanRow]) -> None:
    """Add placeholders to `spans` for missing parents, and for missing attempts between known attempts.

    The placeholder of an activity becomes a child of the workflow run that its children name. Any other placeholder
    becomes a child of the trace's root, if there is only one root.
    """
    lost_parents = _build_placeholder_parents(spans)
    spans.update(lost_parents)
    run_span_ids = {
        _run_key(span): span_id for span_id, span in spans.items() if span.name.startswith(RUN_WORKFLOW_PREFIX)
    }
    for lost in lost_parents.values():
        if lost.attributes.get(_RUN_ID_ATTRIBUTE) and not lost.name.startswith(START_ACTIVITY_PREFIX):
            run_span_ids.setdefault(_run_key(lost), lost.span_id)
    root_ids = [span_id for span_id, span in spans.items() if span.parent_id is None and not span.is_lost]
    (root_id,) = root_ids if len(root_ids) == 1 else (None,)
    for lost in lost_parents.values():
        run_id = run_span_ids.get(_run_key(lost)) if lost.name.startswith(START_ACTIVITY_PREFIX) else None
        lost.parent_id = run_id or root_id
    spans.update((attempt.span_id, attempt) for attempt in list(_build_attempt_gap_placeholders(spans)))


def _build_placeholder_parents(spans: Mapping[str, SpanRow]) -> dict[str, SpanRow]:
    orphans: dict[str, list[SpanRow]] = defaultdict(list)
    for span in spans.values():
        if span.parent_id is not None and span.parent_id not in spans:
            orphans[span.parent_id].append(span)
    return {span_id: _build_placeholder_parent(span_id, children) for span_id, children in orphans.items()}


def _build_placeholder_parent(span_id: str, children: Sequence[SpanRow]) -> SpanRow:
    names = {child.name for child in children}
    # The workflow's next run may be a child, too. It has another of Temporal's run ids.
    steps = [child for child in children if not child.name.startswith(RUN_WORKFLOW_PREFIX)] or children
    shared_ids = {
        key: values.pop()
        for key in (WORKFLOW_ID_ATTRIBUTE, _RUN_ID_ATTRIBUTE)
        if len(values := {step.attributes[key] for step in steps if key in step.attributes}) == 1
    }
    subject = str(shared_ids.get(WORKFLOW_ID_ATTRIBUTE, "a span"))
    name, attributes = f"{subject}: {_RUNNING_OR_LOST_TEXT}", shared_ids
    if len(names) == 1 and (shared_name := names.pop()).startswith(_RUN_ACTIVITY_PREFIX):
        name = f"{START_ACTIVITY_PREFIX}{shared_name.removeprefix(_RUN_ACTIVITY_PREFIX)}: {_LOST_TEXT}"
    elif all(child.name.startswith(RUN_WORKFLOW_PREFIX) for child in children):
        name, attributes = f"start of {subject}: {_LOST_TEXT}", {}
    time_ns = min(child.start_ns for child in children), max(child.end_ns for child in children)
    return _build_placeholder_span(span_id, name, time_ns, children[0], attributes)


def _run_key(span: SpanRow) -> tuple[Any, Any]:
    return span.attributes.get(WORKFLOW_ID_ATTRIBUTE), span.attributes.get(_RUN_ID_ATTRIBUTE)


def _build_attempt_gap_placeholders(spans: Mapping[str, SpanRow]) -> Iterator[SpanRow]:
    """Yield one placeholder for each gap in an activity's attempt numbers, with start and end of the gap."""
    attempts_by_parent: dict[str, list[SpanRow]] = defaultdict(list)
    for span in spans.values():
        if span.parent_id is not None and span.name.startswith(_RUN_ACTIVITY_PREFIX) and attempt_number(span):
            attempts_by_parent[span.parent_id].append(span)
    for parent_id, attempts in attempts_by_parent.items():
        previous_number, previous_end_ns = 0, spans[parent_id].start_ns
        for span in sorted(attempts, key=attempt_number):
            first, last = previous_number + 1, attempt_number(span) - 1
            if first <= last:
                label = f"attempt {first}" if first == last else f"attempts {first:,} to {last:,}"
                end_ns = max(previous_end_ns, span.start_ns)
                time_ns = min(previous_end_ns, end_ns), end_ns
                lost = _build_placeholder_span(f"{parent_id}-{first}", span.name, time_ns, span, {})
                lost.parent_id, lost.error = parent_id, f"{label}: {_KILLED_TEXT}"
                yield lost
            previous_number, previous_end_ns = attempt_number(span), span.end_ns


def attempt_number(span: SpanRow) -> int:
    """Return the attempt number of an activity's span, from 1. Return 0 for any other span."""
    number = span.attributes.get(ATTEMPT_ATTRIBUTE)
    return number if isinstance(number, int) else 0


def _build_placeholder_span(
    span_id: str, name: str, time_ns: tuple[int, int], like: SpanRow, attributes: Mapping[str, Any]
) -> SpanRow:
    start, end = time_ns
    return SpanRow(
        span_id=span_id,
        parent_id=None,
        name=name,
        service=like.service,
        start_ns=start,
        end_ns=end,
        attributes=attributes,
        is_lost=True,
        total_ns=end - start,
        longest_ns=end - start,
    )
