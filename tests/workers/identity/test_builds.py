"""Which build a process is."""

import re
from pathlib import Path

import pytest
from temporalio.common import WorkerDeploymentVersion

from workers import build_identity
from workers.build_identity import compute_code_build_id, own_build
from workers.settings import Settings


def test_worker_without_a_deployment_is_no_build(tmp_path: Path) -> None:
    """As shipped, workers take no part in Worker Versioning, whatever build id is set."""
    assert own_build(Settings(home=tmp_path, build_id="b")) is None


def test_build_is_named_by_the_setting_or_by_version_and_code(tmp_path: Path) -> None:
    """The id can be said, as the worker controller of Kubernetes does; else it names the code that is installed."""
    told = Settings(home=tmp_path, deployment_name="space/sexton", build_id="1.2-x")
    assert own_build(told) == WorkerDeploymentVersion("space/sexton", "1.2-x")
    made = own_build(Settings(home=tmp_path, deployment_name="sexton"))
    assert made
    assert re.fullmatch(r"0\.1\.0-[0-9a-f]{12}", made.build_id)


def test_build_id_changes_with_any_line_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with where it stands; a file that holds no code changes nothing."""
    module = tmp_path / "rooms" / "one.py"
    module.parent.mkdir()
    monkeypatch.setattr(build_identity, "_PACKAGES", ("package",))
    monkeypatch.setattr(build_identity, "files", lambda _: tmp_path)

    def found() -> str:
        compute_code_build_id.cache_clear()
        return compute_code_build_id()

    try:
        module.write_text("a = 1\n")
        ids = [found()]
        module.write_text("a = 2\n")
        ids.append(found())
        module.rename(module.with_name("two.py"))
        ids.append(found())
        assert len(set(ids)) == 3
        (tmp_path / "notes.txt").write_text("no code")
        assert found() == ids[-1]
    finally:
        compute_code_build_id.cache_clear()


@pytest.mark.parametrize(
    ("name", "value"),
    [("deployment_name", "a.b"), ("deployment_name", "a b"), ("build_id", "-a"), ("build_id", "a" * 64)],
)
def test_names_that_temporal_or_kubernetes_cannot_hold_are_refused(tmp_path: Path, name: str, value: str) -> None:
    """A dot ends a deployment's name in Temporal's texts; a build id is a label of Kubernetes."""
    with pytest.raises(ValueError, match=name):
        Settings.model_validate({"home": tmp_path, name: value})
