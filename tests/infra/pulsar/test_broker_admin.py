"""Requests to the admin API over real HTTP, with the faults that a cluster has."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.pulsar import broker_admin
from infra.pulsar.broker_admin import AdminRequestFailed, BrokerAdmin, BrokerAdminAddress, format_topic_path
from infra.pulsar.broker_registrations import RegisteredBroker
from logstore.errors import InvalidInput
from tests.infra.pulsar.fake_admin import NOT_FOUND, Drip, FakeAdmin, Redirect, serve_admin
from tests.tls_servers import TlsCertificateAuthority

_PATH = "/admin/v2/clusters"
_SECRET = "canary-7c11"


@pytest.fixture
def server() -> Iterator[FakeAdmin]:
    with serve_admin() as admin:
        yield admin


def _client(server: FakeAdmin, *, token_file: str = "", brokers: tuple[RegisteredBroker, ...] = ()) -> BrokerAdmin:
    address = BrokerAdminAddress(url=server.url, token_file=token_file)
    return BrokerAdmin(address, brokers, timeout_s=0.5, sleep=lambda _: None)


def _failure(server: FakeAdmin, path: str = _PATH) -> AdminRequestFailed:
    with pytest.raises(AdminRequestFailed) as failed:
        _client(server).read_json(path, list)
    return failed.value


def test_an_answer_is_parsed_and_its_type_checked(server: FakeAdmin) -> None:
    server.answers[_PATH] = ["east"]
    assert _client(server).read_json(_PATH, list) == ["east"]
    server.answers[_PATH] = (200, "ok")
    assert _client(server).read_text(_PATH) == "ok"
    server.answers[_PATH] = {"east": 1}
    assert "expected a JSON list, found '{\"east\": 1}'" in str(_failure(server))


@pytest.mark.parametrize("body", ["<html>login</html>", "", "[1,", "[" * 100_000, "\xff"])
def test_an_answer_that_is_no_json_is_refused(server: FakeAdmin, body: str) -> None:
    server.answers[_PATH] = (200, body)
    text = str(_failure(server))
    assert text.startswith(f"pulsar_admin_url: GET {_PATH}: expected a JSON list, found '")
    assert "check that pulsar_admin_url is the address of a broker" in text
    assert len(text) < 400


def test_the_token_is_read_for_each_request(server: FakeAdmin, tmp_path: Path) -> None:
    server.answers[_PATH] = ["east"]
    file = tmp_path / "token"
    file.write_text("first\n")
    client = _client(server, token_file=str(file))
    client.read_json(_PATH, list)
    file.write_text("second")
    client.read_json(_PATH, list)
    assert [header for _, header in server.requests] == ["Bearer first", "Bearer second"]
    for content in ("", "é"):
        file.write_text(content)
        with pytest.raises(InvalidInput, match="pulsar_admin_token_file"):
            client.read_json(_PATH, list)
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_token_file_and_hides_the_token(server: FakeAdmin, tmp_path: Path, status: int) -> None:
    server.answers[_PATH] = (status, '{"reason":"Unable to authenticate"}')
    (tmp_path / "token").write_text(_SECRET)
    client = _client(server, token_file=str(tmp_path / "token"))
    with pytest.raises(AdminRequestFailed, match="check pulsar_admin_token_file") as failed:
        client.read_json(_PATH, list)
    assert failed.value.status == status
    assert f"found status {status} (Unable to authenticate)" in str(failed.value)
    assert _SECRET not in str(failed.value)
    assert server.count(_PATH) == 1, "a refusal is not repeated"


def test_only_pulsar_itself_can_say_that_an_object_does_not_exist(server: FakeAdmin) -> None:
    server.answers["/a"] = NOT_FOUND
    assert _client(server).find_json("/a", dict) is None
    for other in ((404, "<html>nginx</html>"), (404, "{}"), (404, "[]")):
        server.answers["/a"] = other
        with pytest.raises(AdminRequestFailed, match=r"found status 404.*check pulsar_admin_url"):
            _client(server).find_json("/a", dict)


def test_internal_errors_are_repeated_a_few_times(server: FakeAdmin) -> None:
    server.answers[_PATH] = [(500, "x"), (503, "y"), (200, '["east"]')]
    assert _client(server).read_json(_PATH, list) == ["east"]
    stack = "\n --- An unexpected error occurred in the server ---\n\nMessage: disk\n\nStacktrace:\n\njava.x\n\tat y"
    server.answers["/b"] = (500, json.dumps({"reason": stack}))
    failure = _failure(server, "/b")
    assert (failure.status, server.count("/b")) == (500, 3)
    assert "found status 500 (disk); see the log of the broker" in str(failure)


def test_a_message_without_text_shows_the_class_of_the_error(server: FakeAdmin) -> None:
    reason = (
        "\n --- An unexpected error occurred in the server ---\n\nMessage: null\n\nStacktrace:\n\njava.Timeout\n\tat x"
    )
    server.answers[_PATH] = (500, json.dumps({"reason": reason}))
    assert "(java.Timeout)" in str(_failure(server))


@pytest.mark.parametrize("answer", [None, Drip()], ids=["silent", "drip"])
def test_an_answer_that_does_not_end_is_given_up(server: FakeAdmin, answer: object) -> None:
    server.answers["/a"] = answer
    with pytest.raises(AdminRequestFailed, match="found no "):
        _client(server).find_json("/a", list, attempts=1)
    assert server.count("/a") == 1


def test_an_answer_that_is_too_long_is_given_up(server: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_admin, "MAX_ANSWER_BYTES", 1_000)
    server.answers[_PATH] = ["x" * 2_000]
    assert "an answer of more than 1,000 bytes" in str(_failure(server))


def test_a_server_that_is_away_is_named_by_the_setting() -> None:
    client = BrokerAdmin(BrokerAdminAddress(url="http://127.0.0.1:1"), sleep=lambda _: None)
    with pytest.raises(AdminRequestFailed, match="found no connection; start the brokers, or correct pulsar_admin_url"):
        client.read_json(_PATH, list)


def test_a_redirect_to_a_registered_broker_gets_the_token(server: FakeAdmin, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(_SECRET)
    with serve_admin({"/b?authoritative=true": ["owner"]}) as owner:
        owner_url = owner.url.replace("127.0.0.1", "localhost")
        server.answers["/a"] = Redirect(f"{owner_url}/b?authoritative=true")
        broker = RegisteredBroker("localhost:1", owner_url, "")
        client = _client(server, token_file=str(tmp_path / "token"), brokers=(broker,))
        assert client.read_json("/a", list) == ["owner"]
        assert owner.requests == [("/b?authoritative=true", f"Bearer {_SECRET}")]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_redirect_elsewhere_is_not_followed(server: FakeAdmin, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "token").write_text(_SECRET)
    with serve_admin({"/b": ["owner"]}) as other:
        host = "localhost" if scheme == "http" else "127.0.0.1"
        target = other.url.replace("http", scheme).replace("127.0.0.1", host)
        server.answers["/a"] = Redirect(f"{target}/b")
        client = _client(server, token_file=str(tmp_path / "token"))
        with pytest.raises(AdminRequestFailed, match=f"found {scheme}://{host}; the token was not sent there"):
            client.read_json("/a", list)
        assert other.requests == []


def test_a_change_is_sent_once_to_the_owner(server: FakeAdmin) -> None:
    with serve_admin({"POST /b": (204, "")}) as owner:
        server.answers["POST /a"] = Redirect(f"{owner.url}/b")
        _client(server).send("POST", "/a")
        assert [len(server.requests), len(owner.requests)] == [1, 1]
        owner.answers["POST /b"] = (500, '{"reason":"busy"}')
        with pytest.raises(AdminRequestFailed, match=r"POST /a: expected success, found status 500 \(busy\)"):
            _client(server).send("POST", "/a")
        assert [len(server.requests), len(owner.requests)] == [2, 2]


def test_redirects_that_go_round_end(server: FakeAdmin) -> None:
    server.answers["/a"] = Redirect("/a")
    assert "more than 5 redirects" in str(_failure(server, "/a"))


def test_a_request_to_one_broker_goes_to_the_address_with_the_scheme_of_the_setting(server: FakeAdmin) -> None:
    with serve_admin({"/a": {}}) as other:
        assert _client(server).read_json("/a", dict, broker=RegisteredBroker("b:1", other.url, "https://b:2")) == {}
        assert (len(server.requests), len(other.requests)) == (0, 1)
    with pytest.raises(InvalidInput, match="expected a scheme that b:1 has, too, found 'http'"):
        _client(server).read_json("/a", dict, broker=RegisteredBroker("b:1", "", "https://b:2"))


def test_tls_trusts_the_authority_of_the_setting(tmp_path: Path) -> None:
    authority = TlsCertificateAuthority(tmp_path)
    with serve_admin({_PATH: ["east"]}, authority.pair("server", "127.0.0.1")) as server:
        trusted = BrokerAdmin(BrokerAdminAddress(url=server.url, ca_file=str(authority.ca)))
        assert trusted.read_json(_PATH, list) == ["east"]
        unknown = BrokerAdmin(BrokerAdminAddress(url=server.url), sleep=lambda _: None)
        with pytest.raises(AdminRequestFailed, match="check pulsar_admin_url and pulsar_admin_ca_file"):
            unknown.read_json(_PATH, list)
    with pytest.raises(InvalidInput, match="pulsar_admin_ca_file: expected certificates of authorities"):
        BrokerAdmin(BrokerAdminAddress(url="https://b", ca_file=str(tmp_path / "absent")))


def test_the_path_of_a_topic_quotes_its_name() -> None:
    assert format_topic_path("persistent://t/ns/b c%+?") == "t/ns/b%20c%25%2B%3F"
    for name in (
        "t/ns/a",
        "persistent://t/c/ns/a",
        "non-persistent://t/ns/a",
        "persistent://t/ns",
        "persistent://t//a",
    ):
        with pytest.raises(InvalidInput, match="topic: expected persistent://tenant/namespace/name"):
            format_topic_path(name)
