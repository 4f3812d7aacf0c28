"""Files for TLS that settings name. The files are read and checked before any connection."""

import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from logstore.errors import InvalidInput
from logstore.setting_files import PemFiles, read_setting_file
from workers.settings.model import Settings

if TYPE_CHECKING:
    from cryptography import x509


def read_tls_files(
    settings: Settings,
    service: Literal["temporal", "s3", "zookeeper", "pulsar_zookeeper", "pulsar_admin", "pulsar_offload"],
) -> PemFiles:
    """Return the paths in `{service}_ca_file`, `{service}_cert_file` and `{service}_key_file`, after a check.

    Raises:
        InvalidInput: A file cannot be read, is invalid, or has expired. Or only one of certificate and key is set.
    """
    settings_by_role = {role: f"{service}_{role}_file" for role in ("ca", "cert", "key")}
    paths = {role: str(getattr(settings, name, "")) for role, name in settings_by_role.items()}
    for role, path in paths.items():
        if path:
            read_setting_file(settings_by_role[role], path)
    if paths["ca"]:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(paths["ca"])
        except ssl.SSLError:
            expected = "certificates of authorities in PEM"
            raise InvalidInput(settings_by_role["ca"], expected=expected, found=paths["ca"]) from None
    for role, other_role in (("cert", "key"), ("key", "cert")):
        if paths[other_role] and not paths[role]:
            expected = f"a file, because there is {settings_by_role[other_role]}"
            raise InvalidInput(settings_by_role[role], expected=expected, found="nothing")
    if paths["cert"]:
        _check_tls_certificate_and_key(settings_by_role, paths["cert"], paths["key"])
    return PemFiles(**paths)


def identity_and_tls_from_settings(
    settings: Settings, prefix: Literal["zookeeper", "pulsar_zookeeper"]
) -> tuple[tuple[str, str] | None, PemFiles | None]:
    """Return scheme and credential, and the files of TLS, from the settings that begin with `prefix`.

    Raises:
        InvalidInput: A file of TLS is invalid, or there are files although TLS is off.
    """
    scheme, _, credential = getattr(settings, f"{prefix}_auth").get_secret_value().partition(":")
    files, tls = read_tls_files(settings, prefix), getattr(settings, f"{prefix}_tls")
    has_files = files != PemFiles()
    if has_files and tls == "off":
        raise InvalidInput(f"{prefix}_tls", expected="on, because there are files of TLS", found="off")
    return ((scheme, credential) if credential else None), (files if has_files or tls == "on" else None)


def read_tls_certificate_chain(field: str, path: str) -> "list[x509.Certificate]":
    """Return the TLS certificates of a file, at least one. The first is that of the server or client."""
    from cryptography import x509  # noqa: PLC0415 - start-up time

    content = read_setting_file(field, path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise InvalidInput(field, expected="a certificate in PEM", found=path) from None


def _check_tls_certificate_and_key(settings_by_role: dict[str, str], cert: str, key: str) -> None:
    first = read_tls_certificate_chain(settings_by_role["cert"], cert)[0]
    now, since, until = datetime.now(UTC), first.not_valid_before_utc, first.not_valid_after_utc
    if not since <= now <= until:
        found = f"{cert}, valid from {since:%Y-%m-%dT%H:%MZ} to {until:%Y-%m-%dT%H:%MZ}"
        raise InvalidInput(settings_by_role["cert"], expected="a certificate that is valid now", found=found)
    try:
        # Without a password function, OpenSSL asks for the password of an encrypted key on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password=lambda: b"")
    except (ssl.SSLError, OSError):
        rule = f"the key of the certificate in {settings_by_role['cert']}, in PEM and not encrypted"
        raise InvalidInput(settings_by_role["key"], expected=rule, found=key) from None
