"""Group `owners`: the bundle owners, which do the background work of topics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.ownership import BundleId, bundle_name, bundle_of_topic, parse_bundle_name
from logstore.ports.catalog.deletion import AuditCause
from logstore.validated_names import TopicName
from workers.cli.answer_output import Answer, print_note
from workers.cli.command_context import CommandContext
from workers.cli.command_registration import command, create_command_group
from workers.cli.exit_codes import ExitCode
from workers.cli.progress_bar import show_progress_bar
from workers.cli.shared_options import DryRun, Reason, check_worker_id_option

if TYPE_CHECKING:
    from infra.coordination.ownership_nodes import OwnershipNodes
    from workers.operations.bundle_owners import BundleSummary, OwnedBundle


owners = create_command_group("owners", "Which worker does the background work of which topics.")

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
        {name: value for name, value in row.items() if name != "room"}
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
        sections=(
            Answer(document=workers_display, empty=no_worker),
            Answer(document={}, text=f"{ownership}{suffix}\n"),
        ),
    )


def _make_bundle_row(bundle: "BundleSummary") -> dict[str, Any]:
    owner = bundle.owner
    return {
        "bundle": bundle.name,
        "number": int(bundle.bundle),
        "owner": owner.worker_id if owner else None,
        "fence": bundle.fence,
        "fenced_by": bundle.fenced_by,
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
        {"no": row["number"], "bundle": row["bundle"], "owner": row["owner"], "fence": row["fence"]}
        | ({"remark": remark} if any(remarks) else {})
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
    bundle_id = _parse_bundle(bundle, catalog.fences.count_bundles())
    with _open_ownership_directory(context) as directory:
        if directory is None:
            raise PreconditionFailed("ownership: expected zookeeper, found single: no other worker can take a bundle")
        unloader = BundleUnloader(catalog.fences, catalog.audit_log, directory)
        owned = unloader.find_owner(bundle_id)
        document = _make_owned_document(owned)
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


def _make_owned_document(owned: "OwnedBundle") -> dict[str, object]:
    return {
        "bundle": owned.name,
        "number": int(owned.bundle),
        "owner": owned.node.worker_id,
        "fence": owned.fence,
        "session": _format_session(owned.node.session),
    }


def _parse_bundle(text: str, bundles: int) -> BundleId:
    if text.isascii() and text.isdigit() and len(text) < 10:
        number = BundleId(int(text))
        bundle_name(number, bundle_count=bundles)  # refuses a number without a bundle
        return number
    return parse_bundle_name(text, bundle_count=bundles)
