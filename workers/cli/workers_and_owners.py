"""Groups `worker` and `owners`: worker processes, their builds, and the bundles that workers own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.ownership import BundleId, bundle_name, bundle_of_topic, parse_bundle_name
from logstore.ports.catalog.deletion import AuditCause
from logstore.validated_names import TopicName
from workers.cli.command_context import CommandContext
from workers.cli.command_errors import ExitCode
from workers.cli.command_registration import command, create_command_group
from workers.cli.output import Answer, print_note, show_progress_bar
from workers.cli.shared_options import DryRun, Reason, check_worker_id_option, make_setting_type_check
from workers.human_readable_values import select_fields

if TYPE_CHECKING:
    from infra.coordination.ownership_nodes import OwnershipNodes
    from workers.operations.bundle_owners import BundleSummary


worker = create_command_group("worker")

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
    document = select_fields(deployment, "deployment=name current ramping ramp_percent")
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
    rows = [select_fields(build, "build_id status ramp_percent created=created_us") for build in deployment.builds]
    shares = select_fields(deployment, "current ramping ramp_percent")
    return Answer(
        document={"deployment": deployment.name, "own": own_id, **shares, "builds": rows},
        display=rows,
        empty=f"no worker has served as a build of {name}",
        footer=f"{deployment}; this installation is {own_id}\n",
    )


owners = create_command_group("owners")

OfWorker = Annotated[
    str | None,
    typer.Option("--worker", metavar="ID", callback=check_worker_id_option, help="Only this worker and its bundles."),
]
Unowned = Annotated[bool, typer.Option("--unowned", help="Only bundles that no worker owns.")]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only the bundle that the topic is in.")]


@command(owners, "list", "", "--topic TOPIC", "--unowned --json")
def list_bundle_owners_and_workers(
    context: CommandContext, *, worker: OfWorker = None, unowned: Unowned = False, topic: OfTopic = None
) -> Answer:
    """List bundles of topics with owner and fence, then workers with a live session and their load.

    The fence counts how often a bundle was acquired. `fenced_by` names the worker that acquired the bundle last. Writes
    with an earlier owner's lease are refused. Session state: ALIVE, UNLISTED (the owner is starting or ending), GONE
    (the owner's session has ended). The command changes nothing.

    A worker publishes its load: 0 is idle, 1 is full. A worker that cannot reach the catalog acquires no bundle. With
    the setting ownership=single there are no sessions, and the last worker that acquired a bundle counts as its owner.
    """
    from workers.operations.bundle_owners import read_ownership_overview  # noqa: PLC0415 - start-up time

    if worker is not None and unowned:
        raise InvalidInput("unowned", expected="one of --unowned and --worker", found="both")
    topic_bundle = None
    if topic is not None:
        context.get_topic(topic)  # refuses a topic that does not exist, because every name hashes to a bundle
        topic_bundle = bundle_of_topic(
            TopicName.parse_existing(topic), bundle_count=context.catalog.fences.count_bundles()
        )
    with _open_ownership_directory(context) as directory:
        ownership = read_ownership_overview(context.catalog.fences, directory)
    bundles = [
        bundle
        for bundle in ownership.bundles
        if topic_bundle in {None, bundle.bundle}
        and not (unowned and bundle.owner)
        and (worker is None or (bundle.owner is not None and bundle.owner.worker_id == worker))
    ]
    if worker is not None and worker not in {row.worker_id for row in ownership.workers} and not bundles:
        print_note(f"no worker {worker}: it has no live session, and owns no bundle")
    workers = [
        {
            "worker_id": row.worker_id,
            "load": row.live.load.load if row.live else None,
            "room": row.live.load.room if row.live else None,
            "bundles": row.bundles,
            "session": _format_session(row.live.session if row.live else None),
        }
        for row in ownership.workers
        if worker in {None, row.worker_id}
    ]
    workers_display = [
        select_fields(row, "worker_id load bundles session")
        | {"load": row["load"] if row["room"] in {True, None} else "takes none"}
        for row in workers
    ]
    suffix = ""
    if context.settings.ownership == "single":
        suffix = "; ownership=single: as the fences say, because nothing tells whether a worker lives"
    no_worker = f"no {'workers' if worker is None else f'worker {worker}'} with a live session"
    rows = [_make_bundle_row(bundle) for bundle in bundles]
    return Answer(
        document={"ownership": context.settings.ownership, "bundles": rows, "workers": workers},
        display=_make_bundle_rows_with_remarks(rows),
        wide_display=rows,
        empty="no bundles" if worker is None else f"no bundles of a worker {worker}",
        sections=[Answer(document=workers_display, empty=no_worker)],
        footer=f"{ownership}{suffix}\n",
    )


def _make_bundle_row(bundle: "BundleSummary") -> dict[str, Any]:
    owner = bundle.owner
    return {
        **select_fields(bundle, "bundle=name number=bundle"),
        "owner": owner.worker_id if owner else None,
        **select_fields(bundle, "fence fenced_by"),
        "session": _format_session(owner.session) if owner else None,
        "session_state": owner.state.value if owner and owner.state else None,
    }


def _make_bundle_rows_with_remarks(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    remarks = []
    for row in rows:
        is_session_abnormal = row["session_state"] not in {None, "ALIVE"}
        session = f"session {row['session_state'].lower()}" if is_session_abnormal else ""
        fence = f"last acquired by {row['fenced_by'] or 'nobody'}" if row["fenced_by"] != row["owner"] else ""
        remarks.append(", ".join(filter(None, (session, fence))) if row["owner"] is not None else "")
    return [
        select_fields(row, "no=number bundle owner fence") | ({"remark": remark} if any(remarks) else {})
        for row, remark in zip(rows, remarks, strict=True)
    ]


def _format_session(session: int | None) -> str | None:
    return None if session is None else f"{session:#x}"


@contextmanager
def _open_ownership_directory(context: CommandContext) -> "Iterator[OwnershipNodes | None]":
    if context.settings.ownership == "single":
        yield None
        return
    catalog = context.catalog
    bundles, catalog_id = catalog.fences.count_bundles(), catalog.identities.catalog_id()
    with context.services.open_directory(context.settings, bundles, catalog_id) as directory:
        yield directory


# A worker that lost a bundle leaves it to other workers for 10 s. Then it takes a free bundle again.
_ACQUISITION_TIMEOUT_S: Final = 60.0

Bundle = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="Its hash range or its number, as `owners list` shows both.")
]
WaitForOwner = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until it has an owner again, for at most a minute.")
]


@command(owners, "unload", "0x00000000_0x04000000 --dry-run", '0 --reason "let another worker have it"')
def unload_bundle(
    context: CommandContext, bundle: Bundle, *, reason: Reason = "", dry_run: DryRun = False, wait: WaitForOwner = True
) -> Answer:
    """Take a bundle away from its owner, so that another worker can acquire the bundle.

    Running work on the bundle's topics ends or is refused, and the next owner continues this work. If there is no other
    worker, the same worker acquires the bundle again after some ten seconds. Only the owner's node in ZooKeeper is
    deleted. Exit code 3: the bundle has no owner. Exit code 5: no worker acquired the bundle within a minute.
    """
    from workers.operations.bundle_owners import BundleUnloader  # noqa: PLC0415 - start-up time

    catalog = context.catalog
    bundle_count = catalog.fences.count_bundles()
    if bundle.isascii() and bundle.isdigit() and len(bundle) < 10:
        bundle_id = BundleId(int(bundle))
        bundle_name(bundle_id, bundle_count=bundle_count)  # refuses a number without a bundle
    else:
        bundle_id = parse_bundle_name(bundle, bundle_count=bundle_count)
    with _open_ownership_directory(context) as directory:
        if directory is None:
            raise PreconditionFailed("ownership: expected zookeeper, found single: no other worker can take a bundle")
        unloader = BundleUnloader(catalog.fences, catalog.audit_log, directory)
        owned = unloader.find_owner(bundle_id)
        document = {
            **select_fields(owned, "bundle=name number=bundle"),
            "owner": owned.node.worker_id,
            "fence": owned.fence,
            "session": _format_session(owned.node.session),
        }
        if dry_run:
            return Answer(document={"dry_run": True, **document})
        unloader.remove_owner(owned, AuditCause(actor=context.actor, reason=reason, workflow_id=""))
        if not wait:
            return Answer(document=document)
        with show_progress_bar(f"waiting for an owner of {owned.name}"):
            lease = unloader.wait_until_acquired(owned, within_s=_ACQUISITION_TIMEOUT_S)
    document |= {"taken_by": lease.worker_id if lease else None, "taken_fence": lease.fence if lease else None}
    if lease is None:
        print_note(
            f"it is unloaded, and no worker took it within {_ACQUISITION_TIMEOUT_S:.0f} s; see `sexton owners list`"
        )
    return Answer(document=document, code=ExitCode.DONE if lease else ExitCode.PARTIAL)
