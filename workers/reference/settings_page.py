"""Markdown page of all settings: name, default, allowed values and meaning, read from `Settings`."""

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from logstore.field_bounds import MAX_INT, Bound
from workers.settings import setting_types
from workers.settings.model import Settings

_HEAD: Final = """# Settings

Every setting of Sexton, with its default. `make reference` writes this page from the code.

A setting comes from the first of these places that has it:

1. a flag of the command;
2. the environment, as `SEXTON_` and the name in capitals: `SEXTON_DATABASE_URL`;
3. `sexton.toml` in the working directory, or the file that `SEXTON_CONFIG` names;
4. the addresses and credentials that `sexton up` recorded in the home;
5. the default on this page.

`sexton config show` prints the value in use and its place. An unknown key or `SEXTON_*` variable is refused with the
nearest name. In Kubernetes, set `enableServiceLinks: false` if a service is called `sexton…`. Otherwise Kubernetes sets
variables with that prefix.

- **Secrets**: a file can hold `database_url`, `s3_access_key`, `s3_secret_key`, `zookeeper_auth`,
  `pulsar_zookeeper_auth`, `pulsar_offload_access_key`, `pulsar_offload_secret_key` or `temporal_api_key`.
  Append `_file` to the name and give the path: `SEXTON_S3_SECRET_KEY_FILE=/run/secrets/s3`.
- **Durations** are a whole number and a unit: `90s`, `15m`, `24h`, `3d`.
- **Intervals** are durations between two runs of a schedule. `0s` turns the schedule off. Run `sexton schedule apply`
  after a change.
- **Names** are 1 to 64 of A-Z, a-z, 0-9, dot, underscore and hyphen.
- **Files and folders** are absolute paths. **Sizes** are bytes.
- **Listening addresses** are `host:port`. Port 0 means any free port. `off` turns the server off.
"""
_FIRST_SETTING_BY_TITLE: Final = {
    "Home": "home",
    "Temporal": "temporal_address",
    "Workers and builds": "task_queue",
    "Database": "database_url",
    "Object store": "s3_endpoint",
    "Ownership and ZooKeeper": "ownership",
    "Pulsar cluster": "pulsar_zookeeper",
    "Deletion and trims": "deletion_parallelism",
    "Delayed messages": "delayed_tolerance",
    "Record log": "records_interval",
    "Reconciliation and scrubs": "plan_interval",
    "Ledgers, cursors and offload": "ledger_max_entries",
    "Bulk jobs and uploads": "bulk_dir",
    "Ports of the embedded stack": "temporal_port",
    "Metrics, probes, traces and logs": "metrics_address",
}
_VALUES_BY_KIND: Final = (  # a type is before the type that it narrows, because the first match counts
    (setting_types.Interval, "interval"),
    (setting_types.Seconds, "duration"),
    (setting_types.Count, "whole number"),
    (setting_types.Port, "port"),
    (setting_types.Address, "host:port"),
    (setting_types.Ensemble, "host:port,…/path"),
    (setting_types.SchemeAndCredential, "scheme:credential"),
    (setting_types.ListenAddress, "listening address"),
    (setting_types.WebAddress, "URL"),
    (setting_types.Bucket, "bucket name"),
    (setting_types.BucketList, "bucket names, separated by commas"),
    (setting_types.ZnodePathList, "paths, separated by commas"),
    (setting_types.PulsarClusterList, "names, separated by commas"),
    (setting_types.FunctionList, "module:function, separated by commas"),
    (setting_types.Word, "name"),
    (setting_types.ServerName, "host name"),
    (setting_types.DeploymentName, "at most 128 letters, digits, `_`, `-`, `/`"),
    (setting_types.BuildId, "at most 63 letters, digits, `.`, `_`, `-`"),
    (setting_types.File, "path"),
    (setting_types.SparkMaster, "Spark master"),
)


def render_settings_page() -> str:
    hints, meaning_by_name = get_type_hints(Settings, include_extras=True), _read_setting_comments()
    title_by_first_setting = {name: title for title, name in _FIRST_SETTING_BY_TITLE.items()}
    lines = [_HEAD]
    for name in Settings.model_fields:
        if name in title_by_first_setting:
            lines += [f"\n## {title_by_first_setting[name]}\n"] if len(lines) > 1 else ["## Home\n"]
            lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
        default, values = _format_setting_default(name, hints[name]), _format_allowed_values(hints[name])
        lines.append(f"| `{name}` | {default} | {values} | {meaning_by_name.get(name, '')} |")
    return "\n".join(lines) + "\n"


def _read_setting_comments() -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(Settings))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comment_by_line = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)  # for mypy
    meaning_by_name = {}
    for field in definition.body:
        if isinstance(field, ast.AnnAssign):
            rows = range(field.lineno, (field.end_lineno or field.lineno) + 1)
            comments = [comment_by_line[row].removeprefix("# ") for row in rows if row in comment_by_line]
            if comments:
                meaning_by_name[ast.unparse(field.target)] = " ".join(comments)
    return meaning_by_name


def _format_setting_default(name: str, hint: Any) -> str:  # noqa: ANN401 - an annotation
    default = Settings.model_fields[name].default
    if name == "home":
        return "`.sexton`"
    if isinstance(default, SecretStr) or default == "":
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{setting_types.format_duration(default) if _is_duration(hint) else default}`"


def _format_allowed_values(hint: Any) -> str:  # noqa: ANN401 - an annotation
    choices = [choice for part in (hint, *get_args(hint)) if get_origin(part) is Literal for choice in get_args(part)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    kind = next((words for kind, words in _VALUES_BY_KIND if _narrows(hint, kind)), "")
    if not kind:
        if hint is bool:
            return "true or false"
        kind = "whole number" if get_args(hint)[:1] == (int,) else "text" if hint in {str, SecretStr} else "path"
    low, high = _find_bounds(hint)
    if low is None or kind == "port":
        return kind
    format_bound = setting_types.format_duration if _is_duration(hint) else lambda bound: f"{bound:,}"
    limit = f"{format_bound(low)} or more" if high >= MAX_INT else f"{format_bound(low)} to {format_bound(high)}"
    return f"{kind}, {limit}"


def _is_duration(hint: Any) -> bool:  # noqa: ANN401 - an annotation
    return _narrows(hint, setting_types.Seconds)


def _narrows(hint: Any, kind: Any) -> bool:  # noqa: ANN401 - annotations
    rules = getattr(hint, "__metadata__", ())
    return get_origin(hint) is Annotated and rules[: len(kind.__metadata__)] == kind.__metadata__


def _find_bounds(hint: Any) -> tuple[int | None, int]:  # noqa: ANN401 - an annotation
    bounds = list(_list_bounds(hint))
    lows, highs = ([getattr(bound, side) for bound in bounds if hasattr(bound, side)] for side in ("ge", "le"))
    return max(lows, default=None), min(highs, default=MAX_INT)


def _list_bounds(hint: Any) -> Iterator[Any]:  # noqa: ANN401 - an annotation
    for rule in getattr(hint, "__metadata__", ()):
        if isinstance(rule, FieldInfo):
            yield from rule.metadata
        elif isinstance(rule, Bound):
            yield rule
