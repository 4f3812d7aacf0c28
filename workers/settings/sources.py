"""Where settings come from, and which source wins: flags, environment, `sexton.toml`, the home's stack, defaults.

pydantic-settings reads the process's own environment and working directory; here both are arguments, so that
nothing ambient is read and a test needs no patching. Hence these few sources of our own.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import PlainSerializer, ValidationError

from logstore.errors import InvalidInput, ServiceFailed
from logstore.whole_files import read_regular_file
from workers.settings.files import MAX_FILE_BYTES, read_secret
from workers.settings.kinds import format_duration
from workers.settings.model import SERVICES, Settings

DEFAULT_HOME = ".sexton"
_SECRETS = frozenset({"s3_access_key", "s3_secret_key", "database_url", "zookeeper_auth", "temporal_api_key"})
_IN_FILES = {f"{name}_file": name for name in _SECRETS if f"{name}_file" not in Settings.model_fields}
"""Names by which a file is given that holds the secret; those that are settings of their own are read again later."""

_PREFIX = "SEXTON_"
_OF_OTHERS = frozenset({"SEXTON_CONFIG", "SEXTON_FAILPOINTS", "SEXTON_PROCESS"})
"""Variables that are no settings: where the file is, what tests arm, and the mark that `up` gives its processes."""

_MOST_PATH = 1_024  # of a home; names of files come behind it
_Source = Mapping[str, tuple[object, str]]  # field -> value, origin

Recorded = Callable[[Path], Mapping[str, object]]
"""Reads what `up` recorded in a home: settings by name."""


def read_recorded(home: Path) -> Mapping[str, object]:
    """Settings by name, as the stack in `home` recorded them; empty when none was ever started.

    Raises:
        ServiceFailed: A record that cannot be read or is no JSON object.
    """
    ports = _object(home / "ports.json")
    credentials = _object(home / "credentials.json")
    local = {
        "temporal_address": ("temporal", "127.0.0.1:{}"),
        "ui_address": ("ui", "http://127.0.0.1:{}"),
        "s3_endpoint": ("s3", "http://127.0.0.1:{}"),
        "zookeeper": ("zookeeper", "127.0.0.1:{}"),
    }
    addresses = {name: form.format(ports[key]) for name, (key, form) in local.items() if ports.get(key)}
    secrets = {"s3_access_key": credentials.get("access_key"), "s3_secret_key": credentials.get("secret_key")}
    return addresses | {name: value for name, value in secrets.items() if value}


def _object(path: Path) -> Mapping[str, object]:
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
    """Settings, and for each of them where its value came from."""

    settings: Settings
    origins: Mapping[str, str]  # every field's name -> "flag", "environment SEXTON_X", "sexton.toml", ...


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    cwd: Path,
    *,
    recorded: Recorded = read_recorded,
) -> LoadedSettings:
    """Merge all sources, strongest first: flags, environment, `sexton.toml`, the stack in the home, defaults.

    Args:
        flags: Settings by name; None stands for a flag that was not given.
        environ: The environment; an empty variable counts as absent.
        cwd: The base of relative paths, and where `sexton.toml` is looked for.
        recorded: How to read what `up` left in the home.

    Raises:
        InvalidInput: An unknown key or variable, a value of the wrong kind, or a file that cannot be read.
        ServiceFailed: A record of the home is damaged.
    """
    file, asked = _file(environ, cwd), {name: value for name, value in flags.items() if value is not None}
    _refuse_unknown(asked, "flag")
    given = _read_in({name: (value, "flag") for name, value in asked.items()}, cwd)
    chosen = {**file, **_own(_read_in(_from_environ(environ), cwd), given, cwd), **given}
    home, origin = chosen.get("home", (DEFAULT_HOME, "default"))
    chosen["home"] = (_path(home, origin, cwd), origin)
    left = recorded(Path(str(chosen["home"][0]))).items()
    found = {**{name: (value, f"stack in {chosen['home'][0]}") for name, value in left}, **chosen}
    origins = {name: found[name][1] if name in found else "default" for name in Settings.model_fields}
    return LoadedSettings(_validated(found), origins)


def _read_in(found: _Source, cwd: Path) -> _Source:
    """The source with the secrets of the files that it names in their place.

    Raises:
        InvalidInput: It gives a secret twice, or a file that cannot be read, or is empty.
    """
    read = {name: one for name, one in found.items() if name not in _IN_FILES}
    for file, name in _IN_FILES.items():
        if file in found:
            path, origin = found[file]
            if name in found:
                raise InvalidInput(file, expected=f"it or {name}, not both (from {origin})", found=path)
            read[name] = (_secret_in(file, path, cwd, origin), origin)
    return read


def _secret_in(file: str, path: object, cwd: Path, origin: str) -> str:
    try:
        return read_secret(file, str(cwd / Path(str(path)).expanduser()))
    except InvalidInput as error:
        raise InvalidInput(file, expected=f"{error.expected} (from {origin})", found=path) from None


def _own(exported: _Source, given: _Source, cwd: Path) -> _Source:
    """The environment without the services of another home than the one that a flag names.

    `eval "$(sexton env)"` exports one home's services with that home: beside another `--home` they mean nothing.
    """
    if "home" not in given or "home" not in exported:
        return exported
    asked, other = (_path(*found["home"], cwd).resolve() for found in (given, exported))
    return exported if asked == other else {name: value for name, value in exported.items() if name not in SERVICES}


def _path(home: object, origin: str, cwd: Path) -> Path:
    return (cwd / Path(_checked_home(home, origin)).expanduser()).absolute()


def _checked_home(home: object, origin: str) -> str:
    text = str(home) if isinstance(home, str | Path) else ""
    if not (0 < len(text) <= _MOST_PATH and text.isprintable()):
        rule = f"the path of a directory, 1 to {_MOST_PATH:,} printable characters"
        raise InvalidInput("home", expected=f"{rule} (from {origin})", found=home)
    return text


def _from_environ(environ: Mapping[str, str]) -> _Source:
    names = {name: f"{_PREFIX}{name.upper()}" for name in (*Settings.model_fields, *_IN_FILES)}
    known = _OF_OTHERS | set(names.values())
    for key in environ:
        if key.startswith(_PREFIX) and key not in known and environ[key]:
            nearest = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise InvalidInput("environment", expected=f"a variable of a setting (nearest: {nearest})", found=key)
    return {name: (environ[key], f"environment {key}") for name, key in names.items() if environ.get(key)}


def _file(environ: Mapping[str, str], cwd: Path) -> _Source:
    asked = environ.get("SEXTON_CONFIG")
    path = cwd / (asked or "sexton.toml")
    try:
        content = tomllib.loads(read_regular_file(path, max_bytes=MAX_FILE_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        if not asked:
            return {}
        raise InvalidInput("SEXTON_CONFIG", expected="a file that exists", found=asked) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(path.name, expected="a readable TOML file", found=str(error)) from error
    _refuse_unknown(content, path.name)
    if "home" in content:
        content["home"] = path.parent / Path(_checked_home(content["home"], path.name)).expanduser()
    return _read_in({name: (value, path.name) for name, value in content.items()}, path.parent)


def _refuse_unknown(given: Mapping[str, object], source: str) -> None:
    for name in given:
        if name not in Settings.model_fields and name not in _IN_FILES:
            nearest = get_close_matches(name, Settings.model_fields, n=1, cutoff=0.0)[0]
            raise InvalidInput(source, expected=f"a known key (nearest: {nearest})", found=name)


def _validated(found: Mapping[str, tuple[object, str]]) -> Settings:
    try:
        return Settings.model_validate({name: value for name, (value, _) in found.items()})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        origin = found.get(name, (None, "default"))[1]
        shown = "(hidden)" if name in _SECRETS else first["input"]
        raise InvalidInput(name, expected=f"{_rule(name, first)} (from {origin})", found=shown) from None


def _rule(name: str, told: Mapping[str, Any]) -> str:
    """The values that a setting takes, as a phrase; pydantic's own phrases speak of inputs and parsers."""
    match told["type"]:
        case "value_error":
            return str(told["ctx"]["error"])
        case "literal_error":
            return str(told["ctx"]["expected"])
        case "string_type":
            return "text"
    rules = Settings.model_fields[name].metadata
    is_duration = any(isinstance(one, PlainSerializer) for one in rules)
    least = max((one.ge for one in rules if hasattr(one, "ge")), default=0)
    most = min((one.le for one in rules if hasattr(one, "le")), default=None)
    ends = [format_duration(end) if is_duration else f"{end:,}" for end in (least, most) if end is not None]
    kind = "a duration such as 90s, 15m, 24h or 3d" if is_duration else "a whole number"
    return f"{kind}, from {' to '.join(ends)}" if most is not None else f"{kind}, {ends[0]} or more"
