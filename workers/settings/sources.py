"""Sources of settings, strongest first: flags, environment, `sexton.toml`, the home's stack, defaults."""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pydantic import PlainSerializer, ValidationError

from logstore.atomic_files import read_regular_file
from logstore.errors import InvalidInput, ServiceFailed
from logstore.setting_files import MAX_FILE_BYTES, read_secret_file
from workers.settings.model import SERVICE_SETTINGS, Settings
from workers.settings.setting_types import format_duration
from workers.validation_refusals import refusal_from_validation_error

DEFAULT_HOME = ".sexton"
_SECRETS = frozenset(
    {
        "s3_access_key",
        "s3_secret_key",
        "database_url",
        "zookeeper_auth",
        "pulsar_zookeeper_auth",
        "pulsar_offload_access_key",
        "pulsar_offload_secret_key",
        "temporal_api_key",
    }
)
_SECRET_BY_FILE = {f"{name}_file": name for name in _SECRETS if f"{name}_file" not in Settings.model_fields}
"""Secret settings by the key that names a file with the secret. Keys that are settings themselves are left out."""

_PREFIX = "SEXTON_"
_OTHER_VARIABLES = frozenset({"SEXTON_CONFIG", "SEXTON_FAILPOINTS", "SEXTON_PROCESS"})
"""Variables that are not settings: path of `sexton.toml`, failpoints of tests, and the mark of a stack's processes."""

_MAX_HOME_CHARS = 1_024  # paths of files in the home must still be valid
_Source = Mapping[str, tuple[object, str]]  # value and origin by setting

RecordReader = Callable[[Path], Mapping[str, object]]
"""Function that takes a home and returns the values that `sexton up` recorded, by setting."""


def read_stack_record(home: Path) -> Mapping[str, object]:
    """Return the values that the stack in `home` recorded, by setting. The result is empty if no stack was started."""
    ports = _read_json_file(home / "ports.json")
    credentials = _read_json_file(home / "credentials.json")
    addresses_by_setting = {
        "temporal_address": ("temporal", "127.0.0.1:{}"),
        "ui_address": ("ui", "http://127.0.0.1:{}"),
        "s3_endpoint": ("s3", "http://127.0.0.1:{}"),
        "zookeeper": ("zookeeper", "127.0.0.1:{}"),
    }
    addresses = {
        name: form.format(ports[service])
        for name, (service, form) in addresses_by_setting.items()
        if ports.get(service)
    }
    secrets = {"s3_access_key": credentials.get("access_key"), "s3_secret_key": credentials.get("secret_key")}
    return addresses | {name: value for name, value in secrets.items() if value}


def _read_json_file(path: Path) -> Mapping[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ServiceFailed("home", f"cannot read {path} ({error.strerror})", advice="ask its owner") from error
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ServiceFailed("home", f"{path} is damaged", advice="stop the stack's servers, then remove that file")
    return content


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    settings: Settings
    origins: Mapping[str, str]  # by setting: "flag", "environment SEXTON_X", "sexton.toml", …


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    cwd: Path,
    *,
    read_record: RecordReader = read_stack_record,
) -> LoadedSettings:
    """Merge all sources. A flag that is `None` and a variable that is empty count as absent.

    `cwd` is the base of relative paths, and the folder of `sexton.toml`. `read_record` gets the home, and
    returns the values that `sexton up` recorded there.

    Raises:
        InvalidInput: A key or a variable is unknown, a value is invalid, or a file cannot be read.
        ServiceFailed: A file that `sexton up` stored in the home is damaged or unreadable.
    """
    file_source = _read_config_file(environ, cwd)
    given_flags = {name: value for name, value in flags.items() if value is not None}
    _refuse_unknown(given_flags, "flag")
    flag_source = _resolve_secret_files({name: (value, "flag") for name, value in given_flags.items()}, cwd)
    environment = _resolve_secret_files(_read_environment_variables(environ), cwd)
    chosen = {**file_source, **_drop_services_of_other_home(environment, flag_source, cwd), **flag_source}
    home, origin = chosen.get("home", (DEFAULT_HOME, "default"))
    chosen["home"] = (_resolve_home(home, origin, cwd), origin)
    record = read_record(Path(str(chosen["home"][0]))).items()
    merged = {**{name: (value, f"stack in {chosen['home'][0]}") for name, value in record}, **chosen}
    origins = {name: merged[name][1] if name in merged else "default" for name in Settings.model_fields}
    return LoadedSettings(_validate_settings(merged), origins)


def _resolve_secret_files(source: _Source, cwd: Path) -> _Source:
    resolved = {name: entry for name, entry in source.items() if name not in _SECRET_BY_FILE}
    for file, name in _SECRET_BY_FILE.items():
        if file in source:
            path, origin = source[file]
            if name in source:
                raise InvalidInput(file, expected=f"it or {name}, not both (from {origin})", found=path)
            try:
                secret = read_secret_file(file, str(cwd / Path(str(path)).expanduser()))
            except InvalidInput as error:
                raise InvalidInput(file, expected=f"{error.expected} (from {origin})", found=path) from None
            resolved[name] = (secret, origin)
    return resolved


def _drop_services_of_other_home(environment: _Source, flags: _Source, cwd: Path) -> _Source:
    """If a flag names another home, drop the services in the environment, which `sexton env` exported."""
    if "home" not in flags or "home" not in environment:
        return environment
    flag_home, exported_home = (_resolve_home(*source["home"], cwd).resolve() for source in (flags, environment))
    if flag_home == exported_home:
        return environment
    return {name: entry for name, entry in environment.items() if name not in SERVICE_SETTINGS}


def _resolve_home(home: object, origin: str, cwd: Path) -> Path:
    return (cwd / Path(_require_home_path(home, origin)).expanduser()).absolute()


def _require_home_path(home: object, origin: str) -> str:
    text = str(home) if isinstance(home, str | Path) else ""
    if not (0 < len(text) <= _MAX_HOME_CHARS and text.isprintable()):
        rule = f"the path of a directory, 1 to {_MAX_HOME_CHARS:,} printable characters"
        raise InvalidInput("home", expected=f"{rule} (from {origin})", found=home)
    return text


def _read_environment_variables(environ: Mapping[str, str]) -> _Source:
    variables = {name: f"{_PREFIX}{name.upper()}" for name in (*Settings.model_fields, *_SECRET_BY_FILE)}
    known_variables = _OTHER_VARIABLES | set(variables.values())
    for variable in environ:
        if variable.startswith(_PREFIX) and variable not in known_variables and environ[variable]:
            nearest = get_close_matches(variable, known_variables, n=1, cutoff=0.0)[0]
            expected = f"a variable of a setting (nearest: {nearest})"
            raise InvalidInput("environment", expected=expected, found=variable)
    return {
        name: (environ[variable], f"environment {variable}")
        for name, variable in variables.items()
        if environ.get(variable)
    }


def _read_config_file(environ: Mapping[str, str], cwd: Path) -> _Source:
    configured_path = environ.get("SEXTON_CONFIG")
    path = cwd / (configured_path or "sexton.toml")
    try:
        content = tomllib.loads(read_regular_file(path, max_bytes=MAX_FILE_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        if not configured_path:
            return {}
        raise InvalidInput("SEXTON_CONFIG", expected="a file that exists", found=configured_path) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(path.name, expected="a readable TOML file", found=str(error)) from error
    _refuse_unknown(content, path.name)
    if "home" in content:
        content["home"] = path.parent / Path(_require_home_path(content["home"], path.name)).expanduser()
    return _resolve_secret_files({name: (value, path.name) for name, value in content.items()}, path.parent)


def _refuse_unknown(values: Mapping[str, object], source: str) -> None:
    for name in values:
        if name not in Settings.model_fields and name not in _SECRET_BY_FILE:
            nearest = get_close_matches(name, Settings.model_fields, n=1, cutoff=0.0)[0]
            raise InvalidInput(source, expected=f"a known key (nearest: {nearest})", found=name)


def _validate_settings(merged: _Source) -> Settings:
    try:
        return Settings.model_validate({name: value for name, (value, _) in merged.items()})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        refusal = refusal_from_validation_error(error, "settings")
        name, origin = refusal.field, merged.get(refusal.field, (None, "default"))[1]
        expected = "" if problem["type"] == "value_error" else _describe_number_setting(name)
        found = "(hidden)" if name in _SECRETS else refusal.found
        raise InvalidInput(name, expected=f"{expected or refusal.expected} (from {origin})", found=found) from None


def _describe_number_setting(name: str) -> str:
    """Return kind and bounds of a setting that is a number, or "" for any other setting."""
    rules = Settings.model_fields[name].metadata if name in Settings.model_fields else []
    is_duration = any(isinstance(rule, PlainSerializer) for rule in rules)
    lows, highs = (
        [getattr(rule, side) for rule in rules if getattr(rule, side, None) is not None] for side in ("ge", "le")
    )
    if not lows:
        return ""
    ends = " to ".join(format_duration(end) if is_duration else f"{end:,}" for end in (max(lows), min(highs)))
    return f"{'a duration such as 90s, 15m, 24h or 3d' if is_duration else 'a whole number'}, from {ends}"


def read_temporal_api_key(settings: Settings) -> str:
    """Return the API key for Temporal from its setting or its file, or "". Raise `InvalidInput` if both are set."""
    key, path = settings.temporal_api_key.get_secret_value(), settings.temporal_api_key_file
    if key and path:
        raise InvalidInput("temporal_api_key_file", expected="it or temporal_api_key, not both", found=path)
    return read_secret_file("temporal_api_key_file", path) if path else key
