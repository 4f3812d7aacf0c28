"""The wheel holds what the sources hold, and is all that the demo needs: an installation knows no clone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("logstore", "activities", "workflows", "infra", "spark", "workers")
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def _run(*command: object, within_s: float, cwd: Path = _ROOT) -> str:
    """What it prints; nothing of this test's own environment leads it to the clone."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("SEXTON_", "PYTHON"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=bare,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Built from this checkout, by what is installed already."""
    _run(
        sys.executable,
        *_PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path / "dist",
        _ROOT,
        within_s=110,
    )
    (found,) = (tmp_path / "dist").glob("sexton-*.whl")
    return found


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    """Migrations, pages, the modules that Spark's executors import, and the word that types are checked."""
    sources = {
        str(path.relative_to(_ROOT))
        for package in _PACKAGES
        for path in (_ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
        (entry,) = [name for name in opened.namelist() if name.endswith("entry_points.txt")]
        assert "sexton = workers.cli:main" in opened.read(entry).decode()
    assert held == sources
    assert {f"{package}/py.typed" for package in _PACKAGES} <= held


@pytest.mark.all_faults
@pytest.mark.external_service
@pytest.mark.timeout(1_800)
def test_demo_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, from an empty folder: no file of the clone is read."""
    venv, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    _run(sys.executable, "-m", "venv", venv, within_s=120)
    python = venv / "bin" / "python"
    hashed = ("install", "--require-hashes")
    _run(python, *_PIP, *hashed, "-r", _ROOT / "requirements-build.lock", within_s=300)
    _run(python, *_PIP, *hashed, "--no-build-isolation", "-r", _ROOT / "requirements.lock", within_s=900)
    _run(python, *_PIP, "install", "--no-deps", wheel, within_s=120)
    where = "import json, logstore, workers; print(json.dumps([logstore.__file__, workers.__file__]))"
    assert str(_ROOT) not in _run(python, "-c", where, within_s=60, cwd=empty)
    told = _run(venv / "bin" / "sexton", "demo", "--json", within_s=600, cwd=empty)
    assert '"ok": true' in told
    assert not list(empty.iterdir()), "the demo left something where it was started"
