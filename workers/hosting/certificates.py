"""Certificates of ours: until when each of them is good, so that it is renewed before a service refuses us."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from infra.catalog.engine.connections import parse_database_url
from logstore.errors import InvalidInput, ServiceFailed
from workers.settings import Settings
from workers.settings.tls_files import read_chain

_SOON: Final = timedelta(days=7)
_SHARE: Final = 4  # of the life of one that lives shortly, as those that a program renews


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCertificate:
    """One with which we are known to a service, and its chain."""

    setting: str
    path: str
    since: datetime
    until: datetime  # the end of the first of the chain that ends

    @property
    def is_due(self) -> bool:
        """Whether it should have been renewed: it ends in a week, or a quarter of its life is left if that is less."""
        return self.until - datetime.now(UTC) < min(_SOON, (self.until - self.since) / _SHARE)

    def ending(self) -> str:
        """When it ends or ended, as a sentence that names setting and file."""
        ends = "ended" if self.until <= datetime.now(UTC) else "ends"
        return f"the certificate that {self.setting} names, {self.path}, {ends} at {self.until:%Y-%m-%dT%H:%MZ}"

    def __str__(self) -> str:
        return f"{self.setting} until {self.until:%Y-%m-%dT%H:%MZ}"


def files_of_certificates(settings: Settings) -> dict[str, str]:
    """Files by the settings that name them; the database's stands in its URL."""
    found = {name: str(getattr(settings, name)) for name in ("temporal_cert_file", "zookeeper_cert_file")}
    with suppress(InvalidInput):  # of the URL: the connection reports it
        found["database_url"] = str(parse_database_url(settings.database_url).query.get("sslcert", ""))
    return {name: path for name, path in found.items() if path}


def read_certificate(setting: str, path: str) -> OwnCertificate:
    """The certificate that a file holds now.

    Raises:
        InvalidInput: It cannot be read, or holds none.
    """
    chain = read_chain(setting, path)
    since, until = max(one.not_valid_before_utc for one in chain), min(one.not_valid_after_utc for one in chain)
    return OwnCertificate(setting=setting, path=path, since=since, until=until)


def check_certificates(settings: Settings) -> str:
    """Until when each is good.

    Raises:
        InvalidInput: One cannot be read.
        ServiceFailed: One has expired, or is about to.
    """
    found = [read_certificate(name, path) for name, path in files_of_certificates(settings).items()]
    for one in found:
        if one.is_due:
            advice = "renew it, then restart the workers one by one"
            raise ServiceFailed("certificates", one.ending(), advice=advice)
    return ", ".join(map(str, found))
