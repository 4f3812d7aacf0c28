"""What `sexton up` recorded in a home: where its services listen, and the credentials it generated."""

import json
from collections.abc import Mapping
from pathlib import Path

from logstore.errors import ServiceFailed


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
