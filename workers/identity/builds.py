"""Which build of Sexton a process is, as Worker Versioning knows it: a deployment, and a build of it.

A build id names code: two installations of the same code have the same one, and a changed line makes another. So it is
made of the version and of the code itself, unless the setting `build_id` says it.

Source: Temporal, "Worker Versioning".
"""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from temporalio.common import WorkerDeploymentVersion

from workers import VERSION
from workers.settings import Settings

_PACKAGES: Final = ("logstore", "activities", "workflows", "infra", "spark", "workers")
_DIGITS: Final = 12  # of SHA-256: no two builds of a deployment are alike by chance


def own_build(settings: Settings) -> WorkerDeploymentVersion | None:
    """The build that a worker with these settings is; None where it takes no part in Worker Versioning."""
    if not settings.deployment_name:
        return None
    return WorkerDeploymentVersion(settings.deployment_name, settings.build_id or code_build_id())


@cache
def code_build_id() -> str:
    """The version, and the beginning of a hash of all code that is installed here, as in `0.1.0-1f2e3d4c5b6a`."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        folder = Path(str(files(package)))
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{VERSION}-{digest.hexdigest()[:_DIGITS]}"
