"""The embedded stack, and what runs upon it: its catalog, its settings and its workers."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from workers.cli.command import command, group
from workers.cli.context import CommandContext
from workers.cli.errors import ExitCode
from workers.cli.exports import exports as env_of
from workers.cli.output import Answer, note
from workers.cli.progress import telling_steps, watching

stack = group("stack", "The embedded stack.", path="")

NoWorker = Annotated[bool, typer.Option("--no-worker", help="Start the services without a worker.")]
FreePorts = Annotated[bool, typer.Option("--free-ports", help="Take any free ports instead of the usual ones.")]


@command(stack, "up", "", "--no-worker --free-ports --json")
def up(context: CommandContext, *, no_worker: NoWorker = False, free_ports: FreePorts = False) -> Answer:
    """Start Temporal, S3, ZooKeeper, the database and a worker; return when all is healthy.

    A service that runs already is left alone.
    """
    with telling_steps("starting the stack") as say:
        found = context.services.up(
            context.settings, no_worker=no_worker, free_ports=free_ports, on_progress=say, say=note
        )
    return Answer(document=found, title="The stack is up")


@command(stack, "down", "")
def down(context: CommandContext) -> Answer:
    """Stop what `up` started in this home, and nothing else."""
    with watching("stopping the stack"):
        names = context.services.down(context.settings)
    return Answer(document={"stopped": names})


@command(stack, "env", 'eval "$(sexton env)"', "--json")
def env(context: CommandContext) -> Answer:
    """Print shell exports, so that `temporal`, `aws` and `sqlite3` reach this stack; secrets are among them."""
    context.require_store()
    exports = env_of(context.settings)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in exports.items()]
    return Answer(document=exports, text="".join(lines))


@command(stack, "status", "--json")
def status(context: CommandContext) -> Answer:
    """Tell whether each service answers; exits with 4 if one does not."""
    with watching("asking the services"):
        return _health(context.services.status(context.settings))


@command(stack, "doctor", "")
def doctor(context: CommandContext) -> Answer:
    """Check services, Java, versions, buckets, clock and search attributes; exits with 4 if one is not ok."""
    with watching("examining"):
        return _health(context.services.doctor(context.settings))


def _health(found: Sequence[Mapping[str, object]]) -> Answer:
    rows = [{"name": row["name"], "ok": bool(row["ok"]), "detail": row["detail"]} for row in found]
    code = ExitCode.DONE if all(row["ok"] for row in rows) else ExitCode.UNREACHABLE
    return Answer(document={"services": rows}, shown=rows, code=code)


Topics = Annotated[int, typer.Option("--topics", min=1, max=1_000, help="Topics to fill.")]
DemoLedgers = Annotated[int, typer.Option("--ledgers", min=2, max=100_000, help="Ledgers in each topic.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the stack running.")]


@command(stack, "demo", "", "--topics 5 --ledgers 40 --keep")
def demo(context: CommandContext, *, topics: Topics = 3, ledgers: DemoLedgers = 20, keep: Keep = False) -> Answer:
    """Run the main job on a throw-away stack, kill a worker half way, and show what each promise did."""
    with telling_steps("starting a throw-away stack") as say:
        report = context.services.demo(context.settings, topics=topics, ledgers=ledgers, keep=keep, on_progress=say)
    code = ExitCode.DONE if report.ok else ExitCode.FAILED
    return Answer(document=report.to_json(), shown=report.rows, code=code)


catalog = group("catalog", "The SQL catalog.")


@command(catalog, "upgrade", "", "--json")
def upgrade(context: CommandContext) -> Answer:
    """Create the catalog's tables, or bring them to this build's version; repeating it is harmless."""
    return Answer(document=context.services.upgrade(context.settings))


config = group("config", "Settings and where they come from.")


@command(config, "show", "", "SEXTON_DELETION_CHUNK=50 sexton config show --json")
def show(context: CommandContext) -> Answer:
    """Show each setting's value and origin; secrets are masked."""
    from infra.catalog.engine.connections import mask_passwords  # noqa: PLC0415 - start-up time

    loaded = context.loaded
    values = loaded.settings.model_dump(mode="json")
    values["database_url"] = mask_passwords(values["database_url"])
    rows = [
        {"name": name, "value": None if value == "" else value, "origin": loaded.origins[name]}
        for name, value in values.items()
    ]
    shown = [{**row, "value": row["value"] and str(row["value"])} for row in rows]  # as typed: no thousands separators
    return Answer(document=rows, shown=shown, copied=True)
