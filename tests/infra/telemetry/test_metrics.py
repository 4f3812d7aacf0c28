"""The endpoint: where it listens, and what it shows."""

import logging
import re
import socket
import urllib.request

import pytest

from activities.transactions.coordinate_transactions import BROADCAST_SECONDS, HISTOGRAM_BOUNDS_S
from infra.telemetry.metrics_endpoint import start_metrics_endpoint
from logstore.errors import InvalidInput


def _scraped(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
        return str(answer.read(), "utf-8")


def test_metrics_at_any_free_port_say_where_they_are() -> None:
    """Port 0 is any free one, and what the runtime counts is read there."""
    metrics = start_metrics_endpoint("127.0.0.1:0")
    metrics.runtime.metric_meter.create_counter("sexton_test_total", "A test.").add(3, {"copy": "LEDGER"})
    assert metrics.url.startswith("http://127.0.0.1:")
    assert not metrics.url.endswith(":0/metrics")
    assert 'sexton_test_total{copy="LEDGER",service_name="temporal-core-sdk"} 3' in _scraped(metrics.url)


def test_histogram_has_the_buckets_that_it_was_given() -> None:
    """Inclusive upper bounds: those of the SDK would put all of a second into one."""
    metrics = start_metrics_endpoint("127.0.0.1:0", buckets=HISTOGRAM_BOUNDS_S)
    histogram = metrics.runtime.metric_meter.create_histogram_float(BROADCAST_SECONDS, "A test.", "s")
    for seconds in (0.01, 0.02, 700.0):
        histogram.record(seconds)
    counts = re.findall(rf'{BROADCAST_SECONDS}_bucket{{.*le="(.+)"}} (\d+)', _scraped(metrics.url))
    assert counts[:2] == [("0.01", "1"), ("0.025", "2")]
    assert counts[-2:] == [("600", "2"), ("+Inf", "3")]


def test_waits_of_activities_have_a_bound_at_the_minute_of_their_alert() -> None:
    """Between the bounds of the SDK, 10 s and 100 s, a wait of 11 s would be taken for one of 95 s."""
    name = "temporal_activity_schedule_to_start_latency"
    metrics = start_metrics_endpoint("127.0.0.1:0", buckets=HISTOGRAM_BOUNDS_S)
    metrics.runtime.metric_meter.create_histogram(name, "A test.", "ms").record(11_000)
    counts = dict(re.findall(rf'{name}_bucket{{.*le="(.+)"}} (\d+)', _scraped(metrics.url)))
    assert [counts[bound] for bound in ("10000", "30000", "60000", "300000")] == ["0", "1", "1", "1"]


def test_metrics_at_a_free_port_are_there(caplog: pytest.LogCaptureFixture) -> None:
    """A port that is free is taken as it is, by a name of this machine too, and nothing needs to be said."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    metrics = start_metrics_endpoint(f"localhost:{port}")
    assert metrics.url == f"http://127.0.0.1:{port}/metrics"
    assert _scraped(metrics.url) is not None
    assert caplog.messages == []


def test_metrics_at_a_port_that_is_taken_go_to_a_free_one_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    """Several workers on one machine are told the same port: none of them is kept from starting."""
    first = start_metrics_endpoint("127.0.0.1:0")
    port = first.url.removeprefix("http://127.0.0.1:").removesuffix("/metrics")
    with caplog.at_level(logging.WARNING):
        second = start_metrics_endpoint(f"127.0.0.1:{port}")
    assert second.url != first.url
    assert _scraped(second.url) is not None
    assert f"port {port} is taken" in caplog.text


@pytest.mark.parametrize("address", ["no-such-host.invalid:9464", "192.0.2.1:9464", "192.0.2.1:0"])
def test_metrics_at_a_host_that_is_not_ours_are_refused(address: str) -> None:
    """Only a taken port gives way: a wrong host is bad input, named as the setting that it is."""
    with pytest.raises(InvalidInput, match="metrics_address"):
        start_metrics_endpoint(address)
