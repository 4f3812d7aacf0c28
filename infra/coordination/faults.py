"""What failures of ZooKeeper mean: kazoo's errors as ours, and why no server was reached, which kazoo does not tell."""

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

_OVER: Final = (SessionExpiredError, ConnectionClosedError)
_DENIED: Final = (AuthFailedError, InvalidACLError, NoAuthError)


@contextmanager
def translated(doing: str, address: str) -> Iterator[None]:
    """Raise what kazoo raises as one of our errors; a failure to ask is never an answer.

    Args:
        doing: What was asked, as a phrase.
        address: Hosts, and the path of everything of ours.

    Raises:
        StoreUnavailable: ZooKeeper did not answer in time; what was asked may have happened.
        SessionLost: The session ended; its ephemeral nodes go with it.
        ServiceFailed: ZooKeeper refuses us, and will again.
    """
    try:
        yield
    except _OVER as error:
        raise SessionLost(f"zookeeper: the session ended while {doing}") from error
    except _DENIED as error:
        raise ServiceFailed(
            ZOOKEEPER,
            f"{address} refuses us while {doing} ({type(error).__name__})",
            advice="grant this worker's identity all rights on that path, or mend the setting `zookeeper_auth`",
        ) from error
    except (KazooException, KazooTimeoutError) as error:  # no connection, no answer, patience at its end
        raise StoreUnavailable(f"zookeeper: no answer while {doing}: {type(error).__name__} {error}".strip()) from error


_KNOCK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files in PEM; empty ones are not given, and the authorities are then those of this machine."""

    ca: str = ""
    cert: str = ""
    key: str = ""


def unreached(hosts: str, tls: Tls | None) -> ServiceFailed:
    """The error of an ensemble at `host:port,…/path` of which no server accepted the connection.

    By TLS each server is asked once more: kazoo reports a server that it does not trust as one that is away.
    """
    where = hosts.partition("/")[0].split(",")
    distrusted = next(filter(None, (_distrust(one, tls) for one in where)), "") if tls else ""
    if distrusted:
        advice = "check the settings `zookeeper_ca_file`, `zookeeper_cert_file` and `zookeeper_key_file`"
        return ServiceFailed(ZOOKEEPER, f"no trusted connection to {hosts}: {distrusted}", advice=advice)
    advice = "start it (`sexton up` starts an embedded one) or mend the setting `zookeeper`"
    return ServiceFailed(ZOOKEEPER, f"cannot be reached at {hosts}", advice=advice)


def _distrust(where: str, tls: Tls) -> str:
    """Why the server and we do not trust each other; empty where they do, or nothing answers."""
    host, _, port = where.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=tls.ca or None)
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key)
    try:
        with socket.create_connection((host, int(port)), timeout=_KNOCK_S) as plain:
            plain.settimeout(_KNOCK_S)
            with context.wrap_socket(plain, server_hostname=host) as secured:
                secured.settimeout(_KNOCK_S)
                said = secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except ssl.SSLError as error:
        return (error.reason or "no TLS").lower().replace("_", " ")
    except OSError:
        return ""
    return "" if said else "it ends the connection, as one that wants our certificate does"
