"""Files that deploy workers: of the form that their readers want, with settings that exist, and no power to spare."""

import base64
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from logstore.identity.bucket_markers import BucketRole
from logstore.setting_files import PemFiles
from tests.architecture.source import ROOT
from tests.tls_servers import TlsCertificateAuthority
from workers.assembly.log_store_from_settings import executor_bucket_address
from workers.client.data_converter import EncryptingCodec, make_data_converter, read_payload_keys
from workers.client.temporal_connection import read_temporal_credentials
from workers.hosting.bundle_ownership import ensemble_from_settings
from workers.hosting.worker_process import FORCED_EXIT_DELAY_S
from workers.settings import Settings, load_settings, parse_duration
from workflows import search_attributes

_DEPLOY: Final = ROOT / "deploy"
_KUBERNETES: Final = "1.37"
_CONTROLLER: Final = "temporal.io/v1alpha1"
_SECRETS: Final = {
    "SEXTON_DATABASE_URL": "postgresql+psycopg://user@host/database",
    "SEXTON_S3_ACCESS_KEY": "key",
    "SEXTON_S3_SECRET_KEY": "secret",
    "SEXTON_ZOOKEEPER_AUTH": "digest:user:secret",
}

Document = dict[str, Any]


def _manifests() -> list[Document]:
    texts = (path.read_text(encoding="utf-8") for path in sorted((_DEPLOY / "kubernetes").glob("*.yaml")))
    return [found for text in texts for found in yaml.safe_load_all(text)]


def _named(one: Document) -> str:
    return f"{one['kind']}-{one['metadata']['name']}"


_MANIFESTS: Final = [pytest.param(one, id=_named(one)) for one in _manifests()]
_WITH_PODS: Final = [pytest.param(one, id=_named(one)) for one in _manifests() if "template" in one.get("spec", {})]
_WORKERS: Final = [one for one in _manifests() if one["kind"] in {"Deployment", "WorkerDeployment"}]


def _only(kind: str) -> Document:
    (found,) = [one for one in _manifests() if one["kind"] == kind]
    return found


@pytest.mark.parametrize("one", _MANIFESTS)
def test_manifest_is_what_kubernetes_accepts(one: Document) -> None:
    """By the schemas of Kubernetes itself, which refuse a field that does not exist; the controller's pods as well."""
    if one["apiVersion"] != _CONTROLLER:
        kubernetes_validate.validate(one, _KUBERNETES, strict=True)
    elif one["kind"] == "WorkerDeployment":
        labels = one["spec"]["template"]["metadata"]["labels"]
        spec = {"selector": {"matchLabels": labels}, "template": one["spec"]["template"]}
        plain = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": one["metadata"], "spec": spec}
        kubernetes_validate.validate(plain, _KUBERNETES, strict=True)


def test_schemas_of_kubernetes_refuse_what_they_do_not_know() -> None:
    """The test above could else pass whatever a manifest says."""
    found = _only("ConfigMap") | {"dat": {}}
    with pytest.raises(kubernetes_validate.ValidationError, match="dat"):
        kubernetes_validate.validate(found, _KUBERNETES, strict=True)


def test_resource_of_the_controller_is_what_it_accepts() -> None:
    """A step ramps 1 to 99 per cent and lasts 30 s at least, shares rise, and the connection is the one beside it.

    Source: temporalio/temporal-worker-controller, the schemas of its custom resources `workerdeployments` and
    `connections`, and `validateRolloutStrategy` of its webhook.
    """
    spec, connection = _only("WorkerDeployment")["spec"], _only("Connection")
    known = {"replicas", "minReadySeconds", "progressDeadlineSeconds"}
    assert (
        {"rollout", "sunset", "template", "workerOptions"}
        <= set(spec)
        <= known
        | {
            "rollout",
            "sunset",
            "template",
            "workerOptions",
        }
    )
    assert spec["workerOptions"]["connectionRef"] == {"name": connection["metadata"]["name"]}
    assert spec["workerOptions"]["temporalNamespace"] == _only("ConfigMap")["data"]["SEXTON_TEMPORAL_NAMESPACE"]
    assert re.fullmatch(r"[a-zA-Z0-9.-]+:[0-9]+", connection["spec"]["hostPort"])
    assert spec["rollout"]["strategy"] == "Progressive"
    steps = spec["rollout"]["steps"]
    assert all({"rampPercentage", "pauseDuration"} == set(step) for step in steps)
    shares = [step["rampPercentage"] for step in steps]
    assert shares == sorted(set(shares))
    assert 1 <= shares[0] <= shares[-1] <= 99
    assert all(parse_duration(step["pauseDuration"], "pauseDuration") >= 30 for step in steps)
    assert set(spec["sunset"]) == {"scaledownDelay", "deleteDelay"}
    (container,) = spec["template"]["spec"]["containers"]
    assert {"TEMPORAL_DEPLOYMENT_NAME", "TEMPORAL_WORKER_BUILD_ID"} <= set(
        re.findall(r"\$(TEMPORAL_\w+)", container["args"][0])
    ), "the controller's names for deployment and build"


@pytest.mark.parametrize("one", _WITH_PODS)
def test_pod_has_no_power_that_it_does_not_need(one: Document) -> None:
    """No root, no writes to its image, no token, no variables of services, secrets by reference alone."""
    pod = one["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    (container,) = pod["containers"]
    held = container["securityContext"]
    assert held["readOnlyRootFilesystem"] is True
    assert held["allowPrivilegeEscalation"] is False
    assert held["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} == set(container["resources"]["requests"])
    given = {name["name"]: name for name in container["env"]}
    assert set(_SECRETS) <= set(given)
    assert all("secretKeyRef" in given[name]["valueFrom"] for name in _SECRETS)
    assert not set(_SECRETS) & set(_only("ConfigMap")["data"])
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == mounted
    paths = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/tmp", "/var/lib/sexton"} <= paths, "what is written there could not be"  # noqa: S108 - inside the pod


@pytest.mark.parametrize("one", _WORKERS, ids=_named)
def test_workers_are_probed_drained_and_spared(one: Document) -> None:
    """Life and readiness are asked apart, a drain ends before SIGKILL, and a node's upkeep takes one at a time."""
    template = one["spec"]["template"]
    (container,) = template["spec"]["containers"]
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: get["path"] for name, get in asked.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {get["port"] for get in asked.values()} <= {port["name"] for port in container["ports"]}
    assert [port["containerPort"] for port in container["ports"]] == [9465]
    drain_s = parse_duration(_only("ConfigMap")["data"]["SEXTON_DRAIN_TIMEOUT"], "drain")
    assert template["spec"]["terminationGracePeriodSeconds"] > drain_s + FORCED_EXIT_DELAY_S
    labels = template["metadata"]["labels"].items()
    budgets = [one["spec"] for one in _manifests() if one["kind"] == "PodDisruptionBudget"]
    (spared,) = [budget for budget in budgets if budget["selector"]["matchLabels"].items() <= labels]
    assert spared["maxUnavailable"] == 1


def test_each_queue_has_workers_of_its_own() -> None:
    """Two Deployments serve two queues, and none serves another's."""
    queues = [
        container["args"][container["args"].index("--queue") + 1]
        for one in _WORKERS
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    assert queues == ["sexton", "sexton-batch"]


def _told_settings(secrets: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Variables by where they are told; secrets stand in the folder."""
    yield "kubernetes", _only("ConfigMap")["data"] | _SECRETS
    yield "container", dict(re.findall(r"\b(SEXTON_\w+)=([^ \\\n]+)", _text("Containerfile")))
    yield "systemd", {name: value.replace("%d", str(secrets)) for name, value in _told_by_unit(_unit())}
    for name, service in _compose()["services"].items():
        if service["image"].startswith("sexton"):
            given = service["environment"]
            yield f"compose {name}", {key: _filled(value, secrets, "") for key, value in given.items()}
            yield f"encrypted {name}", {key: _filled(value, secrets, "payload-keys") for key, value in given.items()}


def _filled(value: str, secrets: Path, keys: str) -> str:
    chosen = value.replace("${SEXTON_PAYLOAD_KEY_FILE:-}", f"/run/secrets/{keys}" if keys else "")
    return chosen.replace("/run/secrets", str(secrets))


def _told_by_unit(text: str) -> list[tuple[str, str]]:
    lines = re.findall(r"^Environment=(.+)$", text, re.MULTILINE)
    return [found for line in lines for found in re.findall(r"(SEXTON_\w+)=(\S+)", line)]


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """What the script beside the compose file makes."""
    script = shutil.copy(_DEPLOY / "make-secrets.sh", tmp_path)
    subprocess.run(["/bin/sh", script], check=True)
    return tmp_path / "secrets"


def _text(name: str) -> str:
    return (_DEPLOY / name).read_text(encoding="utf-8")


def _unit() -> str:
    return _text("systemd/sexton-worker@.service")


def _compose() -> Document:
    found: Document = yaml.safe_load(_text("compose.yaml"))
    return found


def test_settings_that_files_tell_exist_and_are_taken(tmp_path: Path, secrets: Path) -> None:
    """A worker refuses a variable that is no setting, or names a file that is none, and would never start."""
    for where, told in _told_settings(secrets):
        assert told, where
        loaded = load_settings({}, dict(told), tmp_path)
        make_data_converter(loaded.settings.payload_key_file)
        if "container" not in where:
            assert loaded.settings.s3_secret_key.get_secret_value(), where


def test_secrets_of_the_compose_file_are_made_once_and_for_their_owner(tmp_path: Path, secrets: Path) -> None:
    """The script run again changes nothing; nobody else can enter the folder; the database's URL has its password."""
    before = {path.name: path.read_text() for path in secrets.iterdir()}
    again = subprocess.run(["/bin/sh", tmp_path / "make-secrets.sh"], check=True, capture_output=True)
    assert (again.stdout, again.stderr) == (b"", b"")
    assert {path.name: path.read_text() for path in secrets.iterdir()} == before
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert before["postgres-password"].strip() in before["database-url"]
    assert set(before) == {Path(one["file"]).name for one in _compose()["secrets"].values()}


def test_secrets_of_the_compose_file_are_none_where_they_cannot_be_made(tmp_path: Path) -> None:
    """Without openssl the script fails, and keeps nothing that the next run would take for a secret."""
    script, commands = shutil.copy(_DEPLOY / "make-secrets.sh", tmp_path), tmp_path / "bin"
    commands.mkdir()
    for name in ("cat", "chmod", "dirname", "mkdir", "mv"):
        (commands / name).symlink_to(str(shutil.which(name)))
    failed = subprocess.run(["/bin/sh", script], env={"PATH": str(commands)}, capture_output=True, check=False)
    assert (failed.returncode != 0, b"openssl" in failed.stderr) == (True, True)
    subprocess.run(["/bin/sh", script], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert f":{made['postgres-password'].strip()}@" in made["database-url"]
    assert len(read_payload_keys(str(tmp_path / "secrets" / "payload-keys"))["first"]) == 32


def test_compose_file_has_secrets_by_reference_alone() -> None:
    """Each that a service has is declared, and no environment holds one."""
    found = _compose()
    for name, service in found["services"].items():
        assert set(service.get("secrets", ())) <= set(found["secrets"]), name
        for key in service.get("environment", {}):
            assert key.endswith("_FILE") or not re.search("PASSWORD|PWD|SECRET|KEY|DATABASE_URL", key), (name, key)
        used = set(re.findall(r"/run/secrets/([\w-]+)", json.dumps(service)))
        assert used <= set(service.get("secrets", ())), f"{name} is told a file that it does not have"


def test_settings_for_files_of_certificates_are_taken_by_every_client(tmp_path: Path) -> None:
    """What stands in the manifest as comments, with files of the names that it says: each of them is put to use."""
    authority = TlsCertificateAuthority(tmp_path)
    authority.pair("worker", "worker")
    (tmp_path / "temporal-api-key").write_text("key")
    (tmp_path / "payload-keys").write_text(f"one {base64.b64encode(bytes(32)).decode()}")
    said = dict(re.findall(r"^  # (SEXTON_\w+): (\S+)", _text("kubernetes/settings.yaml"), re.MULTILINE))
    given = {name: value.replace("/etc/sexton", str(tmp_path)) for name, value in said.items()}
    told = _only("ConfigMap")["data"] | _SECRETS | given | {"SEXTON_S3_ENDPOINT": "https://s3.storage:8333"}
    settings = load_settings({"home": str(tmp_path)}, told, tmp_path).settings
    access, ensemble = read_temporal_credentials(settings), ensemble_from_settings(settings)
    assert access.tls is not None
    assert access.tls.client_cert == (tmp_path / "worker.pem").read_bytes()
    assert access.api_key == "key"
    assert ensemble.protected
    assert ensemble.tls == PemFiles(**{one: str(tmp_path / name) for one, name in _FILES.items()})
    assert executor_bucket_address(settings, BucketRole.PRIMARY, "b").ca_file == str(tmp_path / "ca.pem")
    assert _first_key(settings) == "one"


_FILES: Final = {"ca": "ca.pem", "cert": "worker.pem", "key": "worker.key"}


def _first_key(settings: Settings) -> str:
    codec = make_data_converter(settings.payload_key_file).payload_codec
    assert isinstance(codec, EncryptingCodec)
    return codec.first_key_name


def test_compose_file_has_every_service_and_waits_for_each() -> None:
    """What a worker needs is healthy before it starts; images are of one version, volumes are declared."""
    found = _compose()
    services = found["services"]
    assert {"postgres", "temporal", "zookeeper", "s3", "worker"} <= set(services)
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            waits = how["condition"] == "service_healthy"
            assert not waits or "healthcheck" in services[other], f"{name} waits for the health of {other}"
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in found["volumes"]
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is open to the network"
    needed = {"postgres", "zookeeper", "s3", "temporal"}
    assert needed <= _before(services, "worker")
    grace = parse_duration(services["worker"]["stop_grace_period"], "grace")
    assert grace > Settings.model_fields["drain_timeout"].default + FORCED_EXIT_DELAY_S


def test_compose_file_restarts_every_server_and_repeats_no_step() -> None:
    """A server that crashes, or whose machine starts again, comes back; a step that ended well is not done again."""
    services = _compose()["services"]
    steps = {
        other
        for service in services.values()
        for other, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_completed_successfully"
    } | {"deploy"}
    assert steps == {"buckets", "search-attributes", "upgrade", "deploy"}
    for name, service in services.items():
        assert service.get("restart") == (None if name in steps else "unless-stopped"), name


def _before(services: Mapping[str, Document], name: str) -> set[str]:
    found = set(services[name].get("depends_on", {}))
    return found.union(*(_before(services, one) for one in found))


def test_compose_file_makes_the_search_attributes_and_buckets_that_workers_need() -> None:
    """Those of the code, by name and type."""
    services = _compose()["services"]
    said = re.findall(r"--name (\w+) --type (\w+)", services["search-attributes"]["command"][0])
    kinds = {one.name: one.indexed_value_type.name.title().replace("_", "") for one in search_attributes.ALL}
    assert dict(said) == kinds
    defaults = Settings.model_fields
    wanted = {defaults[f"{name}_bucket"].default for name in ("primary", "tiered", "records")}
    made = re.search(r"for bucket in ([\w -]+);", services["buckets"]["command"][0])
    assert made
    assert set(made[1].split()) == wanted


def test_image_is_built_in_stages_and_runs_without_root() -> None:
    """Its last stage has no sources and no root, and installs the versions that are locked."""
    text = _text("Containerfile")
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(stages) == 2
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER (?!0|root)\d+", last, re.MULTILINE)
    assert re.findall(r"^COPY (.+)$", last, re.MULTILINE) == ["--from=wheel /dist /dist"]
    assert "--constraint /dist/constraints.txt" in last
    assert re.search(r'^ENTRYPOINT \["tini"', last, re.MULTILINE), "SIGTERM must reach the worker"


def test_image_installs_locked_versions_of_all_dependencies() -> None:
    """The line that makes constraints of the lock finds every one of them, with its version."""
    (command,) = re.findall(r"sed -n '[^']+' requirements.lock", _text("Containerfile"))
    made = subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pinned = {line.partition("==")[0] for line in made.splitlines()}
    assert all("==" in line and "\\" not in line for line in made.splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[<>=]", one, maxsplit=1)[0] for one in project["dependencies"]}
    assert names <= pinned


def test_images_are_named_without_a_host_and_with_a_version() -> None:
    """Where they come from is the operator's; what they are is not left to chance."""
    images = [service["image"] for service in _compose()["services"].values()]
    images += re.findall(r"^FROM (\S+)", _text("Containerfile"), re.MULTILINE)
    images += [
        container["image"]
        for one in _manifests()
        if "template" in one.get("spec", {})
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    for image in images:
        name, _, version = image.partition(":")
        assert version not in {"", "latest"}, image
        assert "." not in name.partition("/")[0], f"{image} names a host"


def test_unit_drains_before_it_is_killed_and_has_no_power() -> None:
    """SIGTERM first, to the worker alone, for as long as it may drain."""
    said = dict(re.findall(r"^(\w+)=(.*)$", _unit(), re.MULTILINE))
    assert (said["KillMode"], said["KillSignal"], said["Restart"]) == ("mixed", "SIGTERM", "always")
    assert int(said["TimeoutStopSec"]) > Settings.model_fields["drain_timeout"].default + FORCED_EXIT_DELAY_S
    assert said["User"] == "sexton"
    assert (said["NoNewPrivileges"], said["ProtectSystem"], said["CapabilityBoundingSet"]) == ("yes", "strict", "")
    assert said["ExecStart"].endswith("sexton worker run --queue %i")


_YES = "yes|no"
_TIME = "[0-9]+"  # seconds
_UNIT = r"[a-z-]+\.target"
_PATH = r"/[\w./%@-]+"
_UNIT_GRAMMAR: Final[Mapping[str, Mapping[str, str]]] = {
    "Unit": {
        "Description": ".+", "After": _UNIT, "Wants": _UNIT, "StartLimitIntervalSec": _TIME,
    },
    "Service": {
        "Type": "simple|exec|notify", "EnvironmentFile": _PATH, "Environment": r"([A-Z0-9_]+=\S* ?)+",
        "LoadCredential": rf"[a-z0-9.-]+:{_PATH}",
        "WorkingDirectory": _PATH,
        "ExecStart": rf"{_PATH}( .+)?", "Restart": "no|always|on-failure", "RestartSec": _TIME,
        "KillMode": "control-group|mixed|process", "KillSignal": "SIG[A-Z]+", "TimeoutStopSec": _TIME,
        "User": "[a-z]+", "Group": "[a-z]+", "DynamicUser": _YES, "StateDirectory": "[a-z]+",
        "StateDirectoryMode": "0[0-7]{3}", "UMask": "0[0-7]{3}", "ProtectSystem": f"{_YES}|full|strict",
        "RestrictAddressFamilies": "(AF_[A-Z0-9]+ ?)+", "CapabilityBoundingSet": "",
        "SystemCallArchitectures": "native", "LimitNOFILE": "[0-9]+",
        **dict.fromkeys(
            (
                "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "ProtectKernelTunables",
                "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups", "ProtectClock", "ProtectHostname",
                "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality",
            ),
            _YES,
        ),
    },
    "Install": {"WantedBy": _UNIT},
}  # fmt: skip
"""What systemd takes of what the unit uses, by section: each key, and the values that it may have (systemd.exec(5))."""


def _unit_faults(text: str) -> list[str]:
    """Lines that systemd would pass over or refuse."""
    known: Mapping[str, str] = {}
    faults = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            known = _UNIT_GRAMMAR.get(line[1:-1], {})
            faults += [] if known and line.endswith("]") else [line]
        elif not line.startswith(("#", ";")):
            key, equals, value = line.partition("=")
            if not equals or key not in known or not re.fullmatch(known[key], value):
                faults.append(line)
    return faults


def _in_comments(text: str) -> str:
    """The drop-in that stands in the unit's head as an example."""
    return "\n".join(re.findall(r"^#   (.+)$", text, re.MULTILINE)) + "\n"


def test_unit_never_gives_its_worker_up() -> None:
    """A limit of starts is over within some minutes of an outage, and the worker would be away after it for good."""
    assert "Restart=always\n" in _unit()
    assert "\nStartLimitIntervalSec=0\n" in _unit()


def test_unit_is_what_systemd_accepts(tmp_path: Path) -> None:
    """Every key stands in its section and has a value of its kind; where systemd is at hand it says so itself."""
    assert _unit_faults(_unit()) == []
    assert _unit_faults("[Service]\nRestartSec=soon\nUsr=x\n[Instal]\nType=exec") == [
        "RestartSec=soon",
        "Usr=x",
        "[Instal]",
        "Type=exec",
    ]
    more = _in_comments(_unit())
    assert _unit_faults(more) == []
    for text in (_unit(), _unit() + more):
        loaded = set(re.findall(r"^LoadCredential=([^:]+):", text, re.MULTILINE))
        assert {value[3:] for _, value in _told_by_unit(text) if value.startswith("%d/")} == loaded
        names = {name.removeprefix("SEXTON_").removesuffix("_FILE").lower() for name, _ in _told_by_unit(text)}
        assert names <= {field.removesuffix("_file") for field in Settings.model_fields}
    if shutil.which("systemd-analyze") is None:
        return
    unit = tmp_path / "sexton-worker@x.service"  # with a program that exists on this machine
    unit.write_text((_unit() + more).replace("/opt/sexton/bin/sexton", sys.executable), encoding="utf-8")
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "Unknown" in done.stderr) == (0, False), done.stderr
