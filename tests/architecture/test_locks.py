"""What is installed is exactly what was locked, from wherever the user's pip looks."""

import re
import tomllib

import pytest

from tests.architecture.source import ROOT

_LOCKS = ("requirements.lock", "requirements-build.lock")
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]+\])?==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def _requirements(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("name", _LOCKS)
def test_lock_pins_and_hashes_everything(name: str) -> None:
    """Pip runs with --require-hashes; a line without one would stop a fresh install."""
    lines = _requirements(name)
    assert lines
    assert not [line for line in lines if not _PIN.match(line) or not _HASH.search(line)]


@pytest.mark.parametrize("name", _LOCKS)
def test_lock_names_no_index(name: str) -> None:
    """Where packages come from is the user's to say."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not re.search(r"https?://|--index-url|--extra-index-url|--find-links| @ ", text)


def test_lock_has_every_dependency_of_the_project() -> None:
    """A dependency that is not locked would be installed unhashed, or not at all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    wanted = {_canonical(re.split(r"[\[<>=~!; ]", one, maxsplit=1)[0]) for one in asked}
    locked = {_canonical(found["name"]) for line in _requirements("requirements.lock") if (found := _PIN.match(line))}
    assert wanted <= locked, sorted(wanted - locked)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
