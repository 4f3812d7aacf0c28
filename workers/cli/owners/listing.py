"""`owners list`: who does the background work of which topics; and what its sister `owners unload` needs of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.errors import InvalidInput
from logstore.names import TopicName
from logstore.ownership import BundleId, bundle_of
from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.options import known_worker
from workers.cli.output import Answer, note

if TYPE_CHECKING:
    from infra.coordination.directory import Directory
    from workers.operations.owners import BundleRow, Overview, WorkerRow

owners = group("owners", "Which worker does the background work of which topics.")

OfWorker = Annotated[
    str | None,
    typer.Option("--worker", metavar="ID", callback=known_worker, help="Only this worker and its bundles."),
]
Unowned = Annotated[bool, typer.Option("--unowned", help="Only bundles that nobody owns.")]
OfTopic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only the bundle that the topic is in.")]


@command(
    owners,
    "list",
    examples=[
        "sexton owners list",
        "sexton owners list --topic persistent://public/default/orders",
        "sexton owners list --unowned --json",
    ],
)
def list_(
    context: CommandContext, *, worker: OfWorker = None, unowned: Unowned = False, topic: OfTopic = None
) -> Answer:
    """List bundles of topics with owner and fence, then workers with a live session and their load.

    The fence counts how often a bundle was acquired, by the worker in fenced_by last; what an earlier owner writes
    under its lease is refused. Session state: ALIVE, UNLISTED (the owner is starting or ending), GONE (its node is
    about to vanish). Looking changes nothing.

    Load is work in hand as each worker told last: 0 is idle, at 1 nothing more fits. A worker without room takes no
    bundle, because its catalog is away. With the setting ownership=single there are no sessions, and whoever acquired
    a bundle last owns it.
    """
    from workers.operations.owners import overview  # noqa: PLC0415 - start-up time

    if worker is not None and unowned:
        raise InvalidInput("unowned", expected="one of --unowned and --worker", found="both")
    wanted = None if topic is None else _bundle_of(context, topic)
    with directory_of(context) as directory:
        found = overview(context.catalog.fences, directory)
    rows = [row for row in found.bundles if _asked_for(row, wanted, worker, unowned=unowned)]
    if worker is not None and worker not in {one.worker_id for one in found.workers} and not rows:
        note(f"no worker {worker}: it has no live session, and owns no bundle")
    workers = [_worker_row(row) for row in found.workers if worker in {None, row.worker_id}]
    return Answer(
        document={
            "ownership": context.settings.ownership,
            "bundles": [_bundle_row(row) for row in rows],
            "workers": workers,
        },
        shown=_bundles_shown(rows),
        wide=[_bundle_row(row) for row in rows],
        empty="no bundles" if worker is None else f"no bundles of a worker {worker}",
        more=(
            Answer(document=[_worker_shown(row) for row in workers], empty=_no_worker(worker)),
            Answer(document={}, text=_summary(context, found)),
        ),
    )


def _no_worker(worker: str | None) -> str:
    return "no workers with a live session" if worker is None else f"no worker {worker} with a live session"


def _asked_for(row: "BundleRow", wanted: BundleId | None, worker: str | None, *, unowned: bool) -> bool:
    return (
        wanted in {None, row.bundle}
        and not (unowned and row.held)
        and (worker is None or (row.held is not None and row.held.worker_id == worker))
    )


def _bundle_row(row: "BundleRow") -> dict[str, object]:
    held = row.held
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
            "owner": row.held.worker_id if row.held else None,
            "fence": row.fence,
            **({"remark": remark} if any(remarks) else {}),
        }
        for row, remark in zip(rows, remarks, strict=True)
    ]


def _remark(row: "BundleRow") -> str:
    held = row.held
    if held is None:
        return ""
    session = f"session {held.state.value.lower()}" if held.state and held.state != "ALIVE" else ""
    fence = f"last acquired by {row.fenced_by or 'nobody'}" if row.fenced_by != held.worker_id else ""
    return ", ".join(filter(None, (session, fence)))


def _worker_row(row: "WorkerRow") -> dict[str, object]:
    return {
        "worker_id": row.worker_id,
        "load": row.load,
        "room": row.room,
        "bundles": row.bundles,
        "session": hex_of(row.session),
    }


def _worker_shown(row: Mapping[str, object]) -> dict[str, object]:
    """For people: a load that says that nothing more is taken, in words."""
    shown = {**row, "load": row["load"] if row["room"] in {True, None} else "takes none"}
    del shown["room"]
    return shown


def hex_of(session: int | None) -> str | None:
    """A session's id as ZooKeeper's own tools write it."""
    return None if session is None else f"{session:#x}"


def _summary(context: CommandContext, found: "Overview") -> str:
    single = "; ownership=single: as the fences say, for nobody tells whether a worker lives"
    return f"{found}{single if context.settings.ownership == 'single' else ''}\n"


def _bundle_of(context: CommandContext, topic: str) -> BundleId:
    context.topic(topic)  # a name with a slip of the pen is in some bundle, too
    return bundle_of(TopicName.known(topic), bundles=context.catalog.fences.bundles())


@contextmanager
def directory_of(context: CommandContext) -> "Iterator[Directory | None]":
    """What stands in ZooKeeper; None where a setting says that there is none."""
    if context.settings.ownership == "single":
        yield None
        return
    catalog = context.catalog
    bundles, catalog_id = catalog.fences.bundles(), catalog.identities.catalog_id()
    with context.services.open_directory(context.settings, bundles, catalog_id) as directory:
        yield directory
