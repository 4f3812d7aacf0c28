"""Variables by which other tools, and Sexton in another shell, reach the services that the settings name."""

from collections.abc import Mapping
from typing import Final

from pydantic import SecretStr

from workers.settings import SERVICE_SETTINGS, Settings, read_temporal_api_key

_OF_OTHERS: Final = {
    "TEMPORAL_NAMESPACE": "temporal_namespace",
    "TEMPORAL_TLS_SERVER_CA_CERT_PATH": "temporal_ca_file",
    "TEMPORAL_TLS_SERVER_NAME": "temporal_server_name",
    "TEMPORAL_TLS_CLIENT_CERT_PATH": "temporal_cert_file",
    "TEMPORAL_TLS_CLIENT_KEY_PATH": "temporal_key_file",
    "AWS_ACCESS_KEY_ID": "s3_access_key",
    "AWS_SECRET_ACCESS_KEY": "s3_secret_key",
    "AWS_ENDPOINT_URL_S3": "s3_endpoint",
    "AWS_REGION": "s3_region",
    "AWS_CA_BUNDLE": "s3_ca_file",
}
"""The setting that a variable of `temporal` or of `aws` says."""

_OF_OURS: Final = ("home", "primary_bucket", "tiered_bucket", "records_bucket", "database_url", "zookeeper")
_OF_TRUST: Final = ("_tls", "_file", "_server_name", "_api_key", "_auth", "_acl")
"""Ends of the names of settings that say how a service and we trust each other; they are told where they are given."""


def exports(settings: Settings) -> Mapping[str, str]:
    """Variables and their values, secrets included.

    What is empty is left out: an empty endpoint or key would make `aws` fail where none makes it use its own.

    Raises:
        ServiceFailed: No Temporal is known.
        InvalidInput: Temporal's API key is given twice, or its file cannot be read.
    """
    known = {name: _text(getattr(settings, said)) for name, said in _OF_OTHERS.items()}
    known["TEMPORAL_API_KEY"] = read_temporal_api_key(settings)
    known["TEMPORAL_TLS"] = "true" if settings.temporal_uses_tls else ""
    fields = type(settings).model_fields
    trust = {
        name
        for name in SERVICE_SETTINGS
        if name.endswith(_OF_TRUST) and getattr(settings, name) != fields[name].default
    }
    ours = {f"SEXTON_{name.upper()}": _text(getattr(settings, name)) for name in (*_OF_OURS, *sorted(trust))}
    told = {"TEMPORAL_ADDRESS": settings.require("temporal_address")} | known | ours
    return {name: value for name, value in told.items() if value}


def _text(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
