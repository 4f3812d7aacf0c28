"""Id of the running build, for Temporal's Worker Versioning."""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from temporalio.common import WorkerDeploymentVersion

from workers import VERSION
from workers.settings import Settings

_PACKAGES: Final = ("logstore", "activities", "workflows", "infra", "spark", "workers")
_DIGEST_DIGITS: Final = 12  # hexadecimal digits of SHA-256; a collision within a deployment is improbable


def own_build(settings: Settings) -> WorkerDeploymentVersion | None:
    """Return the build of a worker with these settings, or `None` without Worker Versioning."""
    if not settings.deployment_name:
        return None
    return WorkerDeploymentVersion(settings.deployment_name, settings.build_id or compute_code_build_id())


@cache
def compute_code_build_id() -> str:
    """Return Sexton's version and a digest of all installed code, as in `0.1.0-1f2e3d4c5b6a`."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        folder = Path(str(files(package)))
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{VERSION}-{digest.hexdigest()[:_DIGEST_DIGITS]}"
