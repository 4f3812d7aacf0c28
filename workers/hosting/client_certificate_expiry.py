"""TLS certificates of clients in the settings, and the times when the certificates expire."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from logstore.catalog.engine.database_connections import parse_database_url
from logstore.errors import InvalidInput, ServiceFailed
from workers.settings import Settings
from workers.settings.tls_files import read_tls_certificate_chain

_MIN_REMAINING: Final = timedelta(days=7)
_LIFETIME_DIVISOR: Final = 4  # bound for short-lived certificates, which a program renews


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """TLS certificate of a client, with its chain. All certificates of the chain are valid from `since` to `until`."""

    setting: str
    path: str
    since: datetime
    until: datetime

    @property
    def is_due(self) -> bool:
        """Whether the chain expires within a week or a quarter of its lifetime, whichever is shorter."""
        return self.until - datetime.now(UTC) < min(_MIN_REMAINING, (self.until - self.since) / _LIFETIME_DIVISOR)

    def describe_expiry(self) -> str:
        ends = "ended" if self.until <= datetime.now(UTC) else "ends"
        return f"the certificate that {self.setting} names, {self.path}, {ends} at {self.until:%Y-%m-%dT%H:%MZ}"

    def __str__(self) -> str:
        return f"{self.setting} until {self.until:%Y-%m-%dT%H:%MZ}"


def find_client_certificate_files(settings: Settings) -> dict[str, str]:
    """Return the paths of TLS certificates by setting. `database_url` names its file in the parameter `sslcert`."""
    path_by_setting = {name: str(getattr(settings, name)) for name in ("temporal_cert_file", "zookeeper_cert_file")}
    with suppress(InvalidInput):  # an invalid URL is reported by the connection
        path_by_setting["database_url"] = str(parse_database_url(settings.database_url).query.get("sslcert", ""))
    return {name: path for name, path in path_by_setting.items() if path}


def read_client_certificate(setting: str, path: str) -> ClientCertificate:
    chain = read_tls_certificate_chain(setting, path)
    since, until = max(link.not_valid_before_utc for link in chain), min(link.not_valid_after_utc for link in chain)
    return ClientCertificate(setting=setting, path=path, since=since, until=until)


def check_client_certificate_expiry(settings: Settings) -> str:
    """Return a line with the expiry of each TLS certificate.

    Raises:
        InvalidInput: A certificate cannot be read.
        ServiceFailed: A certificate has expired, or `is_due` is true.
    """
    certificates = [
        read_client_certificate(name, path) for name, path in find_client_certificate_files(settings).items()
    ]
    for certificate in certificates:
        if certificate.is_due:
            advice = "renew it, then restart the workers one by one"
            raise ServiceFailed("certificates", certificate.describe_expiry(), advice=advice)
    return ", ".join(map(str, certificates))
