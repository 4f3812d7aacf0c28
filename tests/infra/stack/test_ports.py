"""Choosing ports: what is asked for, what was used before, and what is free."""

import socket
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from infra.stack.service_port_choice import (
    ALL_SERVICES,
    LOOPBACK,
    PORT_NAMES_BY_SERVICE,
    SEAWEEDFS,
    TEMPORAL,
    ZOOKEEPER,
    ChosenPorts,
    RequestedPorts,
    choose_ports,
    read_last_ports,
    write_ports,
)
from infra.stack.stack_home import StackHome
from logstore.errors import InvalidInput, ServiceFailed

_FREE = RequestedPorts.any_free()


def _choose(wanted: RequestedPorts = _FREE, earlier: ChosenPorts | None = None) -> ChosenPorts:
    return choose_ports(wanted, services=ALL_SERVICES, running_services=(), last_ports=earlier)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server((LOOPBACK, 0)) as server:
        yield int(server.getsockname()[1])


def test_choice_of_free_ports_is_distinct_and_bindable() -> None:
    """Every port of the stack is chosen, no two are the same, and each can be listened on afterwards."""
    ports = list(asdict(_choose()).values())
    assert len(set(ports)) == sum(len(names) for names in PORT_NAMES_BY_SERVICE.values()) == 13
    for port in ports:
        socket.create_server((LOOPBACK, port)).close()


def test_choice_of_free_ports_avoids_the_ephemeral_range() -> None:
    """No outgoing connection can take a chosen port before its server does."""
    floor = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(10_000 <= port < floor for port in asdict(_choose()).values())


def test_choice_without_room_below_the_ephemeral_range_still_finds_ports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a system whose ephemeral range starts low, the system picks."""
    low = tmp_path / "range"
    low.write_text("10000 60999", encoding="ascii")
    monkeypatch.setattr("infra.stack.service_port_choice._EPHEMERAL_RANGE", low)
    ports = list(asdict(_choose()).values())
    assert all(ports)
    assert len(set(ports)) == 13


def test_choice_after_an_earlier_start_repeats_it() -> None:
    """Addresses that were handed to other tools stay true across restarts."""
    earlier = _choose()
    assert _choose(earlier=earlier) == earlier


def test_choice_with_an_earlier_port_taken_replaces_only_that(taken: int) -> None:
    """One stolen port does not move the others."""
    earlier = replace(_choose(), filer=taken)
    again = _choose(earlier=earlier)
    assert again.filer != taken
    assert replace(again, filer=taken) == earlier


def test_wanted_port_that_is_free_is_used_as_it_is() -> None:
    """A number asked for beats the one of the last start."""
    earlier, other = _choose(), _choose()
    assert _choose(replace(_FREE, s3=other.s3), earlier).s3 == other.s3


@pytest.mark.parametrize(("name", "service"), [("temporal", TEMPORAL), ("s3", SEAWEEDFS), ("zookeeper", ZOOKEEPER)])
def test_wanted_port_that_is_taken_is_named_with_advice(name: str, service: str, taken: int) -> None:
    """A taken port is one sentence that names it and offers `--free-ports`."""
    with pytest.raises(ServiceFailed, match=f"^{service}: port {taken} on 127.0.0.1 is taken; .*--free-ports"):
        _choose(replace(_FREE, **{name: taken}))


def test_wanted_port_named_twice_tells_both_settings() -> None:
    """Two services cannot share a port; the sentence says which setting collides."""
    number = _choose().s3
    with pytest.raises(ServiceFailed, match=f"port {number} .* is taken by the setting for temporal"):
        _choose(replace(_FREE, temporal=number, s3=number))


def test_running_service_keeps_its_ports_whatever_is_wanted(taken: int) -> None:
    """A second `up` neither moves a running server nor finds its own port taken."""
    earlier = replace(_choose(), zookeeper=taken)
    wanted = replace(_FREE, zookeeper=taken)
    again = choose_ports(wanted, services=ALL_SERVICES, running_services=(ZOOKEEPER,), last_ports=earlier)
    assert again == earlier


def test_service_that_died_in_a_stack_in_use_comes_back_where_it_was() -> None:
    """Workers that run dial the address that they were started with; no other one is of use to them."""
    earlier = _choose(_FREE)
    again = choose_ports(
        RequestedPorts(), services=ALL_SERVICES, running_services=(), last_ports=earlier, is_stack_in_use=True
    )
    assert again == earlier
    first = choose_ports(_FREE, services=(ZOOKEEPER,), running_services=(), last_ports=None)
    more = choose_ports(
        replace(_FREE, s3=first.zookeeper + 1),
        services=ALL_SERVICES,
        running_services=(ZOOKEEPER,),
        last_ports=first,
        is_stack_in_use=True,
    )
    assert more.s3 == first.zookeeper + 1  # never had one: as wanted


def test_service_left_out_needs_no_port(taken: int) -> None:
    """A stack of one service does not trip over the ports of the others, nor lose their record."""
    wanted = replace(_FREE, temporal=taken)
    alone = choose_ports(wanted, services=(ZOOKEEPER,), running_services=(), last_ports=None)
    assert {name for name, number in asdict(alone).items() if number} == {"zookeeper"}
    whole = _choose()
    assert choose_ports(_FREE, services=(ZOOKEEPER,), running_services=(), last_ports=whole) == whole


def test_record_of_ports_read_back_is_the_same(tmp_path: Path) -> None:
    """Ports survive the process that chose them; fields of a newer build are passed over."""
    home = StackHome.at(tmp_path)
    home.create_directories_and_check_space()
    assert read_last_ports(home) is None
    ports = _choose()
    write_ports(home, ports)
    assert read_last_ports(home) == ports
    home.write_file(home.ports_file, '{"zookeeper": 7, "teleporter": 9}')
    assert read_last_ports(home) == ChosenPorts(zookeeper=7)


@pytest.mark.parametrize("number", [-1, 65_536])
def test_wanted_port_out_of_range_is_refused(number: int) -> None:
    """What no port can be is bad input, named by its setting."""
    with pytest.raises(InvalidInput, match=f"s3_port: expected 0 to 65535, found {number}"):
        RequestedPorts(s3=number)
