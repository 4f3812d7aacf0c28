"""`status` of services that were not started here."""

from pathlib import Path

from workers.settings import Settings
from workers.stack import status


def test_status_of_services_elsewhere_asks_the_addresses_of_the_settings(tmp_path: Path) -> None:
    """A production set-up is not told that its home never saw a start, and looking creates nothing."""
    settings = Settings(home=tmp_path / "home", temporal_address="127.0.0.1:1", s3_endpoint="http://127.0.0.1:1")
    rows = {str(row["name"]): row for row in status(settings)}
    assert list(rows) == ["temporal", "object store", "database", "worker"]
    assert not any(row["ok"] for row in rows.values())
    assert "127.0.0.1:1" in str(rows["temporal"]["detail"])
    assert "http://127.0.0.1:1" in str(rows["object store"]["detail"])
    assert not (tmp_path / "home").exists()
