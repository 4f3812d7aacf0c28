"""A network of its own for a process, joined to this machine's by one wire that can be pulled."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

_FOLDER = Path("/run/netns")


def find_obstacle() -> str | None:
    """Why this machine does not allow one; None where it does."""
    if os.geteuid() != 0:
        return "only root may join two networks"
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    try:
        with NetworkNamespace(f"sx{os.getpid()}t"):
            return None
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses: {error.stderr.decode().strip()}"


class NetworkNamespace:
    """Made and removed as a context; addresses are of a range for tests (RFC 2544)."""

    def __init__(self, name: str) -> None:
        """Name it; at most 13 characters, unique on this machine."""
        number = os.getpid() % 16_000
        self._name, self._wire = name, f"{name}w"
        self.outside = f"198.18.{number // 64}.{number % 64 * 4 + 1}"
        self._inside = f"198.18.{number // 64}.{number % 64 * 4 + 2}"
        self.path = _FOLDER / name

    def __enter__(self) -> Self:
        _run_ip("netns", "add", self._name)
        try:
            _run_ip("link", "add", self._wire, "type", "veth", "peer", "name", "inner", "netns", self._name)
            _run_ip("addr", "add", f"{self.outside}/30", "dev", self._wire)
            _run_ip("-n", self._name, "addr", "add", f"{self._inside}/30", "dev", "inner")
            for namespace_flags, device in (
                ((), self._wire),
                (("-n", self._name), "inner"),
                (("-n", self._name), "lo"),
            ):
                _run_ip(*namespace_flags, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for command in (("link", "del", self._wire), ("netns", "del", self._name)):
            subprocess.run([_IP_COMMAND, *command], check=False, capture_output=True)

    def pull(self) -> None:
        """Nothing passes any more, and nobody is told."""
        _run_ip("link", "set", self._wire, "down")

    def plug(self) -> None:
        """It is as it was."""
        _run_ip("link", "set", self._wire, "up")


_IP_COMMAND = "ip"


def _run_ip(*arguments: str) -> None:
    subprocess.run([_IP_COMMAND, *arguments], check=True, capture_output=True)
