"""How clients prove to Temporal who they are: TLS, a certificate, and an API key that may change meanwhile."""

import asyncio
import logging
import re
import weakref
from dataclasses import dataclass, field
from typing import Final

from temporalio.client import Client
from temporalio.service import TLSConfig

from logstore.errors import InvalidInput, ServiceFailed
from workers.client.temporal_faults import REFUSED_KEY
from workers.settings import Settings, read_secret, temporal_api_key
from workers.settings.files import read_bytes
from workers.settings.tls_files import TlsFiles

_log = logging.getLogger(__name__)
_LOOK_S: Final = 5.0  # between two looks at the file of the API key
_KEY_FILE: Final = "temporal_api_key_file"
_following: set[asyncio.Task[None]] = set()  # the loop itself keeps tasks by weak references alone


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalAccess:
    """What a connection is made with; without TLS it is plain."""

    tls: TLSConfig | None = field(repr=False)  # our key is in it
    api_key: str = field(repr=False)
    api_key_file: str

    def follow(self, client: Client) -> None:
        """Give the client each new key that is put into the file, for as long as the client and its loop live."""
        if self.api_key_file:
            task = asyncio.create_task(_followed(weakref.ref(client), self.api_key_file))
            _following.add(task)
            task.add_done_callback(_following.discard)


def temporal_access(settings: Settings) -> TemporalAccess:
    """What the settings say, tried out as far as can be without a connection.

    Raises:
        InvalidInput: A file cannot be used, the API key is given twice, or what needs TLS is given where TLS is off.
    """
    key = temporal_api_key(settings)
    files = TlsFiles.of(settings, "temporal")
    if settings.temporal_by_tls and settings.temporal_tls == "off":
        raise InvalidInput("temporal_tls", expected="on, because other settings need TLS", found="off")
    tls = _tls(files, settings.temporal_server_name) if settings.temporal_by_tls else None
    return TemporalAccess(tls=tls, api_key=key, api_key_file=settings.temporal_api_key_file)


def _tls(files: TlsFiles, server_name: str) -> TLSConfig:
    found = {"ca": files.ca, "cert": files.cert, "key": files.key}
    ca, cert, key = (read_bytes(f"temporal_{one}_file", path) if path else None for one, path in found.items())
    return TLSConfig(server_root_ca_cert=ca, client_cert=cert, client_private_key=key, domain=server_name or None)


async def _followed(found: "weakref.ref[Client]", path: str) -> None:
    told = ""
    while True:
        await asyncio.sleep(_LOOK_S)
        client = found()
        if client is None:
            return
        try:
            key = await asyncio.to_thread(read_secret, _KEY_FILE, path)
        except InvalidInput as error:  # it is being replaced, or was removed: the key of before may still be good
            if str(error) != told:
                _log.warning("the API key stays as it was: %s", error)
            told = str(error)
        else:
            told = ""
            if key != client.api_key:
                client.api_key = key
                _log.info("the API key was read again")
        del client


_NAMES: Final = re.compile(r"[\w.*:-]+(?=[\\\\\"]*\))")
_TLS_FAULTS: Final = (  # what the SDK's core says; the part of it, the problem, the advice
    ("UnknownIssuer", "its certificate is signed by none of our authorities", "check temporal_ca_file"),
    ("NotValidForName", "its certificate is for another name: {names}", "check temporal_server_name"),
    ("Expired", "its certificate has expired", "ask its operator for a new one, or set this machine's clock"),
    ("NotValidYet", "its certificate is not valid yet", "set this machine's clock"),
    ("InvalidCertificate", "its certificate cannot be trusted", "check temporal_ca_file"),
    ("InvalidContentType", "it speaks no TLS", "check temporal_address, or take the settings of its TLS away"),
    ("Unauthenticated", "it does not know us", REFUSED_KEY),
    ("PermissionDenied", "it refuses us", REFUSED_KEY),
)
_AWAY: Final = "it may be away behind a balancer: see whether its servers run. Otherwise "
_OTHER_FAULTS: Final = {
    True: ("it ended the connection", _AWAY + "it may want our certificate: temporal_cert_file"),
    False: (
        "it ended the connection",
        _AWAY + "correct SEXTON_TEMPORAL_ADDRESS, or set temporal_tls=on if it wants TLS",
    ),
}


def unreached(address: str, access: TemporalAccess, error: Exception) -> ServiceFailed:
    """The error of a connection that could not be made, with the setting that may be wrong."""
    said = str(error)
    for part, problem, advice in _TLS_FAULTS:
        if part in said:
            names = ", ".join(_NAMES.findall(said.partition("presented:")[2]))
            return ServiceFailed("temporal", f"{address}: {problem.format(names=names)}", advice=advice)
    if "get_system_info" in said and ("hyper::Error" in said or "transport error" in said):
        problem, advice = _OTHER_FAULTS[access.tls is not None]
        return ServiceFailed("temporal", f"{address}: {problem}", advice=advice)
    advice = "run `sexton up`, or correct SEXTON_TEMPORAL_ADDRESS"
    return ServiceFailed("temporal", f"no Temporal server answers at {address}", advice=advice)
