"""A real ZooKeeper that knows users by SASL, as its operators set it up."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.stack.embedded_stack import build_class_path
from infra.stack.java_search import find_java
from tests.logstore.eventually import assert_eventually
from tests.tls_servers import HOST


@contextmanager
def run_zookeeper_with_users(**users: str) -> Iterator[str]:
    """The address of a server that lets in these users, by name with their passwords."""
    home = Path(tempfile.mkdtemp(prefix="sx-"))
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    user_entries = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    (home / "jaas.conf").write_text(f"Server {{\n  {module} {user_entries};\n}};\n")
    (home / "zoo.cfg").write_text(f"tickTime=500\ndataDir=data\nclientPort={port}\nadmin.enableServer=false\n")
    options = {
        "java.security.auth.login.config": "jaas.conf",
        "zookeeper.authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "zookeeper.jmx.log4j.disable": "true",
    }
    system_properties = [f"-D{name}={value}" for name, value in options.items()]
    argv = [str(find_java().path), "-Xmx128m", "-XX:TieredStopAtLevel=1", *system_properties, "-cp", build_class_path()]
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([*argv, main, "zoo.cfg"], cwd=home, stdout=log, stderr=log, env=dict(os.environ))
    try:
        assert_eventually(lambda: _is_listening(port))
        yield f"{HOST}:{port}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
