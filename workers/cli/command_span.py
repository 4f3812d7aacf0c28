"""The span over one command."""

from typing import TYPE_CHECKING

from workers.hosting.facts import ERROR_TYPE, EXIT_CODE, Fact, sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span

    from workers.cli.errors import Failure


class CommandSpan:
    """A command in its trace: its facts and how it ended."""

    def __init__(self, span: "Span") -> None:
        """Speak of `span`, which its maker ends."""
        self._span = span

    @property
    def trace_id(self) -> str:
        """The trace's id, 32 lower-case hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def tell(self, code: int, facts: "Mapping[str, Fact]", failure: "Failure | None") -> None:
        """How the command ended, what it was about and, if it failed, why."""
        self._span.set_attributes({**facts, EXIT_CODE: code})
        if failure is not None:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - loaded already

            self._span.set_attribute(ERROR_TYPE, failure.type)
            self._span.set_status(StatusCode.ERROR, sentence(failure.type, failure.message))
