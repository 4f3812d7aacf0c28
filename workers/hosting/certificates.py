"""Certificates of ours: until when each of them is good, so that it is renewed before a service refuses us."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.common import MetricMeter

from infra.catalog.engine.connections import parsed_url
from logstore.errors import InvalidInput, ServiceFailed
from workers.settings import Settings
from workers.settings.tls_files import read_chain

_SOON: Final = timedelta(days=7)
_SHARE: Final = 4  # of the life of one that lives shortly, as those that a program renews
_AT_START: Final = "temporal_cert_file"


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

    def __str__(self) -> str:
        return f"{self.setting} until {self.until:%Y-%m-%dT%H:%MZ}"


def files_of_certificates(settings: Settings) -> dict[str, str]:
    """Files by the settings that name them; the database's stands in its URL."""
    found = {name: str(getattr(settings, name)) for name in ("temporal_cert_file", "zookeeper_cert_file")}
    with suppress(InvalidInput):  # of the URL: the connection reports it
        found["database_url"] = str(parsed_url(settings.database_url).query.get("sslcert", ""))
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
            raise ServiceFailed("certificates", f"{one} alone: {one.path}", advice=advice)
    return ", ".join(map(str, found))


class CertificateGauges:
    """`sexton_certificate_expiry_timestamp_seconds`, by setting.

    Of Temporal's it tells of the certificate that this process has held since its start; the others are read with every
    connection that is made, hence as their files are now.
    """

    def __init__(self, meter: MetricMeter, settings: Settings) -> None:
        """Take the meter of the process's runtime, and what names the files."""
        self._files = files_of_certificates(settings)
        self._until = meter.create_gauge(
            "sexton_certificate_expiry_timestamp_seconds", "When our certificate for a service ends", "s"
        )
        self._held = dict(self._ends(_AT_START))

    def read(self) -> None:
        """Show them once; a file that is being replaced, or is away, leaves its last value."""
        others = (end for name in self._files if name != _AT_START for end in self._ends(name))
        for name, until_s in (*self._held.items(), *others):
            self._until.set(until_s, {"setting": name})

    def _ends(self, name: str) -> Iterator[tuple[str, int]]:
        with suppress(InvalidInput):
            if name in self._files:
                yield name, int(read_certificate(name, self._files[name]).until.timestamp())
