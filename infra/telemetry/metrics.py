"""The Prometheus endpoint of one process: Temporal's SDK metrics and ours, at one address.

Units and names of Temporal's metrics are left at its defaults (milliseconds, counters without `_total`), which is
what its published dashboards for this SDK read; ours say `_total` and their unit in the name.

Counters of deletion are made in `activities/deletion/metrics.py`, the histogram of broadcasts in
`activities/transactions/coordination.py`, gauges of what is left and of dead letters in
`workers/hosting/gauges.py`, those of ownership in `workers/hosting/ownership_telemetry.py`.

Source: temporalio/dashboards, sdk/temporal-core-sdks-otel.json.
"""

import errno
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.telemetry.addresses import TRIES, free_port, joined, resolved
from logstore.errors import InvalidInput

if TYPE_CHECKING:
    from temporalio.runtime import Runtime

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
            that the SDK has for milliseconds.

    Raises:
        InvalidInput: The host is none of this machine, or the port may not be used by this user.
    """
    host, port = resolved(_SETTING, address)
    wanted = port or free_port(_SETTING, host)
    for _ in range(TRIES):
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

    served = PrometheusConfig(bind_address=joined(host, port), histogram_bucket_overrides=buckets)
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=served))
    except ValueError as error:
        if _TAKEN in str(error):
            return None
        raise InvalidInput(_SETTING, expected=f"an address to listen at ({error})", found=address) from error
