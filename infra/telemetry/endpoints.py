"""Where a process lets others look at it: its addresses, and the Prometheus endpoint of Temporal's metrics and ours.

Units and names of Temporal's metrics are left at its defaults (milliseconds, counters without `_total`), which is
what its published dashboards for this SDK read; ours say `_total` and their unit in the name.

Counters of deletion are made in `activities/deletion/metrics.py`, the histogram of broadcasts in
`activities/transactions/coordination.py`, gauges of what is left and of dead letters in
`workers/hosting/gauges.py`, those of ownership in `workers/hosting/ownership_telemetry.py`.

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

_TRIES: Final = 10  # a free port may be taken between being found and being used


def resolved(setting: str, address: str) -> tuple[str, int]:
    """The address of the host and the port that `host:port` means; 0 is any free port.

    Raises:
        InvalidInput: The host is not known; names the setting.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidInput(setting, expected=f"a host that is known ({error})", found=address) from error
    first = min(found, key=lambda one: one[0] != socket.AF_INET)  # `localhost` is 127.0.0.1, as for the stack
    return str(first[4][0]), int(port)


def free_port(setting: str, host: str) -> int:
    """A port of the host that nothing listened at just now.

    Raises:
        InvalidInput: The host is none of this machine; names the setting.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise InvalidInput(setting, expected=f"a host of this machine ({error})", found=host) from error
        return int(probe.getsockname()[1])


def joined(host: str, port: int) -> str:
    """`host:port` as it stands in an URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_WAITING: Final = "temporal_activity_schedule_to_start_latency"
_WAITING_MS: Final = (100.0, 500.0, 1_000.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0, 300_000.0, 1_000_000.0)
"""Bounds for how long activities wait. The alert on a minute needs one there: the SDK has none between 10 s and 100 s,
and a wait of 11 s would be interpolated to 95 s."""

_TAKEN = f"os error {errno.EADDRINUSE}"  # how the SDK's core words it
_SETTING = "metrics_address"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """A running endpoint. It lives as long as `runtime`, with which the process's client must be made."""

    runtime: "Runtime"
    url: str


def start_metrics(address: str, *, buckets: Mapping[str, Sequence[float]] | None = None) -> Metrics:
    """Serve `/metrics` from a Temporal runtime of its own; call it once in a process, before any client is made.

    Args:
        address: `host:port`; port 0 is any free one. A port that is taken gives way to a free one, with a warning:
            several workers on one machine are told the same address.
        buckets: Of histograms, by name, the upper bounds of their buckets, inclusive and ascending; others have those
            that the SDK has for milliseconds, but for how long activities wait.

    Raises:
        InvalidInput: The host is none of this machine, or the port may not be used by this user.
    """
    host, port = resolved(_SETTING, address)
    wanted = port or free_port(_SETTING, host)
    for _ in range(_TRIES):
        runtime = _runtime(address, host, wanted, buckets)
        if runtime is not None:
            if port not in {0, wanted}:
                _log.warning("metrics: port %s is taken, so they are at port %s", port, wanted)
            return Metrics(runtime=runtime, url=f"http://{joined(host, wanted)}/metrics")
        wanted = free_port(_SETTING, host)
    raise InvalidInput(_SETTING, expected="an address with a free port", found=address)


def _runtime(address: str, host: str, port: int, buckets: Mapping[str, Sequence[float]] | None) -> "Runtime | None":
    """A runtime that listens there, or None when the port is taken."""
    from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig  # noqa: PLC0415 - start-up time

    served = PrometheusConfig(
        bind_address=joined(host, port), histogram_bucket_overrides={_WAITING: _WAITING_MS, **(buckets or {})}
    )
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=served))
    except ValueError as error:
        if _TAKEN in str(error):
            return None
        raise InvalidInput(_SETTING, expected=f"an address to listen at ({error})", found=address) from error
