"""Credentials of clients towards Temporal: TLS, a client certificate, and an API key that may change at run time."""

import asyncio
import logging
import re
import weakref
from dataclasses import dataclass, field
from typing import Final

from temporalio.client import Client
from temporalio.service import TLSConfig

from logstore.errors import InvalidInput, ServiceFailed
from logstore.setting_files import PemFiles, read_setting_file
from workers.client.temporal_faults import CHECK_API_KEY_ADVICE
from workers.settings import Settings, read_secret_file, read_temporal_api_key
from workers.settings.tls_files import read_tls_files

_log = logging.getLogger(__name__)
_KEY_CHECK_INTERVAL_S: Final = 5.0
_API_KEY_FILE_SETTING: Final = "temporal_api_key_file"
_key_reload_tasks: set[asyncio.Task[None]] = set()  # the event loop holds only weak references to tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalCredentials:
    tls: TLSConfig | None = field(repr=False)  # includes the private key
    api_key: str = field(repr=False)
    api_key_file: str

    def keep_api_key_current(self, client: Client) -> None:
        """Read the API key file every few seconds, and give each new key to the client, until the client is gone."""
        if self.api_key_file:
            task = asyncio.create_task(_reload_api_key_repeatedly(weakref.ref(client), self.api_key_file))
            _key_reload_tasks.add(task)
            task.add_done_callback(_key_reload_tasks.discard)


def read_temporal_credentials(settings: Settings) -> TemporalCredentials:
    """Read the credentials in the settings, and check them as far as possible without a connection."""
    key = read_temporal_api_key(settings)
    files = read_tls_files(settings, "temporal")
    if settings.temporal_uses_tls and settings.temporal_tls == "off":
        raise InvalidInput("temporal_tls", expected="on, because other settings need TLS", found="off")
    tls = _read_tls_config(files, settings.temporal_server_name) if settings.temporal_uses_tls else None
    return TemporalCredentials(tls=tls, api_key=key, api_key_file=settings.temporal_api_key_file)


def _read_tls_config(files: PemFiles, server_name: str) -> TLSConfig:
    paths = {"ca": files.ca, "cert": files.cert, "key": files.key}
    ca, cert, key = (read_setting_file(f"temporal_{name}_file", path) if path else None for name, path in paths.items())
    return TLSConfig(server_root_ca_cert=ca, client_cert=cert, client_private_key=key, domain=server_name or None)


async def _reload_api_key_repeatedly(client_ref: "weakref.ref[Client]", path: str) -> None:
    last_error = ""
    while True:
        await asyncio.sleep(_KEY_CHECK_INTERVAL_S)
        client = client_ref()
        if client is None:
            return
        try:
            key = await asyncio.to_thread(read_secret_file, _API_KEY_FILE_SETTING, path)
        except InvalidInput as error:  # while the file is missing or incomplete, the last key may still be valid
            if str(error) != last_error:
                _log.warning("the API key stays as it was: %s", error)
            last_error = str(error)
        else:
            last_error = ""
            if key != client.api_key:
                client.api_key = key
                _log.info("the API key was read again")
        del client


_CERTIFICATE_NAME_PATTERN: Final = re.compile(r"[\w.*:-]+(?=[\\\\\"]*\))")
_TLS_FAULTS: Final = (  # columns: part of an error text of the SDK's core, problem, advice
    ("UnknownIssuer", "its certificate is signed by none of our authorities", "check temporal_ca_file"),
    ("NotValidForName", "its certificate is for another name: {names}", "check temporal_server_name"),
    ("Expired", "its certificate has expired", "ask its operator for a new one, or set this machine's clock"),
    ("NotValidYet", "its certificate is not valid yet", "set this machine's clock"),
    ("InvalidCertificate", "its certificate cannot be trusted", "check temporal_ca_file"),
    ("InvalidContentType", "it speaks no TLS", "check temporal_address, or take the settings of its TLS away"),
    ("Unauthenticated", "it does not know us", CHECK_API_KEY_ADVICE),
    ("PermissionDenied", "it refuses us", CHECK_API_KEY_ADVICE),
)
_CHECK_SERVERS_ADVICE: Final = "it may be away behind a balancer: see whether its servers run. Otherwise "
_BROKEN_CONNECTION_FAULTS: Final = {  # key: whether the connection has TLS
    True: ("it ended the connection", _CHECK_SERVERS_ADVICE + "it may want our certificate: temporal_cert_file"),
    False: (
        "it ended the connection",
        _CHECK_SERVERS_ADVICE + "correct SEXTON_TEMPORAL_ADDRESS, or set temporal_tls=on if it wants TLS",
    ),
}


def explain_connection_error(address: str, credentials: TemporalCredentials, error: Exception) -> ServiceFailed:
    """Return the error of a failed connection. It names the setting that may be wrong."""
    text = str(error)
    for part, problem, advice in _TLS_FAULTS:
        if part in text:
            names = ", ".join(_CERTIFICATE_NAME_PATTERN.findall(text.partition("presented:")[2]))
            return ServiceFailed("temporal", f"{address}: {problem.format(names=names)}", advice=advice)
    if "get_system_info" in text and ("hyper::Error" in text or "transport error" in text):
        problem, advice = _BROKEN_CONNECTION_FAULTS[credentials.tls is not None]
        return ServiceFailed("temporal", f"{address}: {problem}", advice=advice)
    advice = "run `sexton up`, or correct SEXTON_TEMPORAL_ADDRESS"
    return ServiceFailed("temporal", f"no Temporal server answers at {address}", advice=advice)
