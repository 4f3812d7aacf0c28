"""Admin REST API of a Pulsar cluster's brokers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAdminAddress:
    """Address of a broker or proxy. The files have the same paths on every executor."""

    url: str
    token_file: str = ""  # empty: no token
    ca_file: str = ""  # empty: the machine's authorities
