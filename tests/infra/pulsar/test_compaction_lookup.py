"""State of compacted topics in brokers that never load a topic because of a question."""

from collections.abc import Iterator
from typing import Any

import pytest

from infra.pulsar.broker_admin import AdminRequestFailed, BrokerAdmin, BrokerAdminAddress
from infra.pulsar.broker_registrations import RegisteredBroker
from infra.pulsar.compaction_lookup import LoadedTopics, TopicCompaction
from tests.infra.pulsar.fake_admin import NOT_FOUND, FakeAdmin, serve_admin

_STATISTICS = "/admin/v2/broker-stats/topics"
_TOPIC = "persistent://acme/orders/a b"
_PATH = "/admin/v2/persistent/acme/orders/a%20b"


def _statistics(*topics: str) -> dict[str, Any]:
    return {"acme/orders": {"0x00000000_0xffffffff": {"persistent": {topic: {} for topic in topics}}}}


@pytest.fixture
def server() -> Iterator[FakeAdmin]:
    answers = {
        _STATISTICS: _statistics(_TOPIC),
        f"{_PATH}/internalStats": {"compactedLedger": {"ledgerId": 17}},
        f"{_PATH}/compaction": {"status": "SUCCESS"},
    }
    with serve_admin(answers) as admin:
        yield admin


def _loaded_topics(server: FakeAdmin, *other_urls: str) -> LoadedTopics:
    brokers = [RegisteredBroker("b", url, "") for url in (server.url, *other_urls)]
    return LoadedTopics(BrokerAdmin(BrokerAdminAddress(url=server.url), brokers, sleep=lambda _: None), brokers)


def test_a_loaded_topic_shows_its_compacted_ledger(server: FakeAdmin) -> None:
    assert _loaded_topics(server).find_compaction(_TOPIC) == TopicCompaction(17, is_running=False)
    server.answers[f"{_PATH}/internalStats"] = {"compactedLedger": {"ledgerId": -1}}
    server.answers[f"{_PATH}/compaction"] = {"status": "RUNNING"}
    assert _loaded_topics(server).find_compaction(_TOPIC) == TopicCompaction(None, is_running=True)


@pytest.mark.parametrize("statuses", [("RUNNING", "SUCCESS"), ("SUCCESS", "RUNNING")])
def test_a_compaction_that_begins_or_ends_meanwhile_is_running(server: FakeAdmin, statuses: tuple[str, str]) -> None:
    server.answers[f"{_PATH}/compaction"] = [(200, f'{{"status":"{status}"}}') for status in statuses]
    assert _loaded_topics(server).find_compaction(_TOPIC) == TopicCompaction(17, is_running=True)


def test_a_topic_that_no_broker_has_loaded_is_not_asked_for(server: FakeAdmin) -> None:
    server.answers[_STATISTICS] = _statistics("persistent://acme/orders/c")
    with serve_admin({_STATISTICS: _statistics(_TOPIC)}) as other:
        topics = _loaded_topics(server, other.url)
        assert topics.find_compaction("persistent://acme/orders/d") is None
        assert {path for path, _ in [*server.requests, *other.requests]} == {_STATISTICS}
        assert topics.find_compaction(_TOPIC) == TopicCompaction(17, is_running=False)


def test_a_topic_of_pulsar_1_has_no_state(server: FakeAdmin) -> None:
    topic = "persistent://acme/east/orders/a"
    server.answers[_STATISTICS] = _statistics(topic)
    assert _loaded_topics(server).find_compaction(topic) is None
    assert {path for path, _ in server.requests} == {_STATISTICS}


def test_a_topic_that_was_deleted_meanwhile_is_not_loaded(server: FakeAdmin) -> None:
    server.answers[f"{_PATH}/internalStats"] = NOT_FOUND
    assert _loaded_topics(server).find_compaction(_TOPIC) is None


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (_STATISTICS, (500, "")),
        (_STATISTICS, {"acme/orders": []}),
        (_STATISTICS, {"acme/orders": {"0x": {"persistent": []}}}),
        (f"{_PATH}/internalStats", (500, "")),
        (f"{_PATH}/internalStats", (404, "<html>")),
        (f"{_PATH}/internalStats", {}),
        (f"{_PATH}/internalStats", {"compactedLedger": {"ledgerId": True}}),
        (f"{_PATH}/internalStats", {"compactedLedger": {"ledgerId": "17"}}),
        (f"{_PATH}/compaction", {"status": None}),
    ],
)
def test_what_cannot_be_read_is_an_error_and_never_nothing(server: FakeAdmin, path: str, answer: object) -> None:
    server.answers[path] = answer
    with pytest.raises(AdminRequestFailed, match=path.replace("?", ".")):
        _loaded_topics(server).find_compaction(_TOPIC)
