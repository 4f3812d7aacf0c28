"""ZooKeeper, run from the jars that PySpark brings."""

import os
from importlib.util import find_spec
from pathlib import Path

from infra.stack.home import StackHome
from infra.stack.java import find_java
from infra.stack.ports import LOOPBACK, ZOOKEEPER, ChosenPorts
from infra.stack.process import ServiceProcess
from infra.stack.service import Command, Service, ServiceHealth, ask, child_environment
from logstore.errors import ServiceFailed

_NEEDED = ("zookeeper", "slf4j", "log4j", "netty", "snappy", "metrics-core")
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


def zookeeper_service(home: StackHome, ports: ChosenPorts) -> Service:
    """The coordination service of a stack."""
    return Service(
        process=ServiceProcess(ZOOKEEPER, home),
        command=lambda: _command(home, ports),
        probe=lambda: _probe(ports),
        start_timeout_s=60.0,  # below a second as a rule
        stop_timeout_s=10.0,
    )


def _command(home: StackHome, ports: ChosenPorts) -> Command:
    # Paths are relative to the working directory: a properties file cannot carry every path as it is.
    home.write(home.zookeeper / "zoo.cfg", _CONFIG.format(port=ports.zookeeper, address=LOOPBACK))
    argv = (
        str(find_java().path),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",  # half the work of a start goes into code that the little it has to do never repays
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.net.preferIPv4Stack=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dlog4j2.level=WARN",
        f"-Djava.io.tmpdir={home.scratch}",
        "-cp",
        _class_path(),
        "org.apache.zookeeper.server.ZooKeeperServerMain",
        "zoo.cfg",
    )
    # Java reads file names by the locale, and in the C locale finds no home whose path is not ASCII.
    return Command(argv=argv, cwd=home.zookeeper, env=child_environment("ZOO") | {"LC_ALL": "C.UTF-8"})


def _probe(ports: ChosenPorts) -> ServiceHealth:
    """Whether the server says that it is fit and serves requests."""
    try:
        fit = ask(ports.zookeeper, b"ruok") == b"imok"
        lines = ask(ports.zookeeper, b"srvr").decode("utf-8", "replace").splitlines() if fit else []
    except OSError as fault:
        return ServiceHealth(name=ZOOKEEPER, ok=False, detail=f"does not answer on port {ports.zookeeper}: {fault}")
    mode = next((line for line in lines if line.startswith("Mode:")), None)
    if mode is None:
        return ServiceHealth(name=ZOOKEEPER, ok=False, detail=f"listens on port {ports.zookeeper} but does not serve")
    version = lines[0].removeprefix("Zookeeper version: ").split("-")[0]
    return ServiceHealth(name=ZOOKEEPER, ok=True, detail=f"server {version} on {LOOPBACK}:{ports.zookeeper}")


def _class_path() -> str:
    """The server's own jars: to open all that Spark needs as well takes Java as long as the rest of the start."""
    return os.pathsep.join(str(jar) for needed in _NEEDED for jar in sorted(_jars().glob(f"{needed}-*.jar")))


def _jars() -> Path:
    spec = find_spec("pyspark")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        jars = Path(location) / "jars"
        if any(jars.glob("zookeeper-3*.jar")):
            return jars
    raise ServiceFailed(
        ZOOKEEPER, "the installed pyspark brings no ZooKeeper jars", advice="install it with `pip install pyspark`"
    )
