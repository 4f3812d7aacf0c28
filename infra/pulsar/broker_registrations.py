"""Brokers that are registered in the metadata of a cluster. A broker's registration ends with its session.

Source: Pulsar's `ModularLoadManagerImpl` and `BrokerRegistryImpl`.
"""

import json
from dataclasses import dataclass
from typing import Final

from infra.pulsar.znode_reads import ZnodeReader
from logstore.pulsar.unreadable_metadata import UnreadableMetadata

BROKERS: Final = "loadbalance/brokers"


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """Broker with the addresses of its admin API. A broker has one or both of them."""

    id: str  # host and port
    url: str
    tls_url: str


def list_registered_brokers(reader: ZnodeReader) -> list[RegisteredBroker]:
    """Return the brokers, by their ids. A broker that leaves meanwhile may be missing.

    Raises:
        UnreadableMetadata: The registration of a broker cannot be read.
    """
    registrations = reader.read(reader.list_paths([BROKERS]))
    return [_parse_registration(path, znode.data) for path, znode in registrations if znode is not None]


def _parse_registration(path: str, data: bytes) -> RegisteredBroker:
    try:
        registration = json.loads(data)
        url, tls_url = (registration.get(name) or "" for name in ("webServiceUrl", "webServiceUrlTls"))
    except (ValueError, RecursionError, AttributeError):
        url = tls_url = None
    if not isinstance(url, str) or not isinstance(tls_url, str) or not (url or tls_url):
        expected = "the registration of a broker with webServiceUrl or webServiceUrlTls"
        raise UnreadableMetadata(f"/{path}", expected=expected, found=data)
    return RegisteredBroker(path.rpartition("/")[2], url, tls_url)
