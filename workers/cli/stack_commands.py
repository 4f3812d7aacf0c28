"""Groups of the embedded stack, its catalog and its settings, and the commands `status`, `doctor` and `demo`."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer
from pydantic import SecretStr

from workers.cli.command_context import CommandContext
from workers.cli.command_errors import ExitCode
from workers.cli.command_registration import command, create_command_group
from workers.cli.output import Answer, announce_steps, print_note, show_progress_bar
from workers.settings import SERVICE_SETTINGS, Settings, read_temporal_api_key

stack = create_command_group("stack", path="")

_SETTING_BY_VARIABLE: Final = {  # variables of `temporal` and of `aws`
    "TEMPORAL_NAMESPACE": "temporal_namespace",
    "TEMPORAL_TLS_SERVER_CA_CERT_PATH": "temporal_ca_file",
    "TEMPORAL_TLS_SERVER_NAME": "temporal_server_name",
    "TEMPORAL_TLS_CLIENT_CERT_PATH": "temporal_cert_file",
    "TEMPORAL_TLS_CLIENT_KEY_PATH": "temporal_key_file",
    "AWS_ACCESS_KEY_ID": "s3_access_key",
    "AWS_SECRET_ACCESS_KEY": "s3_secret_key",
    "AWS_ENDPOINT_URL_S3": "s3_endpoint",
    "AWS_REGION": "s3_region",
    "AWS_CA_BUNDLE": "s3_ca_file",
}
_SEXTON_SETTINGS: Final = ("home", "primary_bucket", "tiered_bucket", "records_bucket", "database_url", "zookeeper")
_TRUST_SUFFIXES: Final = ("_tls", "_file", "_server_name", "_api_key", "_auth", "_acl")

NoWorker = Annotated[bool, typer.Option("--no-worker", help="Start the services without a worker.")]
FreePorts = Annotated[bool, typer.Option("--free-ports", help="Take any free ports instead of the usual ones.")]


@command(stack, "up", "", "--no-worker --free-ports --json")
def start_stack_in_background(
    context: CommandContext, *, no_worker: NoWorker = False, free_ports: FreePorts = False
) -> Answer:
    """Start Temporal, S3, ZooKeeper, the database and a worker. Return when all are healthy.

    Services that already run are left alone.
    """
    with announce_steps("starting the stack") as announce:
        addresses = context.services.up(
            context.settings, no_worker=no_worker, free_ports=free_ports, on_progress=announce, say=print_note
        )
    return Answer(document=addresses, title="The stack is up")


@command(stack, "down", "")
def stop_stack(context: CommandContext) -> Answer:
    """Stop what `up` started in this home, and nothing else."""
    with show_progress_bar("stopping the stack"):
        names = context.services.down(context.settings)
    return Answer(document={"stopped": names})


@command(stack, "env", 'eval "$(sexton env)"', "--json")
def print_environment(context: CommandContext) -> Answer:
    """Print shell exports, so that `temporal`, `aws` and `sqlite3` reach this stack. The exports contain secrets."""
    context.require_store()
    variables = make_environment_for_other_tools(context.settings)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    return Answer(document=variables, text="".join(lines))


def make_environment_for_other_tools(settings: Settings) -> Mapping[str, str]:
    """Return environment variables, with secrets, by which other tools and other shells reach the services.

    Empty values are left out, because `aws` fails with an empty endpoint or key.
    """
    fields = type(settings).model_fields
    trust = [name for name in SERVICE_SETTINGS if name.endswith(_TRUST_SUFFIXES)]
    changed = sorted(name for name in trust if getattr(settings, name) != fields[name].default)

    def get_text(name: str) -> str:
        value = getattr(settings, name)
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

    variables = {
        "TEMPORAL_ADDRESS": settings.require_address("temporal_address"),
        **{variable: get_text(name) for variable, name in _SETTING_BY_VARIABLE.items()},
        "TEMPORAL_API_KEY": read_temporal_api_key(settings),
        "TEMPORAL_TLS": "true" if settings.temporal_uses_tls else "",
        **{f"SEXTON_{name.upper()}": get_text(name) for name in (*_SEXTON_SETTINGS, *changed)},
    }
    return {name: value for name, value in variables.items() if value}


@command(stack, "status", "--json")
def show_service_status(context: CommandContext) -> Answer:
    """Tell whether each service answers. If a service does not answer, the exit code is 4."""
    with show_progress_bar("asking the services"):
        return _answer_checks(context.services.status(context.settings))


@command(stack, "doctor", "")
def examine_installation(context: CommandContext) -> Answer:
    """Check services, Java, versions, buckets, deletes, clock and search attributes. Exit code 4: a check failed."""
    with show_progress_bar("examining"):
        return _answer_checks(context.services.doctor(context.settings))


def _answer_checks(services: Sequence[Mapping[str, object]]) -> Answer:
    rows = [{"name": row["name"], "ok": bool(row["ok"]), "detail": row["detail"]} for row in services]
    code = ExitCode.DONE if all(row["ok"] for row in rows) else ExitCode.UNREACHABLE
    return Answer(document={"services": rows}, display=rows, code=code)


Topics = Annotated[int, typer.Option("--topics", min=1, max=1_000, help="Topics to fill.")]
DemoLedgers = Annotated[int, typer.Option("--ledgers", min=2, max=100_000, help="Ledgers in each topic.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the stack running.")]


@command(stack, "demo", "", "--topics 5 --ledgers 40 --keep")
def run_demo(context: CommandContext, *, topics: Topics = 3, ledgers: DemoLedgers = 20, keep: Keep = False) -> Answer:
    """Run the main job on a throw-away stack, kill a worker half way, and show whether each promise was kept."""
    with announce_steps("starting a throw-away stack") as announce:
        report = context.services.demo(
            context.settings, topics=topics, ledgers=ledgers, keep=keep, on_progress=announce
        )
    return Answer(document=report.to_json(), display=report.rows, code=ExitCode.DONE if report.ok else ExitCode.FAILED)


catalog = create_command_group("catalog")


@command(catalog, "upgrade", "", "--json")
def upgrade_catalog(context: CommandContext) -> Answer:
    """Create the catalog's tables, or upgrade them to this build. You may repeat the command."""
    return Answer(document=context.services.upgrade(context.settings))


config = create_command_group("config")


@command(config, "show", "", "SEXTON_DELETION_CHUNK=50 sexton config show --json")
def show_settings(context: CommandContext) -> Answer:
    """Show each setting's value and origin. Secrets are masked."""
    from logstore.catalog.engine.database_connections import mask_passwords  # noqa: PLC0415 - start-up time

    values = context.settings.model_dump(mode="json")
    values["database_url"] = mask_passwords(values["database_url"])
    origins = context.loaded_settings.origins
    rows = [
        {"name": name, "value": None if value == "" else value, "origin": origins[name]}
        for name, value in values.items()
    ]
    display = [{**row, "value": row["value"] and str(row["value"])} for row in rows]  # no thousands separators
    return Answer(document=rows, display=display, is_copyable=True)
