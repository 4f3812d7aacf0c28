"""Identity and TLS of sessions with ZooKeeper, from the settings."""

from typing import Literal

from infra.coordination.zookeeper_session import PemFiles
from logstore.errors import InvalidInput
from workers.settings import Settings
from workers.settings.tls_files import TlsFilePaths


def identity_and_tls_from_settings(
    settings: Settings, prefix: Literal["zookeeper", "pulsar_zookeeper"]
) -> tuple[tuple[str, str] | None, PemFiles | None]:
    """Return scheme and credential, and the files of TLS, from the settings that begin with `prefix`.

    Raises:
        InvalidInput: A file of TLS is invalid, or there are files although TLS is off.
    """
    scheme, _, credential = getattr(settings, f"{prefix}_auth").get_secret_value().partition(":")
    files, tls = TlsFilePaths.from_checked_settings(settings, prefix), getattr(settings, f"{prefix}_tls")
    if files and tls == "off":
        raise InvalidInput(f"{prefix}_tls", expected="on, because there are files of TLS", found="off")
    pem_files = PemFiles(ca=files.ca, cert=files.cert, key=files.key) if files or tls == "on" else None
    return ((scheme, credential) if credential else None), pem_files
