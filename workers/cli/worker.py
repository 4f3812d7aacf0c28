"""Group `worker`: worker processes, and the builds that get new work."""

from typing import Annotated

import typer

from workers.cli.answer_output import Answer
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.shared_options import check_worker_id_option, make_setting_type_check
from workers.human_readable_values import format_time_to_microsecond, select_fields

worker = create_command_group("worker", "Worker processes, and the builds of them.")

_check_queue = make_setting_type_check("validate_word")
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="NAME", callback=_check_queue, help="A task queue; may be repeated."),
]
_ID_HELP = "The worker's name in Temporal, its identity as an owner and its queue sexton-owner-ID; unique."
WorkerId = Annotated[
    str | None, typer.Option("--worker-id", metavar="ID", callback=check_worker_id_option, help=_ID_HELP)
]


@command(worker, "run", "", "sexton worker run --queue sexton --worker-id w1")
def run_worker(context: CommandContext, *, queue: Queues = None, worker_id: WorkerId = None) -> Answer:
    """Serve task queues in the foreground. After SIGTERM, finish running work, take no new work, and exit."""
    context.settings.require_address("temporal_address")
    queues = list(dict.fromkeys(queue or [context.settings.task_queue]))
    import asyncio  # noqa: PLC0415 - start-up time

    asyncio.run(context.services.run_worker(context.settings, queues, worker_id))
    return Answer(document={"worker_id": worker_id, "queues": queues, "state": "drained"})


BuildId = Annotated[str, typer.Option("--build-id", metavar="ID", help="The build; `sexton worker builds` lists them.")]
_RAMP_HELP = "Only this share of new runs begins on the build; 0 ends its ramp."
_WITHOUT_HELP = "Do it though no worker of the build polls: what it is given waits until one does."
WithoutWorkers = Annotated[bool, typer.Option("--without-workers", help=_WITHOUT_HELP)]
Ramp = Annotated[float | None, typer.Option("--ramp", metavar="PERCENT", min=0, max=100, help=_RAMP_HELP)]


@command(worker, "deploy", "--build-id 0.2.0-1f2e3d4c5b6a --ramp 10", "--build-id 0.2.0-1f2e3d4c5b6a")
def deploy_build(
    context: CommandContext, *, build_id: BuildId, ramp: Ramp = None, without_workers: WithoutWorkers = False
) -> Answer:
    """Make a build current in Worker Versioning, or start a share of new runs on it.

    A build that becomes current ends every ramp. To roll back, deploy the earlier build. A pinned run ends on the build
    on which it began, so the workers of this build must run until it is DRAINED. Unpinned runs move to the current
    build at their next step. Workers take part if the setting deployment_name is set. A build is refused if no worker
    polls one of its task queues now. You may repeat the command.
    """
    from infra.stack.stack_home import StackHome, find_crashed_worker_ids  # noqa: PLC0415 - start-up time
    from workers.client.temporal_connection import run_with_client  # noqa: PLC0415
    from workers.operations import worker_builds  # noqa: PLC0415

    settings = context.settings
    name = worker_builds.require_deployment_name(settings)
    crashed = find_crashed_worker_ids(StackHome.at(settings.home))
    deployment = run_with_client(
        settings,
        lambda client: worker_builds.deploy_build(
            client, name, build_id, ramp=ramp, without_workers=without_workers, dead_identities=crashed
        ),
    )
    document = {"deployment": deployment.name, **select_fields(deployment, "current ramping ramp_percent")}
    return Answer(document=document, text=f"{deployment}\n")


@command(worker, "builds", "", "--json")
def list_builds(context: CommandContext) -> Answer:
    """List the builds of the deployment, newest first, and the build of this installation.

    Status: CURRENT and RAMPING get new runs. DRAINING has unfinished pinned runs, so its workers must continue. DRAINED
    has no pinned runs any more. INACTIVE has had workers, but no run yet. The command changes nothing.
    """
    from workers.build_identity import own_build  # noqa: PLC0415
    from workers.client.temporal_connection import run_with_client  # noqa: PLC0415 - start-up time
    from workers.operations.worker_builds import read_worker_deployment, require_deployment_name  # noqa: PLC0415

    name = require_deployment_name(context.settings)
    own = own_build(context.settings)
    own_id = own.build_id if own else None
    deployment = run_with_client(context.settings, lambda client: read_worker_deployment(client, name))
    rows = [
        select_fields(build, "build_id status ramp_percent") | {"created": format_time_to_microsecond(build.created_us)}
        for build in deployment.builds
    ]
    shares = select_fields(deployment, "current ramping ramp_percent")
    return Answer(
        document={"deployment": deployment.name, "own": own_id, **shares, "builds": rows},
        display=rows,
        empty=f"no worker has served as a build of {name}",
        sections=(Answer(document={}, text=f"{deployment}; this installation is {own_id}\n"),),
    )
