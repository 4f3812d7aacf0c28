"""Programs and commands that stand in documents, run as they stand there."""

import json
import re
import subprocess
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

from tests.e2e.shell import ROOT, SEXTON, Shell

_PIECE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_REQUEST = re.compile(r"^```http\n(\w+) (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = "---- end of a piece ----"
_CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (.*<<'(\w+)'\n(?:.*\n)*?\2\n|.*\n)((?:(?!\$ ).*\n)*)", re.MULTILINE)
_VARYING = re.compile(
    r"(?<=/workflows/)\S+(?=/user-metadata)|127\.0\.0\.1:\d+|\d{4}-\d\d-\d\d[T ][\d:.]+Z?"
    r"|(?<=-)[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"
)
"""Addresses, times and random ids in the output of a command."""

_STANDSTILL = re.compile(r"^nothing has moved for .*\n", re.MULTILINE)
"""Note of a command that waits for a job on a busy machine: a page shows none, and no test may depend on the time."""


def run_session(shell: Shell, guide: str) -> None:
    """The Python pieces of a guide, one after the other in one coroutine, print what stands below them.

    Args:
        shell: Whose folder has a running stack.
        guide: The path of the document.
    """
    pieces = _PIECE.findall((ROOT / guide).read_text(encoding="utf-8"))
    assert pieces
    body = f'\nprint("{_MARK}")\n'.join(program for program, _ in pieces)
    program = f"import asyncio\n\n\nasync def main():\n{textwrap.indent(body, '    ')}\n\nasyncio.run(main())\n"
    (shell.folder / "session.py").write_text(program, encoding="utf-8")
    done = shell.python("session.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(f"{_MARK}\n") == [printed for _, printed in pieces], done.stderr


def run_console(shell: Shell, page: str, heading: str) -> None:
    """Run the commands of the first console block below a heading, and compare the output with the page.

    `sexton up` and `sexton down` are left out: the stack of the test is running.
    """
    section = (ROOT / page).read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    block = _CONSOLE.search(section)
    assert block
    environ = {**shell.environ, "PATH": f"{SEXTON.parent}:{shell.environ['PATH']}"}
    for command, _, shown in _COMMAND.findall(block[1]):
        if command in {"sexton up\n", "sexton down\n"}:
            continue
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=shell.folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        printed = _STANDSTILL.sub("", done.stdout)
        assert _VARYING.sub("…", printed) == _VARYING.sub("…", shown), command


def send_requests(guide: str, address: str) -> list[Any]:
    """The HTTP requests of a guide, sent one after the other; their answers.

    Args:
        guide: The path of the document.
        address: Of a running server, with its scheme.
    """
    requests = _REQUEST.findall((ROOT / guide).read_text(encoding="utf-8"))
    return [_answer(f"{address}{path}", method, rest.partition("\n\n")[2]) for method, path, rest in requests]


def _answer(url: str, method: str, body: str) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=body.encode() or None, headers=headers, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - of the stack that was just started
        return json.load(answer)


def http_address(home: Path) -> str:
    """Where the Temporal server of an embedded stack answers over HTTP."""
    ports = json.loads((home / "ports.json").read_text(encoding="utf-8"))
    return f"http://127.0.0.1:{ports['temporal_http']}"
