"""Span files as processes leave them, written by a test."""

import json
from pathlib import Path
from typing import Any

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "0af7651916cd43dd8448eb211c80319c"


def span(
    span_id: str,
    name: str,
    *,
    parent: str | None = None,
    trace: str = TRACE,
    at_ms: float = 0,
    took_ms: float = 1,
    error: str | None = None,
    service: str = "sexton-worker",
    **attributes: Any,
) -> dict[str, Any]:
    """One span; times count from 2025-06-15."""
    start = 1_750_000_000_000_000_000 + round(at_ms * 1e6)
    return {
        "trace_id": trace,
        "span_id": span_id,
        "parent_id": parent,
        "name": name,
        "kind": "internal",
        "start_ns": start,
        "end_ns": start + round(took_ms * 1e6),
        "status": {"code": "unset" if error is None else "error", "description": error},
        "attributes": {key.replace("__", "."): value for key, value in attributes.items()},
        "events": [],
        "resource": {"service.name": service},
    }


def call(span_id: str, name: str, **facts: Any) -> dict[str, Any]:
    """A request to a server."""
    return span(span_id, name, rpc__system="aws-api", **facts)


def write(path: Path, *spans: dict[str, Any], tail: str = "") -> None:
    """A file of spans, with what a crash has cut short at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in spans) + tail)
