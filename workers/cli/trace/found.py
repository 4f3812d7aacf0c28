"""A trace that was found, and what is said of it as a whole."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.cli.texts import shown_us

if TYPE_CHECKING:
    from infra.telemetry.span_reader import WorkflowTrace
    from infra.telemetry.span_tree import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrace:
    """A trace, and how it was come by."""

    trace_id: str
    workflow_id: str | None
    roots: "list[Node]"
    left_out: int
    unreadable: int
    related: "list[WorkflowTrace]"

    @property
    def start_ns(self) -> int:
        """When its first span began."""
        return min(root.span.start_ns for root in self.roots)

    @property
    def end_ns(self) -> int:
        """When its last span ended."""
        return max(node.span.end_ns for root in self.roots for node in root.walk())

    def facts(self) -> dict[str, object]:
        """What is said of it as a whole."""
        from infra.telemetry.span_tree import errors  # noqa: PLC0415 - start-up time

        nodes = [node.span for root in self.roots for node in root.walk()]
        return {
            "trace_id": self.trace_id,
            "workflow_id": self.workflow_id,
            "started": shown_us(self.start_ns // 1_000),
            "duration_ms": round((self.end_ns - self.start_ns) / 1e6, 3),
            "spans": sum(span.count for span in nodes) + self.left_out,
            "errors": errors(self.roots),
            "left_out": self.left_out,
            "unreadable": self.unreadable,
            "services": sorted({span.service for span in nodes}),
            "related": [
                {
                    "trace_id": one.trace_id,
                    "run_id": one.run_id,
                    "span": one.name,
                    "at": shown_us(one.start_ns // 1_000),
                }
                for one in self.related
            ],
        }
