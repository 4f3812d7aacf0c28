"""What the readiness probe says is in the metrics as well."""

import asyncio
import time
from contextlib import suppress

from tests.fakes.meter import FakeMeter, metric_series
from workers.hosting.gauges import make_gauge_updater, sample_readiness
from workers.hosting.readiness import Readiness, WorkerPhase


async def _answers() -> None:
    pass


async def _is_away() -> None:
    raise OSError("nobody answers")


def test_readiness_is_shown_by_check_and_as_a_whole() -> None:
    """Before it serves a worker is not ready; then it is, as far as all answer."""
    asyncio.run(_shown_as_it_is())


async def _shown_as_it_is() -> None:
    meter, readiness = FakeMeter(), Readiness(interval_s=0)
    read = make_gauge_updater(meter, lambda: sample_readiness(readiness))
    read()
    assert meter.values[metric_series("sexton_worker_ready")] == 0
    assert 0 <= time.time() - meter.values[metric_series("sexton_worker_start_timestamp_seconds")] < 3600
    readiness.phase = WorkerPhase.SERVING
    for database, ready in ((_answers, 1), (_is_away, 0)):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await readiness.repeat_checks({"temporal": _answers, "database": database})
        read()
        shown = [meter.values[metric_series("sexton_worker_check_ok", check=name)] for name in ("temporal", "database")]
        assert (meter.values[metric_series("sexton_worker_ready")], shown) == (ready, [1, ready])
