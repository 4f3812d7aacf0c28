"""`owners list` and `owners unload`: which worker does the background work of which topics."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.errors import InvalidInput, PreconditionFailed
from logstore.names import TopicName
from logstore.ownership import BundleId, bundle_name, bundle_of, parse_bundle
from logstore.ports.catalog import Cause
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode
from workers.cli.options import DryRun, Reason, known_worker
from workers.cli.output import Answer, note
from workers.cli.progress import watching
from workers.pages.texts import select_fields

if TYPE_CHECKING:
    from infra.coordination.directory import OwnershipDirectory
    from workers.operations.owners import BundleRow, OwnedBundle


owners = group("owners", "Which worker does the background work of which topics.")

OfWorker = Annotated[
    str | None,
    typer.Option("--worker", metavar="ID", callback=known_worker, help="Only this worker and its bundles."),
]
Unowned = Annotated[bool, typer.Option("--unowned", help="Only bundles that no worker owns.")]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only the bundle that the topic is in.")]


@command(owners, "list", "", "--topic TOPIC", "--unowned --json")
def list_(
    context: CommandContext, *, worker: OfWorker = None, unowned: Unowned = False, topic: OfTopic = None
) -> Answer:
    """List bundles of topics with owner and fence, then workers with a live session and their load.

    The fence counts how often a bundle was acquired, by the worker in fenced_by last; what an earlier owner writes
    under its lease is refused. Session state: ALIVE, UNLISTED (the owner is starting or ending), GONE (its node is
    about to vanish). Looking changes nothing.

    Load is work in hand as each worker told last: 0 is idle, at 1 nothing more fits. A worker without room takes no
    bundle, because its catalog is away. With the setting ownership=single there are no sessions, and the worker that
    acquired a bundle last owns it.
    """
    from workers.operations.owners import read_ownership  # noqa: PLC0415 - start-up time

    if worker is not None and unowned:
        raise InvalidInput("unowned", expected="one of --unowned and --worker", found="both")
    wanted = None
    if topic is not None:
        context.topic(topic)  # a name with a slip of the pen is in some bundle, too
        wanted = bundle_of(TopicName.known(topic), bundles=context.catalog.fences.bundles())
    with directory_of(context) as directory:
        found = read_ownership(context.catalog.fences, directory)
    rows = [row for row in found.bundles if _asked_for(row, wanted, worker, unowned=unowned)]
    if worker is not None and worker not in {one.worker_id for one in found.workers} and not rows:
        note(f"no worker {worker}: it has no live session, and owns no bundle")
    live = [row for row in found.workers if worker in {None, row.worker_id}]
    workers = [select_fields(row, "worker_id load room bundles") | {"session": hex_of(row.session)} for row in live]
    bundles = [_bundle_row(row) for row in rows]
    single = ""
    if context.settings.ownership == "single":
        single = "; ownership=single: as the fences say, because nothing tells whether a worker lives"
    return Answer(
        document={"ownership": context.settings.ownership, "bundles": bundles, "workers": workers},
        shown=_bundles_shown(rows),
        wide=bundles,
        empty="no bundles" if worker is None else f"no bundles of a worker {worker}",
        more=(
            Answer(
                document=[_worker_shown(row) for row in workers],
                empty=f"no {'workers' if worker is None else f'worker {worker}'} with a live session",
            ),
            Answer(document={}, text=f"{found}{single}\n"),
        ),
    )


def _asked_for(row: "BundleRow", wanted: BundleId | None, worker: str | None, *, unowned: bool) -> bool:
    return (
        wanted in {None, row.bundle}
        and not (unowned and row.owner)
        and (worker is None or (row.owner is not None and row.owner.worker_id == worker))
    )


def _bundle_row(row: "BundleRow") -> dict[str, object]:
    held = row.owner
    return {
        "bundle": row.name,
        "number": int(row.bundle),
        "owner": held.worker_id if held else None,
        "fence": row.fence,
        "fenced_by": row.fenced_by,
        "session": hex_of(held.session) if held else None,
        "session_state": held.state.value if held and held.state else None,
    }


def _bundles_shown(rows: "Sequence[BundleRow]") -> list[dict[str, object]]:
    """For people: no wider than need be, and with a word only on what is not as it should be."""
    remarks = [_remark(row) for row in rows]
    return [
        {
            "no": int(row.bundle),
            "bundle": row.name,
            "owner": row.owner.worker_id if row.owner else None,
            "fence": row.fence,
            **({"remark": remark} if any(remarks) else {}),
        }
        for row, remark in zip(rows, remarks, strict=True)
    ]


def _remark(row: "BundleRow") -> str:
    held = row.owner
    if held is None:
        return ""
    session = f"session {held.state.value.lower()}" if held.state and held.state != "ALIVE" else ""
    fence = f"last acquired by {row.fenced_by or 'nobody'}" if row.fenced_by != held.worker_id else ""
    return ", ".join(filter(None, (session, fence)))


def _worker_shown(row: Mapping[str, object]) -> dict[str, object]:
    """For people: a load that says that nothing more is taken, in words."""
    shown = {**row, "load": row["load"] if row["room"] in {True, None} else "takes none"}
    del shown["room"]
    return shown


def hex_of(session: int | None) -> str | None:
    """A session's id as ZooKeeper's own tools write it."""
    return None if session is None else f"{session:#x}"


@contextmanager
def directory_of(context: CommandContext) -> "Iterator[OwnershipDirectory | None]":
    """The nodes in ZooKeeper; None where a setting says that there is none."""
    if context.settings.ownership == "single":
        yield None
        return
    catalog = context.catalog
    bundles, catalog_id = catalog.fences.bundles(), catalog.identities.catalog_id()
    with context.services.open_directory(context.settings, bundles, catalog_id) as directory:
        yield directory


_TAKEN_WITHIN_S: Final = (
    60.0  # a worker that lost a bundle leaves it to others for 10 s, and takes it again if there are none
)

Bundle = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="Its hash range or its number, as `owners list` shows both.")
]
WaitForOwner = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until it has an owner again, for at most a minute.")
]


@command(owners, "unload", "0x00000000_0x04000000 --dry-run", '0 --reason "let another worker have it"')
def unload(
    context: CommandContext, bundle: Bundle, *, reason: Reason = "", dry_run: DryRun = False, wait: WaitForOwner = True
) -> Answer:
    """Take a bundle away from its owner, which lets go and leaves it to others for a while.

    Work in hand of its topics ends or is refused, and goes on at the next owner: another worker, or the same one if it
    is alone, some ten seconds later. Nothing is deleted but the owner's node, and only while it is of the session that
    was read. Exit code 3 if no worker owns it, 5 if no worker took it within a minute.
    """
    wanted = _parsed(bundle, context.catalog.fences.bundles())
    with directory_of(context) as directory:
        if directory is None:
            raise PreconditionFailed("ownership: expected zookeeper, found single: no other worker can take a bundle")
        return _unloaded(context, directory, wanted, reason=reason, dry_run=dry_run, wait=wait)


def _unloaded(
    context: CommandContext,
    directory: "OwnershipDirectory",
    bundle: BundleId,
    *,
    reason: str,
    dry_run: bool,
    wait: bool,
) -> Answer:
    from workers.operations.owners import BundleUnloader  # noqa: PLC0415 - start-up time

    catalog = context.catalog
    unloading = BundleUnloader(catalog.fences, catalog.audit_log, directory)
    owned = unloading.find_owner(bundle)
    if dry_run:
        return Answer(document={"dry_run": True, **_owned_row(owned)})
    unloading.unload(owned, Cause(actor=context.actor, reason=reason, workflow_id=""))
    if not wait:
        return Answer(document=_owned_row(owned))
    with watching(f"waiting for an owner of {owned.name}"):
        last = unloading.wait_until_acquired(owned, within_s=_TAKEN_WITHIN_S)
    taken = {"taken_by": last.worker_id if last else None, "taken_fence": last.counter if last else None}
    if last is None:
        note(f"it is unloaded, and no worker took it within {_TAKEN_WITHIN_S:.0f} s; see `sexton owners list`")
    return Answer(document=_owned_row(owned) | taken, code=ExitCode.DONE if last else ExitCode.PARTIAL)


def _owned_row(owned: "OwnedBundle") -> dict[str, object]:
    return {
        "bundle": owned.name,
        "number": int(owned.bundle),
        "owner": owned.worker_id,
        "fence": owned.fence,
        "session": hex_of(owned.session),
    }


def _parsed(text: str, bundles: int) -> BundleId:
    """A bundle by hash range or number."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        number = BundleId(int(text))
        bundle_name(number, bundles=bundles)  # refuses what is none
        return number
    return parse_bundle(text, bundles=bundles)
