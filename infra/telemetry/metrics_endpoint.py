"""Listening addresses of a process, and the Prometheus endpoint for the metrics of Temporal and Sexton.

Temporal's metrics keep the SDK's default names and units (milliseconds, counters without `_total`), because Temporal's
published dashboards read these names. Sexton's names end with the unit or with `_total`.

Source: temporalio/dashboards, sdk/temporal-core-sdks-otel.json.
"""

import errno
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from logstore.errors import InvalidInput

if TYPE_CHECKING:
    from temporalio.runtime import Runtime

_MAX_PORT_ATTEMPTS: Final = 10  # another process may take a free port between its choice and its use


def resolve_ip_address_and_port(setting: str, address: str) -> tuple[str, int]:
    """Return the IP address, preferably IPv4, and the port of `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        candidates = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidInput(setting, expected=f"a host that is known ({error})", found=address) from error
    # The stack listens at 127.0.0.1, so `localhost` must not become ::1.
    preferred = min(candidates, key=lambda candidate: candidate[0] != socket.AF_INET)
    return str(preferred[4][0]), int(port)


def find_free_port(setting: str, host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise InvalidInput(setting, expected=f"a host of this machine ({error})", found=host) from error
        return int(probe.getsockname()[1])


def format_host_port(host: str, port: int) -> str:
    """Return `host:port` for a URL, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_ACTIVITY_WAIT_METRIC: Final = "temporal_activity_schedule_to_start_latency"
_ACTIVITY_WAIT_BUCKETS_MS: Final = (
    100.0,
    500.0,
    1_000.0,
    5_000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    1_000_000.0,
)
"""Upper bounds of the histogram of activity waits. The SDK's own histogram has no bound between 10 s and 100 s: there,
Prometheus would show a wait of 11 s as 95 s, and the alert on waits of a minute would fire."""

_PORT_TAKEN_TEXT = f"os error {errno.EADDRINUSE}"  # in the message of the SDK's core
_SETTING_NAME = "metrics_address"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsEndpoint:
    """Running endpoint. It lives as long as `runtime`, which the process's Temporal client must use."""

    runtime: "Runtime"
    url: str


def start_metrics_endpoint(address: str, *, buckets: Mapping[str, Sequence[float]] | None = None) -> MetricsEndpoint:
    """Serve `/metrics` from a new Temporal runtime. Call once in a process, before the process creates a client.

    Port 0 means any free port. If the port is taken, a free port is used and a warning is logged, because several
    workers on one machine have the same setting. `buckets` has the upper bounds of each histogram by metric name,
    ascending and inclusive.

    Raises:
        InvalidInput: The host is not an address of this machine, or this user may not use the port.
    """
    host, wanted_port = resolve_ip_address_and_port(_SETTING_NAME, address)
    port = wanted_port or find_free_port(_SETTING_NAME, host)
    for _ in range(_MAX_PORT_ATTEMPTS):
        runtime = _try_to_start_runtime(address, host, port, buckets)
        if runtime is not None:
            if wanted_port not in {0, port}:
                _log.warning("metrics: port %s is taken, so they are at port %s", wanted_port, port)
            return MetricsEndpoint(runtime=runtime, url=f"http://{format_host_port(host, port)}/metrics")
        port = find_free_port(_SETTING_NAME, host)
    raise InvalidInput(_SETTING_NAME, expected="an address with a free port", found=address)


def _try_to_start_runtime(
    address: str, host: str, port: int, buckets: Mapping[str, Sequence[float]] | None
) -> "Runtime | None":
    from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig  # noqa: PLC0415 - start-up time

    config = PrometheusConfig(
        bind_address=format_host_port(host, port),
        histogram_bucket_overrides={_ACTIVITY_WAIT_METRIC: _ACTIVITY_WAIT_BUCKETS_MS, **(buckets or {})},
    )
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=config))
    except ValueError as error:
        if _PORT_TAKEN_TEXT in str(error):
            return None
        raise InvalidInput(_SETTING_NAME, expected=f"an address to listen at ({error})", found=address) from error
