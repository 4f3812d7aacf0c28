"""Until when certificates of ours are good: for `doctor`, and as a gauge."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from logstore.errors import InvalidInput, ServiceFailed
from tests.fakes.meter import FakeMeter, metric_series
from tests.tls_servers import TlsCertificateAuthority
from workers.hosting.gauges import (
    check_client_certificate_expiry,
    find_client_certificate_files,
    make_client_certificate_sampler,
    make_gauge_updater,
    read_client_certificate,
)
from workers.operations import service_checks
from workers.settings import Settings

_GAUGE = "sexton_certificate_expiry_timestamp_seconds"


def _settings(home: Path, cert: Path) -> Settings:
    return Settings(
        home=home,
        temporal_cert_file=str(cert),
        zookeeper_cert_file=str(cert),
        database_url=f"postgresql+psycopg://u:p@h/db?sslmode=verify-full&sslcert={cert}",
    )


def _until(cert: Path) -> int:
    chain = x509.load_pem_x509_certificates(cert.read_bytes())
    return int(min(one.not_valid_after_utc for one in chain).timestamp())


def test_doctor_tells_until_when_each_certificate_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Temporal, ZooKeeper and the database; without any there is no such row."""
    cert = TlsCertificateAuthority(tmp_path).pair("ours", "ours", remaining=timedelta(days=365)).cert
    settings = _settings(tmp_path, cert)
    names = ("temporal_cert_file", "zookeeper_cert_file", "database_url")
    assert find_client_certificate_files(settings) == dict.fromkeys(names, str(cert))
    told = check_client_certificate_expiry(settings)
    assert [part.partition(" until ")[0] for part in told.split(", ")] == list(names)
    monkeypatch.setattr(service_checks, "check_services", lambda _: [])
    plain = {row["name"] for row in service_checks.check_installation(Settings(home=tmp_path))}
    assert {row["name"] for row in service_checks.check_installation(settings)} - plain == {"certificates"}


_DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("age", "left", "due"),
    [
        (90 * _DAY, 8 * _DAY, False),
        (90 * _DAY, 6 * _DAY, True),
        (90 * _DAY, -_DAY, True),
        (_DAY, timedelta(hours=16), False),  # a program renews such ones, with a third of their life left
        (_DAY, timedelta(hours=6), True),
    ],
)
def test_certificate_that_should_have_been_renewed_is_told(
    tmp_path: Path, age: timedelta, left: timedelta, due: bool
) -> None:
    """A week before its end, or later where its whole life is short."""
    cert = TlsCertificateAuthority(tmp_path).pair("ours", "ours", age=age, remaining=left).cert
    settings = Settings(home=tmp_path, zookeeper_cert_file=str(cert))
    assert read_client_certificate("zookeeper_cert_file", str(cert)).is_due is due
    if due:
        ends = "ended" if left < timedelta(0) else "ends"
        sentence = (
            rf"certificates: the certificate that zookeeper_cert_file names, {cert}, {ends} at 2\d{{3}}-\S+Z; renew it"
        )
        with pytest.raises(ServiceFailed, match=sentence):
            check_client_certificate_expiry(settings)
    else:
        assert check_client_certificate_expiry(settings).startswith("zookeeper_cert_file until ")


def test_chain_is_good_until_its_first_end(tmp_path: Path) -> None:
    """An authority between may end before our own certificate does."""
    authority = TlsCertificateAuthority(tmp_path)
    ours, between = (
        authority.pair(name, name, remaining=timedelta(days=days)) for name, days in (("a", 90), ("b", 30))
    )
    whole = tmp_path / "chain.pem"
    whole.write_bytes(ours.cert.read_bytes() + between.cert.read_bytes())
    assert int(read_client_certificate("temporal_cert_file", str(whole)).until.timestamp()) == _until(between.cert)


def test_gauge_shows_what_the_process_holds_and_else_what_stands_in_files(tmp_path: Path) -> None:
    """Temporal's is read at the start alone; a file that is away for a moment changes nothing."""
    authority = TlsCertificateAuthority(tmp_path)
    old, new = (
        authority.pair(name, name, remaining=timedelta(days=days)).cert for name, days in (("o", 10), ("n", 90))
    )
    cert = Path(shutil.copy(old, tmp_path / "ours.pem"))
    meter = FakeMeter()
    read = make_gauge_updater(meter, make_client_certificate_sampler(_settings(tmp_path, cert)))
    read()
    assert {
        meter.values[metric_series(_GAUGE, setting=name)]
        for name in find_client_certificate_files(_settings(tmp_path, cert))
    } == {_until(old)}
    shutil.copy(new, cert)
    read()
    assert meter.values[metric_series(_GAUGE, setting="temporal_cert_file")] == _until(old)
    assert meter.values[metric_series(_GAUGE, setting="zookeeper_cert_file")] == _until(new)
    assert meter.values[metric_series(_GAUGE, setting="database_url")] == _until(new)
    cert.unlink()
    read()
    assert meter.values[metric_series(_GAUGE, setting="database_url")] == _until(new)
    with pytest.raises(InvalidInput, match="zookeeper_cert_file: expected a file that can be read"):
        read_client_certificate("zookeeper_cert_file", str(cert))
