"""What a worker's readiness probe says, as gauges: each worker for itself."""

import asyncio
from typing import Final

from temporalio.common import MetricMeter

from workers.hosting.readiness import Readiness

_EVERY_S: Final = 5.0


class ReadinessGauges:
    """`sexton_worker_ready`, and `sexton_worker_check_ok` by `check`."""

    def __init__(self, meter: MetricMeter, readiness: Readiness) -> None:
        """Take the meter of the process's runtime, and what its probes are told."""
        self._readiness = readiness
        self._ready = meter.create_gauge("sexton_worker_ready", "1 while the worker takes work and its services answer")
        self._check = meter.create_gauge("sexton_worker_check_ok", "1 while this check of the worker is well")

    async def run(self) -> None:
        """Show them every few seconds, without end; on the process's event loop, as the readiness is."""
        while True:
            self.read()
            await asyncio.sleep(_EVERY_S)

    def read(self) -> None:
        """Show them once."""
        self._ready.set(int(self._readiness.ready))
        for seen in self._readiness.seen():
            self._check.set(int(seen.ok), {"check": seen.name})
