"""Filters of lists: what they leave, and what is said where they name what does not exist."""

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.validated_names import TopicName
from tests.activities.activity_world import TOPIC_NAME, World
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from tests.workers.cli.test_ledger_explain import world
from workers.cli.workflows_and_schedules import WorkflowType
from workers.hosting.temporal_workers import WORKFLOWS

__all__ = ["world"]

_NONE = "persistent://public/default/none"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("audit", "list", "--topic", _NONE), f"no destructive act of topic {_NONE}: there is no topic of this name"),
        (("audit", "list", "--ledger", "99"), "no destructive act of ledger 99: there is no ledger of this id"),
        (("audit", "list", "--topic", TOPIC_NAME), f"no destructive act of topic {TOPIC_NAME}"),
        (("deletion", "list", "--topic", _NONE), f"no deletion of topic {_NONE}: there is no topic of this name"),
        (("deletion", "list", "--ledger", "0", "--state", "DELETED"), "no DELETED deletion of ledger 0"),
        (
            ("deletion", "list", "--topic", _NONE, "--ledger", "99"),
            f"no deletion of topic {_NONE} and ledger 99: there is no topic of this name and no ledger of this id",
        ),
        (
            ("ledger", "list", TOPIC_NAME, "--component", "SCHEMA_STORAGE"),
            f"no ledger of topic {TOPIC_NAME} is of component SCHEMA_STORAGE",
        ),
    ],
)
def test_filter_that_leaves_nothing_says_why_in_one_sentence(
    run: Run, world: World, line: tuple[str, ...], told: str
) -> None:
    """On stderr, for people and for scripts, whose document stays one."""
    world.fill(1)
    machine = run(*line, "--json")
    assert document(machine) == []
    assert machine.stderr.splitlines() == [told]
    assert run(*line).stderr.splitlines() == [told]


def test_list_without_a_filter_says_nothing_beside_it(run: Run, world: World) -> None:
    """An empty store is no mistake."""
    for line in (
        ("audit", "list"),
        ("deletion", "list"),
        ("deletion", "list", "--state", "DELETED"),
    ):
        assert run(*line, "--json").stderr == ""


def test_deletions_are_listed_by_topic_and_by_ledger(run: Run, world: World) -> None:
    """What left the list a moment ago."""
    world.fill(3)
    world.detach()
    gone = document(run("deletion", "list", "--topic", TOPIC_NAME, "--json"))
    assert len(gone) >= 2
    (one,) = document(run("deletion", "list", "--topic", TOPIC_NAME, "--ledger", str(gone[0]["ledger_id"]), "--json"))
    assert one == gone[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--type", "trim-topic"), "Temporal knows no workflow of type trim-topic"),
        (("--topic", TOPIC_NAME, "--status", "Failed"), f"Temporal knows no Failed workflow of topic {TOPIC_NAME}"),
        ((), "completed runs of recurring jobs are left out: --all shows them"),
    ],
)
def test_workflows_that_nobody_knows_are_said(
    run: Run, services: FakeCommandServices, options: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal has no word for what it has never seen."""

    async def none(*asked: object, **more: object) -> list[object]:
        return []

    monkeypatch.setattr(services.client, "list_workflows", none)
    answer = run("workflow", "list", *options, "--json")
    assert (document(answer), answer.stderr.splitlines()) == ([], [told])


@pytest.mark.parametrize(("options", "shown"), [((), False), (("--all",), True), (("--type", "sweep-records"), True)])
def test_completed_runs_of_recurring_jobs_are_listed_where_they_are_asked_for(
    run: Run, services: FakeCommandServices, options: tuple[str, ...], shown: bool
) -> None:
    """By --all, or by their type."""
    assert run("workflow", "list", *options).exit_code == 0
    assert services.client.finished_recurring == [shown]


def test_types_of_workflows_are_those_that_workers_run() -> None:
    """A type that is none is refused by the parser, which knows them all."""
    names = {vars(one)["__temporal_workflow_definition"].name for one in WORKFLOWS}
    assert {kind.value for kind in WorkflowType} == names


def _topics(services: FakeCommandServices, *names: str) -> None:
    for name in names:
        services.log.catalog.topics.create_topic(TopicName.parse(name).encoded, RetentionPolicy())


def test_topics_are_filtered_and_paged(run: Run, services: FakeCommandServices) -> None:
    """Pages go on behind the last name, and each but the last says how."""
    names = [f"persistent://shop/{space}/t {number}" for space in ("a", "b") for number in range(3)]
    _topics(services, *names)

    def listed(*options: str) -> list[str]:
        return [one["name"] for one in document(run("topic", "list", *options, "--json"))]

    assert listed() == names
    assert listed("--prefix", "persistent://shop/b/") == names[3:]
    assert listed("--prefix", "persistent://shop/b/", "--after", names[3], "--limit", "1") == names[4:5]
    assert listed("--state", "DELETING") == []
    cut = run("topic", "list", "--limit", "2", "--json")
    assert [one["name"] for one in document(cut)] == names[:2]
    assert cut.stderr.splitlines() == [f"there are 4 more: go on with --after {names[1]}"]
    pages = [*names[:2], *listed("--after", names[1], "--limit", "2"), *listed("--after", names[3])]
    assert pages == names
    nothing = run("topic", "list", "--prefix", "persistent://none/", "--json")
    assert (document(nothing), nothing.stderr.splitlines()) == ([], ["no topic's name begins with persistent://none/"])


def test_topics_are_listed_with_their_subscriptions(run: Run, orders: str) -> None:
    """Beneath each topic, with how far each is behind."""
    run("topic", "append", orders, "--file", "-", text='{"payload": "a"}\n{"payload": "b"}\n')
    run("topic", "subscribe", orders, "billing", "--from", "earliest")
    assert "    billing is 2 behind" in run("topic", "list").stdout.splitlines()
