"""Report of the demo of a real cluster, as lines for people."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from workers.demo.promise_report import PromiseResult

_COLUMNS: Final = 100
_STATE_COLUMNS: Final = 8  # of `kept` and `BROKEN`


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageExample:
    """One ledger that a step of the damage left, as Sexton explains it."""

    step: str
    ledger_id: int
    component: str  # "": its metadata name no part of Pulsar
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDemoReport:
    promises_by_part: Mapping[str, Sequence[PromiseResult]]
    examples: Sequence[DamageExample]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(promise.ok for promise in self._promises)

    @property
    def _promises(self) -> list[PromiseResult]:
        return [promise for promises in self.promises_by_part.values() for promise in promises]

    def format_text(self) -> str:
        """Return the promises of each part with what was seen, then an example of what each step of the damage left."""
        lines = []
        for part, promises in self.promises_by_part.items():
            lines += ["", part, *(line for promise in promises for line in _format_promise(promise))]
        lines += ["", "What the damage left: one ledger of each step, as Sexton explains it"]
        lines += [line for example in self.examples for line in _format_example(example)]
        kept = sum(promise.ok for promise in self._promises)
        lines += ["", f"{kept} of {len(self._promises)} promises kept, in {self.seconds:.0f} s"]
        return "\n".join(lines)


def _format_promise(promise: PromiseResult) -> list[str]:
    state = "kept" if promise.ok else "BROKEN"
    return [f"  {state:{_STATE_COLUMNS}}{promise.promise}", *_wrap(promise.seen, 2 + _STATE_COLUMNS)]


def _format_example(example: DamageExample) -> list[str]:
    component = f" ({example.component})" if example.component else ""
    return [f"  {example.step}", *_wrap(f"ledger {example.ledger_id}{component}: {example.reason}", 4)]


def _wrap(text: str, indentation: int) -> list[str]:
    """Return lines that begin with spaces. A path stays whole, also if it is longer than a line."""
    margin = " " * indentation
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
