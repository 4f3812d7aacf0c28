"""Which source of a setting wins, where it came from, and what is refused."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from logstore.catalog import Database
from logstore.errors import InvalidInput, ServiceFailed
from tests.migrated_catalogs import migrate_or_copy_catalog
from workers.settings import LoadedSettings, Settings, load_settings


def _load(
    cwd: Path,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    recorded: Mapping[str, object] | None = None,
) -> LoadedSettings:
    return load_settings(flags or {}, environ or {}, cwd, read_record=lambda _: recorded or {})


def test_load_settings_nothing_given_uses_defaults(tmp_path: Path) -> None:
    """Defaults hold, and every origin says so."""
    loaded = _load(tmp_path)
    settings = loaded.settings
    assert (settings.home, settings.task_queue) == (tmp_path / ".sexton", "sexton")
    assert (settings.deletion_retry_interval, settings.ledger_max_age) == (600, 14_400)
    assert settings.database_url == f"sqlite:///{tmp_path}/.sexton/catalog.db"
    assert set(loaded.origins.values()) == {"default"}
    assert set(loaded.origins) == set(type(settings).model_fields)


_EXPORTED = {
    "SEXTON_DATABASE_URL": "postgresql+psycopg://other/catalog",
    "SEXTON_ZOOKEEPER": "other:2181",
    "SEXTON_PRIMARY_BUCKET": "others",
    "SEXTON_DELETION_CHUNK": "7",
}


def test_load_settings_flag_home_beside_exports_of_another_takes_none_of_its_services(tmp_path: Path) -> None:
    """With what `eval "$(sexton env)"` exported for one home, a command on another reaches that other's stack."""
    recorded = {"zookeeper": "127.0.0.1:2181", "temporal_address": "127.0.0.1:7233"}
    environ = {**_EXPORTED, "SEXTON_HOME": str(tmp_path / "a"), "SEXTON_TEMPORAL_ADDRESS": "other:7233"}
    there = _load(tmp_path, flags={"home": "b"}, environ=environ, recorded=recorded).settings
    assert (there.zookeeper, there.temporal_address) == ("127.0.0.1:2181", "127.0.0.1:7233")
    assert there.database_url == f"sqlite:///{tmp_path}/b/catalog.db"
    assert (there.primary_bucket, there.deletion_chunk) == ("sexton-primary", 7)
    for flags in ({"home": "a"}, {"home": f"{tmp_path}/x/../a"}, {}):
        here = _load(tmp_path, flags=flags, environ=environ, recorded=recorded).settings
        assert (here.zookeeper, here.primary_bucket) == ("other:2181", "others")


@pytest.mark.parametrize("source", ["flag", "file"])
def test_load_settings_empty_home_is_refused(tmp_path: Path, source: str) -> None:
    """An empty path is the working directory, and nobody means that."""
    (tmp_path / "sexton.toml").write_text('home = ""\n' if source == "file" else "")
    with pytest.raises(InvalidInput, match="home: expected the path of a directory"):
        _load(tmp_path, flags={"home": ""} if source == "flag" else {})


def test_settings_as_an_environment_are_the_same_settings(tmp_path: Path) -> None:
    """A process that is told them so works with them, secrets and durations and all."""
    environ = {"SEXTON_S3_SECRET_KEY": "it's", "SEXTON_ZOOKEEPER_AUTH": "digest:a:b", "SEXTON_DRAIN_TIMEOUT": "90s"}
    first = _load(tmp_path, environ=environ).settings
    assert _load(tmp_path, environ=first.environment()).settings == first
    assert first.without_services().zookeeper_auth.get_secret_value() == ""


@pytest.mark.parametrize("name", ["q?1", "x%201", "a b"])
def test_settings_home_with_signs_of_a_url_keeps_its_own_catalog(tmp_path: Path, name: str) -> None:
    """Two homes are two stacks, whatever they are called."""
    settings = load_settings({"home": str(tmp_path / name)}, {}, tmp_path).settings
    database = Database(settings.database_url)
    migrate_or_copy_catalog(database)
    database.close()
    assert (tmp_path / name / "catalog.db").is_file()


def test_load_settings_every_source_stronger_one_wins(tmp_path: Path) -> None:
    """Flags beat the environment, which beats the file, which beats the stack, which beats defaults."""
    layers: list[tuple[str, str]] = []
    recorded = {"task_queue": "of-stack"}
    layers.append(_seen(_load(tmp_path, recorded=recorded)))
    (tmp_path / "sexton.toml").write_text('task_queue = "of-file"\n')
    layers.append(_seen(_load(tmp_path, recorded=recorded)))
    environ = {"SEXTON_TASK_QUEUE": "of-environ"}
    layers.append(_seen(_load(tmp_path, recorded=recorded, environ=environ)))
    layers.append(_seen(_load(tmp_path, recorded=recorded, environ=environ, flags={"task_queue": "of-flag"})))
    assert layers == [
        ("of-stack", f"stack in {tmp_path}/.sexton"),
        ("of-file", "sexton.toml"),
        ("of-environ", "environment SEXTON_TASK_QUEUE"),
        ("of-flag", "flag"),
    ]


def _seen(loaded: LoadedSettings) -> tuple[str, str]:
    return loaded.settings.task_queue, loaded.origins["task_queue"]


def test_replica_buckets_are_a_list_of_names(tmp_path: Path) -> None:
    """Separated by commas, each named once; a name that no bucket can have is refused."""
    assert _load(tmp_path).settings.replicas == ()
    found = _load(tmp_path, environ={"SEXTON_REPLICA_BUCKETS": "far-1, far-2,far-1"}).settings
    assert found.replicas == ("far-1", "far-2")
    assert found.without_services().replicas == ()
    with pytest.raises(InvalidInput, match="replica_buckets: expected a bucket name"):
        _load(tmp_path, environ={"SEXTON_REPLICA_BUCKETS": "far-1,,far-2"})


def test_shared_clusters_are_a_list_of_names(tmp_path: Path) -> None:
    assert _load(tmp_path).settings.pulsar_cluster_names == ()
    loaded = _load(tmp_path, environ={"SEXTON_PULSAR_SHARED_CLUSTERS": "west, eu=1:a.b,west"}).settings
    assert loaded.pulsar_cluster_names == ("west", "eu=1:a.b")
    assert loaded.without_services().pulsar_cluster_names == ()
    for refused in ("west,", "a/b", "..", "é"):
        with pytest.raises(InvalidInput, match="pulsar_shared_clusters: expected names of Pulsar clusters"):
            _load(tmp_path, environ={"SEXTON_PULSAR_SHARED_CLUSTERS": refused})


def test_functions_are_a_list_of_references(tmp_path: Path) -> None:
    """Separated by commas; two functions of one name could not be told apart."""
    assert _load(tmp_path).settings.functions == ""
    given = "acme.retention:expired, acme.tests:left, acme.retention:expired"
    found = _load(tmp_path, environ={"SEXTON_FUNCTIONS": given}).settings
    assert found.functions == "acme.retention:expired,acme.tests:left"
    assert found.without_services().functions == found.functions
    assert found.environment()["SEXTON_FUNCTIONS"] == found.functions
    for wrong in ("acme.retention", "acme:expired,other:expired", "acme:a,,acme:b", "os.system('x'):f", "a:1"):
        with pytest.raises(InvalidInput, match="functions: expected module:function"):
            _load(tmp_path, environ={"SEXTON_FUNCTIONS": wrong})


def test_load_settings_unknown_key_names_it_and_the_nearest(tmp_path: Path) -> None:
    """A typing error in the file is no silent default."""
    (tmp_path / "sexton.toml").write_text("deletion_paralelism = 2\n")
    with pytest.raises(InvalidInput, match=r"nearest: deletion_parallelism.*'deletion_paralelism'"):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("SEXTON_DELETION_CHUNCK", "SEXTON_DELETION_CHUNK"),
        ("SEXTON_TASKQUEUE", "SEXTON_TASK_QUEUE"),
        ("SEXTON_FAILPOINT", "SEXTON_FAILPOINTS"),
    ],
)
def test_load_settings_unknown_variable_names_it_and_the_nearest(tmp_path: Path, name: str, nearest: str) -> None:
    """A typing error in the environment is no silent default either; an empty variable counts as absent."""
    with pytest.raises(InvalidInput, match=rf"nearest: {nearest}\).*'{name}'") as refused:
        _load(tmp_path, environ={name: "5"})
    assert refused.value.field == "environment"
    assert _load(tmp_path, environ={name: ""}).settings.deletion_chunk == 100


def test_load_settings_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    """What `up` marks its processes with, what tests arm, and what says where the file is."""
    (tmp_path / "s.toml").write_text("")
    environ = {"SEXTON_CONFIG": "s.toml", "SEXTON_FAILPOINTS": "x", "SEXTON_PROCESS": "y", "SEXTONX": "z"}
    assert set(_load(tmp_path, environ=environ).origins.values()) == {"default"}


_FREE = {  # any text, as far as settings go
    "database_url",
    "s3_access_key",
    "s3_secret_key",
    "temporal_api_key",
    "pulsar_offload_access_key",
    "pulsar_offload_secret_key",
}
_TEXTS = ["\x1b[2J", "a\u202eb", "x" * 5_000]
_OF_TOML = ["true", "1.5", "[1]", "{a = 1}", "2026-11-20", "-1", str(2**63 - 1) + "0"]


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_load_settings_every_setting_says_what_it_takes_in_words(tmp_path: Path, name: str) -> None:
    """Field, expected, found; no word of the library that checks."""
    for text in () if name in _FREE else [*_TEXTS, *([] if name == "home" else ["no such value!", ".."])]:
        with pytest.raises(InvalidInput) as refused:
            _load(tmp_path, environ={f"SEXTON_{name.upper()}": text})
        _is_in_words(refused.value, name)
    is_switch = Settings.model_fields[name].annotation is bool
    for value in [value for value in _OF_TOML if not (is_switch and value == "true")]:
        (tmp_path / "sexton.toml").write_text(f"{name} = {value}\n")
        with pytest.raises(InvalidInput) as refused:
            _load(tmp_path)
        _is_in_words(refused.value, name)


def _is_in_words(refused: InvalidInput, name: str) -> None:
    told = str(refused)
    assert refused.field == name
    assert re.match(rf"{name}: expected .+ \(from .+\), found ", told), told
    rule = told.partition("expected ")[2].partition(" (from ")[0]
    assert not re.search(r"Input|Value error|valid|parse|pattern|greater|less than|unable", rule), told


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("deletion_chunk = 0", "a whole number, from 1 to 1,000"),
        ("session_timeout = '6m'", "a duration such as 90s, 15m, 24h or 3d, from 1s to 5m"),
        ("task_queue = '..'", "1 to 64 of A-Z, a-z, 0-9, dot, underscore, hyphen, not . or .."),
        ("ownership = 'all'", "'zookeeper' or 'single'"),
        ("s3_region = 5", "text"),
        ("pulsar_bookkeeper_exclusive = 2", "true or false"),
        ("pulsar_bookkeeper_exclusive = 'perhaps'", "true or false"),
    ],
)
def test_load_settings_refusal_states_the_whole_rule(tmp_path: Path, line: str, rule: str) -> None:
    """Both bounds, with units, whichever of them was broken."""
    (tmp_path / "sexton.toml").write_text(line)
    with pytest.raises(InvalidInput, match=rf"expected {re.escape(rule)} \(from sexton\.toml\)"):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deletion_parallelism", "0"),
        ("deletion_parallelism", "many"),
        ("drain_timeout", "-5s"),
        ("drain_timeout", "30"),
        ("temporal_port", "65536"),
        ("temporal_address", "localhost"),
        ("temporal_address", "one:7233,two:7233"),  # of which the SDK would say that the number of the port is invalid
        ("temporal_address", "a\u202eb:7233"),
        ("s3_endpoint", "http://a\u202eb"),
        ("s3_endpoint", "ftp://host"),
        ("primary_bucket", "Upper_Case"),
        ("log_level", "LOUD"),
        ("ownership", "none"),
        ("zookeeper", "host"),
        ("zookeeper", "host:2181/"),
        ("zookeeper", "host:2181//x"),
        ("zookeeper", "/sexton"),
        ("zookeeper", "host:2181,"),
        ("zookeeper", ","),
        ("zookeeper", "host:2181/a/../b"),
        ("zookeeper", "host:2181/."),
        ("zookeeper_auth", "digest"),
        ("session_timeout", "0s"),
        ("session_expired_policy", "ignore"),
        ("bundles", "16385"),
    ],
)
def test_load_settings_bad_value_names_field_and_origin(tmp_path: Path, name: str, value: str) -> None:
    """A refusal says which setting, where it came from, and what was found."""
    key = f"SEXTON_{name.upper()}"
    with pytest.raises(InvalidInput, match=rf"^{name}: .*environment {key}") as refused:
        _load(tmp_path, environ={key: value})
    assert repr(value)[1:-1] in str(refused.value)
    assert refused.value.field == name


@pytest.mark.parametrize("line", ["deletion_chunk = true", "drain_timeout = true", "drain_timeout = -1", "home = 5.5"])
def test_load_settings_wrong_kind_in_file_is_refused(tmp_path: Path, line: str) -> None:
    """TOML's own types do not slip through as numbers."""
    (tmp_path / "sexton.toml").write_text(line)
    with pytest.raises(InvalidInput, match=line.split(maxsplit=1)[0]):
        _load(tmp_path)


@pytest.mark.parametrize("value", ["zk-1:2181", "zk-1:2181,[::1]:2182", "zk-1:2181,zk-2:2181/pulsar/sexton"])
def test_load_settings_zookeeper_takes_an_ensemble_and_a_path(tmp_path: Path, value: str) -> None:
    """Servers separated by commas, and then the path under which everything of ours is."""
    assert _load(tmp_path, environ={"SEXTON_ZOOKEEPER": value}).settings.zookeeper == value


@pytest.mark.parametrize("value", ["sasl:user", "sasl::secret", "sasl:"])
def test_load_settings_identity_of_sasl_needs_user_and_password(tmp_path: Path, value: str) -> None:
    """The server would refuse it, and the client would not say why."""
    with pytest.raises(InvalidInput, match="digest:user:password or sasl:user:password"):
        _load(tmp_path, environ={"SEXTON_ZOOKEEPER_AUTH": value})
    found = _load(tmp_path, environ={"SEXTON_ZOOKEEPER_AUTH": "sasl:user:secret"}).settings
    assert found.zookeeper_auth.get_secret_value() == "sasl:user:secret"


def test_load_settings_bad_secret_is_not_shown(tmp_path: Path) -> None:
    """A refused secret does not reach a terminal or a log."""
    (tmp_path / "sexton.toml").write_text("s3_secret_key = 8675309\n")
    with pytest.raises(InvalidInput) as refused:
        _load(tmp_path)
    assert "8675309" not in str(refused.value)


def test_load_settings_named_file_must_exist(tmp_path: Path) -> None:
    """`SEXTON_CONFIG` is no wish; without it the file is optional."""
    with pytest.raises(InvalidInput, match="SEXTON_CONFIG"):
        _load(tmp_path, environ={"SEXTON_CONFIG": "absent.toml"})


def test_load_settings_broken_file_is_refused(tmp_path: Path) -> None:
    """A file that is no TOML stops everything."""
    (tmp_path / "sexton.toml").write_text("= 3")
    with pytest.raises(InvalidInput, match=r"sexton\.toml: expected a readable TOML file"):
        _load(tmp_path)


def test_load_settings_relative_home_is_relative_to_its_source(tmp_path: Path) -> None:
    """In the file a path is relative to the file, in a flag to the working directory."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "s.toml").write_text('home = "data"\n')
    environ = {"SEXTON_CONFIG": "etc/s.toml"}
    assert _load(tmp_path, environ=environ).settings.home == tmp_path / "etc" / "data"
    assert _load(tmp_path, environ=environ, flags={"home": "here"}).settings.home == tmp_path / "here"


def test_load_settings_empty_variable_counts_as_absent(tmp_path: Path) -> None:
    """`SEXTON_TASK_QUEUE=` takes nothing away."""
    assert _load(tmp_path, environ={"SEXTON_TASK_QUEUE": ""}).settings.task_queue == "sexton"


def test_load_settings_stack_in_home_gives_addresses_and_credentials(tmp_path: Path) -> None:
    """What `up` recorded is found, in the home that was chosen."""
    home = tmp_path / "other"
    home.mkdir()
    (home / "ports.json").write_text(json.dumps({"temporal": 1234, "ui": 1235, "s3": 1236, "zookeeper": 1237}))
    (home / "credentials.json").write_text(json.dumps({"access_key": "who", "secret_key": "what"}))
    loaded = load_settings({"home": "other"}, {}, tmp_path)
    settings = loaded.settings
    assert settings.temporal_address == "127.0.0.1:1234"
    assert (settings.ui_address, settings.s3_endpoint) == ("http://127.0.0.1:1235", "http://127.0.0.1:1236")
    assert settings.s3_secret_key.get_secret_value() == "what"
    assert loaded.origins["zookeeper"] == f"stack in {home}"
    assert "what" not in repr(settings)


def test_load_settings_damaged_record_is_refused(tmp_path: Path) -> None:
    """A record that is no JSON object is named, not skipped."""
    (tmp_path / ".sexton").mkdir()
    (tmp_path / ".sexton" / "ports.json").write_text("[1]")
    with pytest.raises(ServiceFailed, match=r"ports\.json is damaged"):
        load_settings({}, {}, tmp_path)


def test_required_unknown_address_names_what_to_try(tmp_path: Path) -> None:
    """Without a stack a command ends with advice and reaches no other stack by chance."""
    with pytest.raises(ServiceFailed, match="run `sexton up`"):
        _load(tmp_path).settings.require_address("temporal_address")


def test_settings_once_made_cannot_change(tmp_path: Path) -> None:
    """Settings are a value."""
    with pytest.raises(ValidationError):
        _load(tmp_path).settings.task_queue = "other"  # type: ignore[misc]


def test_metrics_address_may_be_one_address_or_off(tmp_path: Path) -> None:
    """One of this process; an empty variable counts as absent, so that switching it off has a word."""
    assert _load(tmp_path).settings.metrics_address == "127.0.0.1:9464"
    for off in ("", "off"):
        (tmp_path / "sexton.toml").write_text(f'metrics_address = "{off}"\n')
        assert _load(tmp_path).settings.metrics_address == "off"
    assert _load(tmp_path, environ={"SEXTON_METRICS_ADDRESS": "0.0.0.0:0"}).settings.metrics_address == "0.0.0.0:0"
    for bad in ("9464", "a:1,b:2", "a:70000"):
        with pytest.raises(InvalidInput, match="metrics_address"):
            _load(tmp_path, environ={"SEXTON_METRICS_ADDRESS": bad})


@pytest.mark.parametrize("name", ["delayed_messages", "delayed_ledgers", "delayed_idle", "delayed_buckets"])
def test_limits_of_buckets_are_any_positive_number_and_none_below(tmp_path: Path, name: str) -> None:
    """One of each works; with none at all a topic would be sealed, or merged, for ever (apache/pulsar#26241)."""
    unit = "s" if name == "delayed_idle" else ""
    assert getattr(_load(tmp_path, environ={f"SEXTON_{name.upper()}": f"1{unit}"}).settings, name) == 1
    with pytest.raises(InvalidInput, match=rf"{name}: expected .*1.* found '0{unit}'"):
        _load(tmp_path, environ={f"SEXTON_{name.upper()}": f"0{unit}"})


def test_load_settings_secret_in_a_file_counts_as_its_source(tmp_path: Path) -> None:
    """Every secret has a name with `_file`; the stronger source wins, whether it names the secret or the file."""
    (tmp_path / "secret").write_text(" of-file \n")
    (tmp_path / "sexton.toml").write_text('s3_secret_key_file = "secret"\ndatabase_url_file = "secret"\n')
    (tmp_path / "auth").write_text("digest:a:b")
    found = _load(tmp_path, environ={"SEXTON_ZOOKEEPER_AUTH_FILE": "auth"})
    assert found.settings.s3_secret_key.get_secret_value() == found.settings.database_url == "of-file"
    assert found.settings.zookeeper_auth.get_secret_value() == "digest:a:b"
    assert found.origins["s3_secret_key"] == "sexton.toml"
    assert found.origins["zookeeper_auth"] == "environment SEXTON_ZOOKEEPER_AUTH_FILE"
    stronger = _load(tmp_path, environ={"SEXTON_S3_SECRET_KEY": "direct"}).settings
    assert stronger.s3_secret_key.get_secret_value() == "direct"
    recorded = _load(tmp_path, recorded={"s3_secret_key": "of-stack"}).settings
    assert recorded.s3_secret_key.get_secret_value() == "of-file"


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (None, "No such file"),
        (b" \n", "it is empty"),
        (b"\xef\xbb\xbf\r\n", "it is empty"),
        (b"\xff\xfe", "it is no text"),
        (b"sasl:", "scheme:credential"),
        (b"digest:a:b\r\n# of the store\r\n", "it has several lines"),
        (b"digest:a:b\0c", "characters that are not printed"),
    ],
)
def test_load_settings_file_without_a_secret_is_refused(tmp_path: Path, content: bytes | None, rule: str) -> None:
    """What is not there, says nothing, is no text, or holds what the setting does not take."""
    if content is not None:
        (tmp_path / "auth").write_bytes(content)
    with pytest.raises(InvalidInput, match=rule) as refused:
        _load(tmp_path, environ={"SEXTON_ZOOKEEPER_AUTH_FILE": str(tmp_path / "auth")})
    assert refused.value.field in {"zookeeper_auth_file", "zookeeper_auth"}


def test_load_settings_secret_is_read_from_a_file_of_windows(tmp_path: Path) -> None:
    """With the mark that its editors put before a text, and with its line ends."""
    (tmp_path / "secret").write_bytes(b"\xef\xbb\xbfof-file\r\n")
    (tmp_path / "sexton.toml").write_bytes(b'\xef\xbb\xbfs3_secret_key_file = "secret"\r\n')
    found = _load(tmp_path)
    assert found.settings.s3_secret_key.get_secret_value() == "of-file"


def test_load_settings_secret_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """By one source, directly and in a file: nobody could tell which was meant."""
    (tmp_path / "secret").write_text("x")
    both = {"SEXTON_S3_SECRET_KEY": "y", "SEXTON_S3_SECRET_KEY_FILE": str(tmp_path / "secret")}
    with pytest.raises(InvalidInput, match="s3_secret_key_file: expected it or s3_secret_key, not both"):
        _load(tmp_path, environ=both)
