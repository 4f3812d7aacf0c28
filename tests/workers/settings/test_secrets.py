"""Values that hold a secret never show it: a message, a log or a traceback may print any of them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.coordination.zookeeper_session import EnsembleOptions
from infra.stack.stack_home import StoreCredentials
from logstore.identity.bucket_markers import BucketRole
from tests.tls_servers import TlsCertificateAuthority
from workers.assembly.log_store_from_settings import executor_bucket_address, executor_catalog_and_bucket_addresses
from workers.assembly.pulsar_cluster import pulsar_cluster_from_settings
from workers.client.temporal_connection import read_temporal_credentials
from workers.hosting.bundle_ownership import ensemble_from_settings
from workers.settings import LoadedSettings, Settings

_CANARY = "canary-5f2a"


def _settings(home: Path) -> Settings:
    authority = TlsCertificateAuthority(home)
    ours = authority.pair("ours", "ours")
    return Settings(
        home=home,
        database_url=f"postgresql+psycopg://u:{_CANARY}@h/db?sslpassword={_CANARY}",
        s3_endpoint="http://h:1",
        s3_access_key=_CANARY,
        s3_secret_key=_CANARY,
        zookeeper="h:1",
        zookeeper_auth=f"sasl:u:{_CANARY}",
        pulsar_zookeeper="h:1",
        pulsar_zookeeper_auth=f"sasl:u:{_CANARY}",
        pulsar_offload_bucket="offloads",
        pulsar_offload_access_key=_CANARY,
        pulsar_offload_secret_key=_CANARY,
        temporal_api_key=_CANARY,
        temporal_cert_file=str(ours.cert),
        temporal_key_file=str(ours.key),
    )


def test_value_that_holds_a_secret_does_not_show_it(tmp_path: Path) -> None:
    """Settings, and what is made of them for each service and for tasks of Spark."""
    settings = _settings(tmp_path)
    access, ensemble = read_temporal_credentials(settings), ensemble_from_settings(settings)
    assert (access.api_key, ensemble.auth) == (_CANARY, ("sasl", f"u:{_CANARY}"))
    held = [
        settings,
        LoadedSettings(settings, {}),
        access,
        ensemble,
        EnsembleOptions(hosts="h:1", auth=("digest", _CANARY)),
        executor_bucket_address(settings, BucketRole.PRIMARY, "bucket"),
        executor_catalog_and_bucket_addresses(settings),
        pulsar_cluster_from_settings(settings),
        StoreCredentials(access_key="key", secret_key=_CANARY),
    ]
    key = Path(settings.temporal_key_file).read_text().splitlines()[1]
    for one in held:
        for shown in (repr(one), str(one), f"{one}"):
            assert _CANARY not in shown, type(one)
            assert key not in shown, type(one)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database_url", [_CANARY]),
        ("s3_secret_key", [_CANARY]),
        ("zookeeper_auth", _CANARY),
        ("pulsar_offload_secret_key", [_CANARY]),
    ],
)
def test_setting_that_is_refused_is_not_shown_by_the_refusal(tmp_path: Path, name: str, value: object) -> None:
    """Also where a program makes settings itself, and prints what it is told."""
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"home": tmp_path, name: value})
    assert name in str(refused.value)
    assert _CANARY not in str(refused.value)
