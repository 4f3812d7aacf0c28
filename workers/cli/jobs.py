"""Waiting for the workflow that a command started, or not."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workers.cli.output import note
from workers.cli.progress import watching

if TYPE_CHECKING:
    from workers.client import Sexton


def started(client: "Sexton", handle: Any) -> dict[str, object]:  # noqa: ANN401 - Temporal's handle, of any result
    """What is said of a workflow at once: its id and the run that was started or joined; its page on stderr."""
    run_id = _show_page(client, handle)
    return {"workflow_id": handle.id, "run_id": run_id}


def _show_page(client: "Sexton", handle: Any) -> str | None:  # noqa: ANN401
    """Tell people where the run is in the Web UI, if one is known; the run's id."""
    run_id: str | None = handle.first_execution_run_id or handle.result_run_id or handle.run_id
    page = client.page_of(handle.id, run_id)
    if page:
        note(f"watch it: {page}")
    return run_id


async def finished(client: "Sexton", handle: Any, doing: str) -> Any:  # noqa: ANN401
    """The workflow's result; stderr tells of the wait, why it takes long and, at Ctrl-C, that the job goes on."""
    import asyncio  # noqa: PLC0415 - start-up time

    _show_page(client, handle)
    try:
        with watching(f"{doing} ({handle.id})"):
            return await client.result_of(handle, note)
    except asyncio.CancelledError:
        note(f"no longer waiting; the workflow {handle.id} goes on")
        raise


def counted(outcomes: Mapping[str, int]) -> dict[str, int]:
    """Outcomes as plain text and numbers, ascending by name."""
    return {str(name): int(count) for name, count in sorted(outcomes.items())}
