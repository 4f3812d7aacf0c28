"""A throw-away SeaweedFS for the tests: loopback only, ports of its own, killed at once at the end."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

_SERVERS = ("master", "volume", "filer", "s3")  # each listens on a port and on its `.grpc` twin
_READY_WITHIN_S = 60.0


def start_seaweed(directory: Path) -> tuple[str, str, str, Callable[[], None]]:
    """Start a server whose data, logs and temporary files stay under `directory`.

    Returns:
        The S3 endpoint, the access key, the secret key, and a function that kills the server at once.

    Raises:
        RuntimeError: The server ended, or did not serve S3 within a minute.
    """
    access, secret = secrets.token_hex(8), secrets.token_hex(16)
    ports = _free_ports()
    for folder in ("data", "logs", "tmp"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    _write_credentials(directory / "s3.json", access, secret)
    with (directory / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            _command(directory, ports),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, "TMPDIR": str(directory / "tmp")},
        )

    def kill() -> None:
        process.kill()
        process.wait()

    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    try:
        _await_ready(endpoint, process)
    except BaseException:
        kill()
        raise
    return endpoint, access, secret, kill


def _command(directory: Path, ports: dict[str, int]) -> list[str]:
    weed = Path(sys.executable).with_name("weed")
    return [
        str(weed),
        f"-logdir={directory / 'logs'}",
        "server",
        "-filer",
        "-s3",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-volume.max=0",
        "-master.volumeSizeLimitMB=256",
        "-master.telemetry=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={directory / 's3.json'}",
        f"-dir={directory / 'data'}",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]


def _write_credentials(path: Path, access: str, secret: str) -> None:
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": access, "secretKey": secret}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps({"identities": [identity]}))


def _free_ports() -> dict[str, int]:
    names = [f"{server}.{kind}" for server in _SERVERS for kind in ("port", "port.grpc")]
    with ExitStack() as held:  # all held together, so that no two are the same
        sockets = [held.enter_context(socket.socket()) for _ in names]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return {name: bound.getsockname()[1] for name, bound in zip(names, sockets, strict=True)}


def _await_ready(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"weed ended with {process.returncode} before it served S3")
        try:
            with urllib.request.urlopen(f"{endpoint}/healthz", timeout=2):  # noqa: S310 - our own loopback URL
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"weed did not serve S3 at {endpoint} within {_READY_WITHIN_S:.0f} s")
