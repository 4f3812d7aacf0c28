"""`worker run` and `worker deploy`."""

import asyncio
from typing import Annotated

import typer

from logstore.errors import Unsupported
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.options import known_queues, known_worker
from workers.cli.output import Answer

worker = group("worker", "Worker processes.")

Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="NAME", callback=known_queues, help="A task queue; may be repeated."),
]
_ID_HELP = "The worker's name in Temporal, its identity as an owner and its queue sexton-owner-ID; unique."
WorkerId = Annotated[str | None, typer.Option("--worker-id", metavar="ID", callback=known_worker, help=_ID_HELP)]
BuildId = Annotated[str, typer.Option("--build-id", metavar="ID", help="The build to make current.")]


@command(worker, "run", examples=["sexton worker run", "sexton worker run --queue sexton --worker-id w1"])
def run(context: CommandContext, *, queue: Queues = None, worker_id: WorkerId = None) -> Answer:
    """Serve task queues in the foreground until SIGTERM, which drains: work in hand ends, none is taken."""
    context.settings.required("temporal_address")
    queues = list(dict.fromkeys(queue or [context.settings.task_queue]))
    asyncio.run(context.services.run_worker(context.settings, queues, worker_id))
    return Answer(document={"worker_id": worker_id, "queues": queues, "state": "drained"})


@command(worker, "deploy", examples=["sexton worker deploy --build-id 2026-11-20"])
def deploy(context: CommandContext, *, build_id: BuildId) -> Answer:
    """Make a build current in Worker Versioning."""
    del context
    raise Unsupported(f"worker deploy --build-id {build_id}: worker versions come with a later release")
