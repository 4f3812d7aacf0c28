"""Files that TLS needs, as settings name them: read and tried out before anything is connected."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, Self

from logstore.errors import InvalidInput
from workers.settings.files import read_bytes
from workers.settings.model import Settings

if TYPE_CHECKING:
    from cryptography import x509

_NOTHING: Final = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths; empty ones are not given."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def of(cls, settings: Settings, service: Literal["temporal", "s3", "zookeeper"]) -> Self:
        """The files that the settings `{service}_ca_file`, `{service}_cert_file` and `{service}_key_file` name.

        Raises:
            InvalidInput: One cannot be read or is not what it should be, our certificate is not valid now, or of
                certificate and key there is only one.
        """
        names = {one: f"{service}_{one}_file" for one in ("ca", "cert", "key")}
        found = {one: str(getattr(settings, name, "")) for one, name in names.items()}
        for one, path in found.items():
            if path:
                read_bytes(names[one], path)
        if found["ca"]:
            _try_authorities(names["ca"], found["ca"])
        if found["cert"] or found["key"]:
            _require_both(names, found)
            _try_pair(names, found["cert"], found["key"])
        return cls(**found)

    def __bool__(self) -> bool:
        """Whether any is given."""
        return bool(self.ca or self.cert or self.key)


def _try_authorities(field: str, path: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        raise InvalidInput(field, expected="certificates of authorities in PEM", found=path) from None


def _require_both(names: dict[str, str], found: dict[str, str]) -> None:
    for one, other in (("cert", "key"), ("key", "cert")):
        if not found[one]:
            raise InvalidInput(names[one], expected=f"a file, because there is {names[other]}", found=_NOTHING)


def read_chain(field: str, path: str) -> "list[x509.Certificate]":
    """The certificates of a file, ours first; one at the least.

    Raises:
        InvalidInput: It cannot be read, or holds none.
    """
    from cryptography import x509  # noqa: PLC0415 - start-up time

    content = read_bytes(field, path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise InvalidInput(field, expected="a certificate in PEM", found=path) from None


def _try_pair(names: dict[str, str], cert: str, key: str) -> None:
    first = read_chain(names["cert"], cert)[0]
    now, since, until = datetime.now(UTC), first.not_valid_before_utc, first.not_valid_after_utc
    if not since <= now <= until:
        told = f"{cert}, valid from {since:%Y-%m-%dT%H:%MZ} to {until:%Y-%m-%dT%H:%MZ}"
        raise InvalidInput(names["cert"], expected="a certificate that is valid now", found=told)
    try:
        # a key that is encrypted would otherwise be asked for on the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password=lambda: b"")
    except (ssl.SSLError, OSError):
        rule = f"the key of the certificate in {names['cert']}, in PEM and not encrypted"
        raise InvalidInput(names["key"], expected=rule, found=key) from None
