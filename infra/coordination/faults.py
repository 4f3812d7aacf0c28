"""kazoo's errors as ours, in one place."""

from collections.abc import Iterator
from contextlib import contextmanager
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
