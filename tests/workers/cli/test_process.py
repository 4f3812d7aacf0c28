"""What a shell may do to a process: closed descriptors, a full device, a locale of ASCII, bytes that are no text."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.catalog import Database
from tests.migrated_catalogs import migrate_or_copy_catalog

_SEXTON = Path(sys.executable).with_name("sexton")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a catalog."""
    (tmp_path / "ports.json").write_text(json.dumps({"temporal": 1, "s3": 1, "zookeeper": 1}))
    database = Database(f"sqlite:///{tmp_path}/catalog.db")
    migrate_or_copy_catalog(database)
    database.close()
    return tmp_path


def _shell(home: Path, line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    told = {**os.environ, "SEXTON_HOME": str(home), "SEXTON": str(_SEXTON), **environ}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=told, check=False)  # noqa: S607


@pytest.mark.parametrize("json_flag", ["", "--json"])
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left"), (">&-", "Bad file descriptor")])
def test_answer_that_cannot_be_written_is_one_sentence_and_a_code(
    home: Path, where: str, why: str, json_flag: str
) -> None:
    """Neither lost without a word, nor a traceback, nor told again by the interpreter."""
    ended = _shell(home, f'"$SEXTON" config show {json_flag} {where}')
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert f"stdout cannot be written ({why}" in ended.stderr


@pytest.mark.parametrize("line", ["--help", "--version", "topic", "topic append --help"])
@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
def test_help_that_cannot_be_written_is_one_sentence_and_a_code(home: Path, where: str, line: str) -> None:
    """As any other answer: in words of ours, and no number of the system's."""
    ended = _shell(home, f'"$SEXTON" {line} {where}')
    assert ended.returncode == 1, ended.stderr
    assert "stdout cannot be written (" in ended.stderr
    assert not {"Errno", "Traceback"} & {*ended.stderr.replace("[", " ").split()}, ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr


@pytest.mark.parametrize("line", ["config show", "config show --json", "--help", "topic append --help", "topic"])
def test_reader_that_leaves_early_changes_no_exit_code(home: Path, line: str) -> None:
    """`sexton … | head -1` ends as the command would with a reader that stays, and says nothing on stderr."""
    code = 2 if line == "topic" else 0
    program = f"""
import os, subprocess, sys
reader, writer = os.pipe()
os.close(reader)
sys.exit(subprocess.run(["{_SEXTON}", *"{line}".split()], stdout=writer).returncode)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SEXTON_HOME": str(home)},
    )
    assert (ended.returncode, ended.stderr) == (code, "")


def test_closed_stdin_and_stderr_are_no_obstacle(home: Path) -> None:
    """What is read from a closed stdin is nothing; what goes to a closed stderr goes nowhere."""
    ended = _shell(home, '"$SEXTON" topic list --json <&- 2>&-')
    assert (ended.returncode, json.loads(ended.stdout)) == (0, [])
    assert _shell(home, '"$SEXTON" topic show nonsense 2>/dev/full').returncode == 2


def test_append_from_a_closed_stdin_is_refused(home: Path) -> None:
    """A script that lost its input reads an error, and not that nothing was to be appended."""
    topic = "persistent://public/default/orders"
    assert _shell(home, f'"$SEXTON" topic create {topic}').returncode == 0
    ended = _shell(home, f'"$SEXTON" topic append {topic} --file - --json <&-')
    assert ended.returncode == 2, ended.stderr
    error = json.loads(ended.stdout)["error"]
    assert error["message"] == "file: expected a file that can be read, or - for stdin, found '-: Bad file descriptor'"
    assert _shell(home, f'"$SEXTON" topic append {topic} --file - --json </dev/null').returncode == 0


def test_locale_of_ascii_takes_and_shows_every_name(home: Path) -> None:
    """A topic with an umlaut is created, found and shown, whatever the locale can show."""
    poor = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    name = "persistent://public/default/münze"
    created = _shell(home, f'"$SEXTON" topic create {name}', **poor)
    assert created.returncode == 0, created.stderr
    for environ in (poor, poor | {"PYTHONUTF8": ""}, {"PYTHONIOENCODING": "ascii"}):
        shown = _shell(home, f'"$SEXTON" topic show {name}', **environ)
        assert (shown.returncode, "Traceback" in shown.stderr) == (0, False), shown.stderr
    assert json.loads(_shell(home, f'"$SEXTON" topic show {name} --json').stdout)["name"] == name


def test_argument_that_is_no_text_is_refused_as_such(home: Path) -> None:
    """A byte outside the encoding is bad input."""
    ended = _shell(home, '"$SEXTON" topic show "$(printf "persistent://public/default/\\377")" --json')
    assert ended.returncode == 2, ended.stderr
    assert json.loads(ended.stdout)["error"]["field"] == "arguments"


@pytest.mark.parametrize("queue", ["", " ", "a/b", "x" * 65])
def test_worker_of_a_queue_without_a_name_is_refused(home: Path, queue: str) -> None:
    """Temporal would refuse it in words of its own, from deep within."""
    ended = _shell(home, f'"$SEXTON" worker run --json --queue "{queue}"')
    assert ended.returncode == 2, ended.stderr
    assert json.loads(ended.stdout)["error"]["field"] == "queue"


def test_home_whose_path_has_a_comma_is_refused_by_name(tmp_path: Path) -> None:
    """The object store would take it for two folders; nothing is made."""
    home = tmp_path / "a,b"
    ended = _shell(home, '"$SEXTON" up --free-ports --json')
    assert ended.returncode == 2, ended.stderr
    assert json.loads(ended.stdout)["error"]["field"] == "home"
    assert not home.exists()


def test_interrupt_of_an_append_is_one_sentence_one_document_and_130(home: Path) -> None:
    """A real SIGINT, while the process waits for lines: none was written, and the document says so."""
    append = subprocess.Popen(
        [str(_SEXTON), "topic", "append", "persistent://public/default/orders", "--file", "-", "--json"],
        env={**os.environ, "SEXTON_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert append.stdin
    append.stdin.write("\n" * 200_000)  # more than a pipe holds
    append.stdin.flush()  # returns once the process reads
    append.send_signal(signal.SIGINT)
    assert append.wait(timeout=60) == 130
    told, said = append.communicate()
    assert append.returncode == 130, said
    document = json.loads(told)
    assert document["error"]["type"] == "Interrupted"
    assert (document["count"], document["last"], document["written_to_line"]) == (0, None, 0)
    assert said.count("interrupted") == 1
    assert "Traceback" not in said
