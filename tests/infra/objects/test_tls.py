"""A real object store behind TLS, whose certificate an authority of our own has signed."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.stack.embedded_stack import StackAddresses
from logstore.errors import InvalidInput, StoreUnavailable
from logstore.identity.bucket_markers import MARKER_KEY, BucketRole
from tests.tls_servers import HOST, TlsCertificateAuthority, TlsProxy
from workers.assembly.checked_buckets import open_primary_bucket
from workers.assembly.log_store_from_settings import executor_bucket_address
from workers.operations.service_checks import _check_object_store, run_check_as_row
from workers.settings import Settings

pytestmark = pytest.mark.external_service


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TlsCertificateAuthority:
    return TlsCertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def secured(settings: Settings, servers: StackAddresses, authority: TlsCertificateAuthority) -> Iterator[Settings]:
    """The run's store by https."""
    front = TlsProxy(servers.s3.removeprefix("http://"), authority.server())
    yield settings.model_copy(update={"s3_endpoint": f"https://{front.address}", "s3_ca_file": str(authority.ca)})
    front.close()


def _keys(settings: Settings) -> list[str]:
    return [found.key for found in open_primary_bucket(settings).list(MARKER_KEY)]


def test_store_is_reached_by_tls_here_and_in_tasks_of_spark(
    secured: Settings, authority: TlsCertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the setting, which travels within a task, or by the variable that other tools of S3 know."""
    assert _keys(secured) == [MARKER_KEY]
    address = pickle.loads(pickle.dumps(executor_bucket_address(secured, BucketRole.PRIMARY, secured.primary_bucket)))  # noqa: S301
    assert [found.key for found in address.store().list(MARKER_KEY)] == [MARKER_KEY]
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
    assert _keys(secured.model_copy(update={"s3_ca_file": ""})) == [MARKER_KEY]


def test_store_that_is_not_trusted_is_told_with_the_setting(
    secured: Settings, servers: StackAddresses, authority: TlsCertificateAuthority, tmp_path: Path
) -> None:
    """Signed by others, expired, or for another name: `doctor` says so as well."""
    (tmp_path / "other").mkdir()
    other = TlsCertificateAuthority(tmp_path / "other")
    target = servers.s3.removeprefix("http://")
    expired = TlsProxy(target, authority.pair("expired", HOST, expired=True))
    foreign = TlsProxy(target, authority.pair("foreign", "elsewhere.test"))
    told = {
        "certificate": {"s3_ca_file": str(other.ca)},
        "expired": {"s3_endpoint": f"https://{expired.address}"},
        "hostname '127.0.0.1' doesn't match 'elsewhere.test'": {"s3_endpoint": f"https://{foreign.address}"},
    }
    try:
        for part, changes in told.items():
            given = secured.model_copy(update=changes)
            with pytest.raises(StoreUnavailable, match=r"no trusted connection .*check s3_ca_file") as refused:
                list(open_primary_bucket(given, fails_fast=True).list(MARKER_KEY))
            assert part in str(refused.value), part
            assert "check s3_ca_file" in str(run_check_as_row("object store", _check_object_store, given)["detail"])
    finally:
        expired.close()
        foreign.close()


def test_file_of_authorities_that_cannot_be_used_is_refused(settings: Settings, tmp_path: Path) -> None:
    """It is named, whoever asks the store."""
    gone = settings.model_copy(update={"s3_ca_file": str(tmp_path / "gone")})
    with pytest.raises(InvalidInput, match="s3_ca_file: expected a file that can be read"):
        _keys(gone)
    assert "s3_ca_file: expected a file" in str(run_check_as_row("object store", _check_object_store, gone)["detail"])
