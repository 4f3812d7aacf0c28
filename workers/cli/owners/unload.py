"""`owners unload`: a bundle is taken away from its owner."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.errors import PreconditionFailed
from logstore.ownership import BundleId, bundle_name, parse_bundle
from logstore.ports.catalog import Cause
from workers.cli.command import command
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode
from workers.cli.options import DryRun, Reason
from workers.cli.output import Answer, note
from workers.cli.owners.listing import directory_of, hex_of, owners
from workers.cli.progress import watching

if TYPE_CHECKING:
    from infra.coordination.directory import Directory
    from workers.operations.owners import Owned

_TAKEN_WITHIN_S: Final = 60.0  # whoever lost a bundle leaves it to others for 10 s, and takes it again when alone

Bundle = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="Its hash range or its number, as `owners list` shows both.")
]
WaitForOwner = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until it has an owner again, for at most a minute.")
]


@command(
    owners,
    "unload",
    examples=[
        "sexton owners unload 0x00000000_0x04000000 --dry-run",
        'sexton owners unload 0 --reason "let another worker have it"',
    ],
)
def unload(
    context: CommandContext, bundle: Bundle, *, reason: Reason = "", dry_run: DryRun = False, wait: WaitForOwner = True
) -> Answer:
    """Take a bundle away from its owner, which lets go and leaves it to others for a while.

    Work in hand of its topics ends or is refused, and goes on at the next owner: another worker, or the same one if it
    is alone, some ten seconds later. Nothing is deleted but the owner's node, and only while it is of the session that
    was read. Exit code 3 if nobody owns it, 5 if nobody took it within a minute.
    """
    wanted = _parsed(bundle, context.catalog.fences.bundles())
    with directory_of(context) as directory:
        if directory is None:
            raise PreconditionFailed("ownership: expected zookeeper, found single: no other worker can take a bundle")
        return _unloaded(context, directory, wanted, reason=reason, dry_run=dry_run, wait=wait)


def _unloaded(
    context: CommandContext, directory: "Directory", bundle: BundleId, *, reason: str, dry_run: bool, wait: bool
) -> Answer:
    from workers.operations.owners import Unloading  # noqa: PLC0415 - start-up time

    catalog = context.catalog
    unloading = Unloading(catalog.fences, catalog.audit_log, directory)
    owned = unloading.find(bundle)
    if dry_run:
        return Answer(document={"dry_run": True, **_owned_row(owned)})
    unloading.unload(owned, Cause(actor=context.actor, reason=reason, workflow_id=""))
    if not wait:
        return Answer(document=_owned_row(owned))
    with watching(f"waiting for an owner of {owned.name}"):
        last = unloading.taken(owned, within_s=_TAKEN_WITHIN_S)
    taken = {"taken_by": last.worker_id if last else None, "taken_fence": last.counter if last else None}
    if last is None:
        note(f"it is unloaded, and nobody took it within {_TAKEN_WITHIN_S:.0f} s; see `sexton owners list`")
    return Answer(document=_owned_row(owned) | taken, code=ExitCode.DONE if last else ExitCode.PARTIAL)


def _owned_row(owned: "Owned") -> dict[str, object]:
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
