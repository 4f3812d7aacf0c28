"""Embedded ZooKeeper server, which runs from the jars of PySpark."""

import os
from importlib.util import find_spec
from pathlib import Path

from infra.stack.java_search import find_java
from infra.stack.service_lifecycle import (
    EmbeddedService,
    ServerCommand,
    ServiceHealth,
    build_child_environment,
    query_local_port,
)
from infra.stack.service_port_choice import LOOPBACK, ZOOKEEPER, ChosenPorts
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore.errors import ServiceFailed

_JAR_PREFIXES = ("zookeeper", "slf4j", "log4j", "netty", "snappy", "metrics-core")
_CONFIG = """\
tickTime=500
dataDir=./data
clientPort={port}
clientPortAddress={address}
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""


def define_zookeeper_service(home: StackHome, ports: ChosenPorts) -> EmbeddedService:
    return EmbeddedService(
        process=ServiceProcess(ZOOKEEPER, home),
        command=lambda: _write_config_and_build_command(home, ports),
        probe=lambda: _probe_zookeeper(ports),
        start_timeout_s=60.0,  # normally below 1 s
        stop_timeout_s=10.0,
    )


def _write_config_and_build_command(home: StackHome, ports: ChosenPorts) -> ServerCommand:
    # Paths are relative to the working directory, because a properties file would need them escaped.
    home.write_file(home.zookeeper / "zoo.cfg", _CONFIG.format(port=ports.zookeeper, address=LOOPBACK))
    argv = (
        str(find_java().path),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",  # full compilation doubles the work of a start and never pays off here
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.net.preferIPv4Stack=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dlog4j2.level=WARN",
        f"-Djava.io.tmpdir={home.scratch}",
        "-cp",
        build_class_path(),
        "org.apache.zookeeper.server.ZooKeeperServerMain",
        "zoo.cfg",
    )
    # Java decodes file names by the locale. In the C locale it cannot open a home with a non-ASCII path.
    return ServerCommand(argv=argv, cwd=home.zookeeper, env=build_child_environment("ZOO") | {"LC_ALL": "C.UTF-8"})


def _probe_zookeeper(ports: ChosenPorts) -> ServiceHealth:
    try:
        is_ok = query_local_port(ports.zookeeper, b"ruok") == b"imok"
        lines = query_local_port(ports.zookeeper, b"srvr").decode("utf-8", "replace").splitlines() if is_ok else []
    except OSError as fault:
        return ServiceHealth(name=ZOOKEEPER, ok=False, detail=f"does not answer on port {ports.zookeeper}: {fault}")
    mode = next((line for line in lines if line.startswith("Mode:")), None)
    if mode is None:
        return ServiceHealth(name=ZOOKEEPER, ok=False, detail=f"listens on port {ports.zookeeper} but does not serve")
    version = lines[0].removeprefix("Zookeeper version: ").split("-")[0]
    return ServiceHealth(name=ZOOKEEPER, ok=True, detail=f"server {version} on {LOOPBACK}:{ports.zookeeper}")


def build_class_path() -> str:
    """Return a class path with only the server's jars. All jars of Spark would double the time of a start."""
    jars = _find_jars_directory()
    return os.pathsep.join(str(jar) for prefix in _JAR_PREFIXES for jar in sorted(jars.glob(f"{prefix}-*.jar")))


def _find_jars_directory() -> Path:
    spec = find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        jars = Path(location) / "jars"
        if any(jars.glob("zookeeper-3*.jar")):
            return jars
    raise ServiceFailed(
        ZOOKEEPER, "the installed pyspark brings no ZooKeeper jars", advice="install it with `pip install pyspark`"
    )
