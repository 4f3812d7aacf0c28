"""No command and no worker acts on another catalog's store, path or namespace: each is refused by name, exit code 3."""

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from infra.stack import embedded_stack
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from tests.e2e.shell import Inside, Shell
from workers.operations.service_checks import WORKER

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(1_200)]

_TOPIC = "persistent://public/default/orders"
_APPEND = ("topic", "append", _TOPIC, "--file", "-")
_TRIM = ("topic", "trim", _TOPIC)
_WORKER = ("worker", "run")
_LINES = "".join(json.dumps({"payload": str(number)}) + "\n" for number in range(4))


class Home:
    """A stack in a home of its own, without a worker, and a topic with entries in one ledger."""

    def __init__(self, folder: Path, name: str) -> None:
        """Start it, remember what `env` exports, and append."""
        (folder / name).mkdir()
        self.shell = Inside(folder / name)
        self.shell.json("up", "--free-ports", "--no-worker")
        self.env: dict[str, str] = self.shell.json("env")
        self.shell.json("topic", "create", _TOPIC)
        self.shell.json("topic", "append", _TOPIC, "--file", "-", stdin=_LINES)

    @property
    def database(self) -> Path:
        """Its catalog."""
        return Path(self.env["SEXTON_DATABASE_URL"].removeprefix("sqlite:///"))

    @property
    def catalog_id(self) -> str:
        """As its database says."""
        return str(self.sql("SELECT catalog_id FROM catalog")[0][0])

    def sql(self, statement: str) -> list[Any]:
        """Ask its catalog."""
        with closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
            return connection.execute(statement).fetchall()

    def s3(self) -> Any:
        """Its object store."""
        return boto3.client(
            "s3",
            endpoint_url=self.env["AWS_ENDPOINT_URL_S3"],
            region_name=self.env["AWS_REGION"],
            aws_access_key_id=self.env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.env["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}),
        )

    def stored(self, bucket: str = "sexton-primary") -> set[str]:
        """Keys of a bucket."""
        return {item["Key"] for item in self.s3().list_objects_v2(Bucket=bucket).get("Contents", ())}

    def with_settings(self, **changes: str) -> Shell:
        """A shell in this home whose environment says otherwise."""
        told = {f"SEXTON_{name.upper()}": value for name, value in changes.items()}
        return self.shell.but(SEXTON_METRICS_ADDRESS="off", **told)

    def unharmed(self) -> None:
        """Nothing was certified as gone, and everything that the catalog lists can be read."""
        assert self.sql("SELECT count(*) FROM pending_deletion WHERE outcome IS NOT NULL") == [(0,)]
        assert len(self.shell.json("topic", "read", _TOPIC, "--from", "0:0")) == 4


@pytest.fixture(scope="module")
def homes() -> Iterator[list[Home]]:
    """Two homes, which every test leaves as healthy as it found them; killed at the end."""
    with tempfile.TemporaryDirectory(prefix="sx-") as folder:
        try:
            yield [Home(Path(folder), "one"), Home(Path(folder), "two")]
        finally:
            for home in Path(folder).glob("*/.sexton"):
                ServiceProcess(WORKER, StackHome.at(home)).kill()
                embedded_stack.kill_stack(home)


def _identity(shell: Shell) -> tuple[bool, str]:
    """What `status` tells of it; how it ends says also whether a worker runs."""
    rows = json.loads(shell.run("status", "--json").stdout)["services"]
    return next((row["ok"], row["detail"]) for row in rows if row["name"] == "identity")


def _refused(shell: Shell, *commands: tuple[str, ...]) -> Iterator[str]:
    """Run each; what it said when it refused."""
    for command in commands:
        ended = shell.run(*command, "--json", stdin=_LINES)
        assert ended.returncode == 3, f"{command}: exit {ended.returncode}\n{ended.stdout}{ended.stderr}"
        error = json.loads(ended.stdout)["error"]
        assert error["type"] == "CatalogMismatch"
        yield str(error["message"])


def test_catalog_of_one_home_upon_the_store_of_another_is_refused(homes: list[Home]) -> None:
    """The exported settings of one home, used in another one: `up`, jobs and workers act on neither."""
    one, two = homes
    before = two.stored()
    foreign = two.with_settings(database_url=one.env["SEXTON_DATABASE_URL"])
    for said in _refused(
        foreign, ("up", "--free-ports"), ("topic", "delete", _TOPIC, "--reason", "a test"), _APPEND, _WORKER
    ):
        assert f"expected the marker of catalog {one.catalog_id}, found that of catalog {two.catalog_id}" in said
        assert two.env["AWS_ENDPOINT_URL_S3"] in said
    ok, detail = _identity(foreign)
    assert (ok, two.catalog_id in detail, one.catalog_id in detail) == (False, True, True)
    assert two.stored() == before
    one.unharmed()
    two.unharmed()


def test_worker_and_commands_with_another_empty_bucket_are_refused(homes: list[Home]) -> None:
    """An existing, empty bucket is the worst one to be taken for ours: all would seem to be gone."""
    one, _ = homes
    one.s3().create_bucket(Bucket="another")
    wrong = one.with_settings(primary_bucket="another")
    for said in _refused(wrong, _WORKER, _TRIM, ("topic", "read", _TOPIC)):
        assert "primary bucket another at" in said
        assert "this catalog's primary bucket is sexton-primary" in said
    doctor = {row["name"]: row for row in wrong.json("doctor", code=4)["services"]}
    assert "another" in doctor["identity"]["detail"]
    assert one.stored("another") == set()
    assert _identity(one.shell)[0]
    one.unharmed()


def test_upgrade_adopts_a_store_without_markers_once_by_its_ledgers(homes: list[Home]) -> None:
    """A store from before markers: its own bucket is taken by what it holds, another one never."""
    one, _ = homes
    s3 = one.s3()
    s3.create_bucket(Bucket="elsewhere")
    for bucket in ("sexton-primary", "sexton-tiered", "sexton-records"):
        s3.delete_object(Bucket=bucket, Key="sexton-catalog.json")
    one.sql("DELETE FROM bucket_marker")
    (said,) = _refused(one.with_settings(primary_bucket="elsewhere"), ("catalog", "upgrade"))
    assert "expected one of 1 ledgers that this catalog has there, found none of them" in said
    found = one.shell.json("catalog", "upgrade")
    assert (found["catalog_id"], set(found["buckets"].values())) == (one.catalog_id, {"marked"})
    assert {bucket for (bucket,) in one.sql("SELECT bucket FROM bucket_marker")} == set(found["buckets"])
    one.unharmed()


def test_second_catalog_on_one_zookeeper_path_and_in_one_namespace_is_refused(homes: list[Home]) -> None:
    """Bundles, workflow ids and schedules of two catalogs would be taken for one another's."""
    one, two = homes
    for home in homes:
        assert home.shell.json("up", "--free-ports")["worker_pids"], "each has what is its own"
    mismatch = f"expected that of catalog {two.catalog_id}, found that of catalog {one.catalog_id}"
    same_path = two.with_settings(zookeeper=one.env["SEXTON_ZOOKEEPER"])
    for said in _refused(same_path, _WORKER, ("owners", "list"), ("owners", "unload", "0")):
        assert f"zookeeper path {one.env['SEXTON_ZOOKEEPER']}" in said
        assert mismatch in said
    same_namespace = two.with_settings(temporal_address=one.env["TEMPORAL_ADDRESS"])
    for said in _refused(same_namespace, _WORKER, ("schedule", "apply"), _TRIM, ("deletion", "redrive", "--all")):
        assert "temporal namespace default" in said
        assert mismatch in said
    for shell, word in ((same_path, "zookeeper path"), (same_namespace, "temporal namespace default")):
        ok, detail = _identity(shell)
        assert (ok, word in detail) == (False, True)
    for home in homes:
        assert all(row["ok"] for row in home.shell.json("status")["services"])
        home.unharmed()
