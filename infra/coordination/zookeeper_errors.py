"""Translation of kazoo's errors, and search for the reason why no server was reached."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from logstore.errors import ServiceFailed, SessionLost, StoreUnavailable

ZOOKEEPER: Final = "zookeeper"

_SESSION_ENDED: Final = (SessionExpiredError, ConnectionClosedError)
_ACCESS_DENIED: Final = (AuthFailedError, InvalidACLError, NoAuthError)


@contextmanager
def translate_kazoo_errors(action: str, address: str, setting: str) -> Iterator[None]:
    """Translate kazoo's errors in the block into errors of Sexton.

    `action` is a phrase for messages, such as "reading owners". `setting` names the setting of the address.

    Raises:
        StoreUnavailable: ZooKeeper did not answer in time. The request may have been executed.
        SessionLost: The session has ended, and its ephemeral nodes are deleted.
        ServiceFailed: ZooKeeper refuses this identity. A retry does not help.
    """
    try:
        yield
    except _SESSION_ENDED as error:
        raise SessionLost(f"zookeeper: the session ended while {action}") from error
    except _ACCESS_DENIED as error:
        raise ServiceFailed(
            ZOOKEEPER,
            f"{address} refuses us while {action} ({type(error).__name__})",
            advice=f"grant this worker's identity {_needed_rights(setting)} on that path,"
            f" or mend the setting `{setting}_auth`",
        ) from error
    except (KazooException, KazooTimeoutError) as error:  # no connection, or no answer in time
        raise StoreUnavailable(
            f"zookeeper: no answer while {action}: {type(error).__name__} {error}".strip()
        ) from error


def _needed_rights(setting: str) -> str:
    """Return what Sexton needs: on its own nodes everything, on those of a Pulsar cluster as little as possible."""
    return "all rights" if setting == ZOOKEEPER else "the right to do this"


_TLS_CHECK_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PemFiles:
    """Paths of PEM files, or empty texts. Without `ca`, the certificate authorities of this machine are trusted."""

    ca: str = ""
    cert: str = ""
    key: str = ""


def unreachable_error(hosts: str, tls: PemFiles | None, setting: str) -> ServiceFailed:
    """Return the error for an ensemble without a reachable server. `hosts` is `host:port,…/path`.

    `setting` names the setting of the address.

    With TLS, connect to each server once more, because kazoo reports an untrusted server as unreachable.
    """
    addresses = hosts.partition("/")[0].split(",")
    tls_problem = (
        next(filter(None, (_find_tls_problem_of_server(address, tls) for address in addresses)), "") if tls else ""
    )
    if tls_problem:
        advice = f"check the settings `{setting}_ca_file`, `{setting}_cert_file` and `{setting}_key_file`"
        return ServiceFailed(ZOOKEEPER, f"no trusted connection to {hosts}: {tls_problem}", advice=advice)
    start = "start it (`sexton up` starts an embedded one)" if setting == ZOOKEEPER else "start it"
    advice = f"{start} or mend the setting `{setting}`"
    return ServiceFailed(ZOOKEEPER, f"cannot be reached at {hosts}", advice=advice)


def _find_tls_problem_of_server(address: str, tls: PemFiles) -> str:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=tls.ca or None)
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    try:
        with socket.create_connection((host, int(port)), timeout=_TLS_CHECK_TIMEOUT_S) as plain:
            plain.settimeout(_TLS_CHECK_TIMEOUT_S)
            with context.wrap_socket(plain, server_hostname=host) as secured:
                secured.settimeout(_TLS_CHECK_TIMEOUT_S)
                first_byte = secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return (error.reason or "no TLS").lower().replace("_", " ")
    except OSError:
        return ""
    return "" if first_byte else "the server closed the connection, perhaps because it requires a client certificate"
