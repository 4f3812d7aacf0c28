"""The guide from one machine to several runs as it stands: every command of it, with what is killed there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.soak.soak_processes import create_soak_home, kill_marked_processes, remove_soak_home

_ROOT = Path(__file__).resolve().parents[2]
_GUIDE = _ROOT / "docs" / "guides" / "beyond-one-machine.md"
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_BASH = shutil.which("bash") or "/bin/bash"
_WITHIN_S = 3_000.0


def _script() -> str:
    blocks = _BLOCK.findall(_GUIDE.read_text(encoding="utf-8"))
    assert len(blocks) > 5
    return "\n".join(("set -euo pipefail", *blocks))


def test_script_of_the_guide_is_whole() -> None:
    """Bash can read it: no block is cut off, and each heredoc ends."""
    done = subprocess.run([_BASH, "-n"], input=_script(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.all_faults
@pytest.mark.external_service
@pytest.mark.sigkill
@pytest.mark.timeout(_WITHIN_S + 60)
def test_work_goes_on_where_one_member_of_each_service_is_lost() -> None:
    """ZooKeeper's leader, a volume server, a worker of Spark and one of Sexton; then PostgreSQL and Temporal."""
    mark, home = uuid4().hex, create_soak_home()
    bare = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
    found = Path(sys.executable).parent
    try:
        done = subprocess.run(
            [_BASH, "-c", _script()],
            cwd=_ROOT,
            env={**bare, "PATH": f"{found}:{bare['PATH']}", "WALKTHROUGH": mark, "TMPDIR": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4_000:]
        assert "'w2', 'w3'] own all but 0 bundles" in done.stdout
    finally:
        kill_marked_processes("WALKTHROUGH", mark)
        remove_soak_home(home)
