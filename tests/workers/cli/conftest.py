"""Runs `sexton` in this process against fakes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.workers.cli.fakes import ORDERS_TOPIC, FakeCommandServices
from workers.cli import app

Run = Callable[..., Result]


@pytest.fixture
def services(tmp_path: Path) -> FakeCommandServices:
    """What stands behind the command line."""
    return FakeCommandServices(tmp_path)


@pytest.fixture
def run(services: FakeCommandServices) -> Run:
    """Run a command line; `text` goes to stdin."""

    def call(*args: str, text: str | bytes = "") -> Result:
        return CliRunner().invoke(app, list(args), obj=services, input=text)

    return call


@pytest.fixture
def orders(run: Run) -> str:
    """The name of a topic that exists."""
    assert run("topic", "create", ORDERS_TOPIC).exit_code == 0
    return ORDERS_TOPIC


def document(result: Result, code: int = 0) -> Any:
    """The one JSON document on stdout, after checking the exit code; of one thing that is done, without its trace."""
    assert result.exit_code == code, result.output
    told = json.loads(result.stdout)
    if code == 0 and isinstance(told, dict):
        told.pop("trace_id", None)
    return told
