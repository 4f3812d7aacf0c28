"""No command and no worker acts on another catalog's store, path or namespace: each is refused by name, exit code 3."""

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.e2e.shell import Shell

pytestmark = [pytest.mark.external_service, pytest.mark.timeout(600)]

_TOPIC = "persistent://public/default/orders"
_LINES = "".join(json.dumps({"payload": str(number)}) + "\n" for number in range(4))


class Home:
    """A stack in a home of its own, without a worker."""

    def __init__(self, folder: Path, name: str) -> None:
        """Start nothing."""
        (folder / name).mkdir()
        self.shell = Shell(folder / name)
        self.env: dict[str, str] = {}

    def up(self) -> None:
        """Start it, and remember what `env` exports."""
        self.shell.json("up", "--free-ports", "--no-worker")
        self.env = self.shell.json("env")

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

    def fill(self) -> None:
        """A topic with entries in one ledger."""
        self.shell.json("topic", "create", _TOPIC)
        self.shell.json("topic", "append", _TOPIC, "--file", "-", stdin=_LINES)

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
        return Shell(self.shell.folder, SEXTON_METRICS_ADDRESS="off", **told)

    def unharmed(self) -> None:
        """Nothing was certified as gone, and everything that the catalog lists can be read."""
        assert self.sql("SELECT count(*) FROM pending_deletion WHERE outcome IS NOT NULL") == [(0,)]
        assert len(self.shell.json("topic", "read", _TOPIC, "--from", "0:0")) == 4


@pytest.fixture
def homes(folder: Path) -> Any:
    """Two homes, taken down at the end."""
    made = [Home(folder, "one"), Home(folder, "two")]
    yield made
    for home in made:
        home.shell.run("down")


def _refusal(ended: "subprocess.CompletedProcess[str]") -> str:
    """What the command said when it refused."""
    assert ended.returncode == 3, f"exit {ended.returncode}\n{ended.stdout}{ended.stderr}"
    error = json.loads(ended.stdout)["error"]
    assert error["type"] == "CatalogMismatch"
    return str(error["message"])


def test_catalog_of_one_home_upon_the_store_of_another_is_refused(homes: list[Home]) -> None:
    """The exported settings of one home, used in another one: `up`, jobs and workers act on neither."""
    one, two = homes
    one.up()
    one.fill()
    two.up()
    foreign = two.with_settings(database_url=one.env["SEXTON_DATABASE_URL"])
    for command in (
        ("up", "--free-ports"),
        ("topic", "delete", _TOPIC, "--reason", "a test"),
        ("topic", "append", _TOPIC, "--file", "-"),
        ("worker", "run"),
    ):
        said = _refusal(foreign.run(*command, "--json", stdin=_LINES))
        assert f"expected the marker of catalog {one.catalog_id}, found that of catalog {two.catalog_id}" in said
        assert two.env["AWS_ENDPOINT_URL_S3"] in said
    row = {row["name"]: row for row in foreign.json("status", code=4)["services"]}["identity"]
    assert (row["ok"], two.catalog_id in row["detail"], one.catalog_id in row["detail"]) == (False, True, True)
    assert not {key for key in two.stored() if key.startswith("ledgers/")}
    one.unharmed()


def test_worker_and_commands_with_another_empty_bucket_are_refused(homes: list[Home]) -> None:
    """An existing, empty bucket is the worst one to be taken for ours: all would seem to be gone."""
    one, _ = homes
    one.up()
    one.fill()
    one.s3().create_bucket(Bucket="another")
    wrong = one.with_settings(primary_bucket="another")
    for command in (
        ("worker", "run"),
        ("topic", "trim", _TOPIC),
        ("topic", "read", _TOPIC),
    ):
        said = _refusal(wrong.run(*command, "--json"))
        assert "primary bucket another at" in said
        assert "this catalog's primary bucket is sexton-primary" in said
    doctor = {row["name"]: row for row in wrong.json("doctor", code=4)["services"]}
    assert "another" in doctor["identity"]["detail"]
    assert one.stored("another") == set()
    assert {row["name"]: row["ok"] for row in one.shell.json("status", code=4)["services"]}["identity"]
    one.unharmed()


def test_second_catalog_on_one_zookeeper_path_and_in_one_namespace_is_refused(homes: list[Home]) -> None:
    """Bundles, workflow ids and schedules of two catalogs would be taken for one another's."""
    one, two = homes
    for home in homes:
        home.up()
        home.fill()
    for home in homes:
        assert home.shell.json("up", "--free-ports")["worker_pids"], "each has what is its own"
    same_path = two.with_settings(zookeeper=one.env["SEXTON_ZOOKEEPER"])
    asked: list[tuple[str, ...]] = [("worker", "run"), ("owners", "list"), ("owners", "unload", "0")]
    for command in asked:
        said = _refusal(same_path.run(*command, "--json"))
        assert f"zookeeper path {one.env['SEXTON_ZOOKEEPER']}" in said
        assert f"expected that of catalog {two.catalog_id}, found that of catalog {one.catalog_id}" in said
    same_namespace = two.with_settings(temporal_address=one.env["TEMPORAL_ADDRESS"])
    asked = [("worker", "run"), ("schedule", "apply"), ("topic", "trim", _TOPIC), ("deletion", "redrive", "--all")]
    for command in asked:
        said = _refusal(same_namespace.run(*command, "--json"))
        assert "temporal namespace default" in said
        assert f"expected that of catalog {two.catalog_id}, found that of catalog {one.catalog_id}" in said
    for shell, word in ((same_path, "zookeeper path"), (same_namespace, "temporal namespace default")):
        row = {row["name"]: row for row in shell.json("status", code=4)["services"]}["identity"]
        assert (row["ok"], word in row["detail"]) == (False, True)
    for home in homes:
        assert all(row["ok"] for row in home.shell.json("status")["services"])
        home.unharmed()


def test_upgrade_adopts_a_store_without_markers_once_by_its_ledgers(homes: list[Home]) -> None:
    """A store from before markers: its own bucket is taken by what it holds, another one never."""
    one, _ = homes
    one.up()
    one.fill()
    s3 = one.s3()
    s3.create_bucket(Bucket="another")
    for bucket in ("sexton-primary", "sexton-tiered", "sexton-records"):
        s3.delete_object(Bucket=bucket, Key="sexton-catalog.json")
    one.sql("DELETE FROM bucket_marker")
    said = _refusal(one.with_settings(primary_bucket="another").run("catalog", "upgrade", "--json"))
    assert "expected one of 1 ledgers that this catalog has there, found none of them" in said
    found = one.shell.json("catalog", "upgrade")
    assert (found["catalog_id"], set(found["buckets"].values())) == (one.catalog_id, {"marked"})
    assert {bucket for (bucket,) in one.sql("SELECT bucket FROM bucket_marker")} == set(found["buckets"])
    one.unharmed()
