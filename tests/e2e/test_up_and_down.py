"""`up` and `down` of homes with odd names, of starts that fail half way, and what is left of data."""

import pytest

from tests.e2e.shell import Shell

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(420)]

_ODD = 'h\'o "m" ü ' + "x" * 110
_TOPIC = "persistent://public/default/orders"


def test_up_in_a_home_with_an_odd_long_name_works_and_a_start_that_fails_is_undone(shell: Shell) -> None:
    """A start that fails half way stops what it started, and nothing else; `down` and `up` keep what was appended."""
    home = ("--home", _ODD)
    elsewhere = shell.but(SEXTON_TEMPORAL_NAMESPACE="nowhere")
    assert "nowhere" in elsewhere.json("up", "--free-ports", *home, code=4)["error"]["message"]
    assert shell.left_running() == []
    up = shell.json("up", "--free-ports", *home)
    assert len(up["worker_pids"]) == 1
    elsewhere.json("up", "--free-ports", *home, code=4)
    assert shell.json("up", "--free-ports", *home) == up, "what ran before runs on"
    shell.json("topic", "create", _TOPIC, *home)
    appended = shell.json("topic", "append", _TOPIC, *home, "--file", "-", stdin='{"payload": "v"}\n')
    shell.json("down", *home)
    assert shell.left_running() == []
    shell.json("up", "--no-worker", "--free-ports", *home)
    assert [entry["position"] for entry in shell.json("topic", "read", _TOPIC, *home)] == [appended["first"]]
    shell.json("down", *home)
    assert shell.left_running() == []
