"""Output is there as a whole or not at all, whichever attempt dies where."""

from pathlib import Path

import pytest

from logstore import failpoints
from logstore.errors import CorruptData, InvalidInput
from logstore.failpoints import SimulatedCrash
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from spark.published_output import PublishedOutputs


@pytest.fixture
def publication(tmp_path: Path) -> PublishedOutputs:
    return PublishedOutputs(tmp_path / "bulk")


def _attempt(publication: PublishedOutputs, text: str) -> Path:
    folder = publication.create_attempt_folder("run-1", "list-storage")
    (folder / "part").write_text(text)
    return folder


def test_attempt_is_invisible_until_it_is_published(publication: PublishedOutputs) -> None:
    folder = _attempt(publication, "one")
    assert publication.read_summary("run-1", "list-storage") is None
    done = publication.publish("run-1", "list-storage", folder, BulkJobSummary(counts={"objects": 3}))
    assert publication.read_summary("run-1", "list-storage") == done
    assert (Path(done.folder) / "part").read_text() == "one"


def test_first_complete_attempt_wins_and_the_other_is_thrown_away(publication: PublishedOutputs) -> None:
    first, late = _attempt(publication, "first"), _attempt(publication, "late")
    done = publication.publish("run-1", "list-storage", first, BulkJobSummary(counts={"objects": 1}))
    assert publication.publish("run-1", "list-storage", late, BulkJobSummary(counts={"objects": 2})) == done
    assert not late.exists()


def test_task_that_outlives_its_attempt_changes_nothing_that_is_published(publication: PublishedOutputs) -> None:
    attempt = _attempt(publication, "one")
    late = attempt / ".part.new"
    late.write_text("late")
    done = publication.publish("run-1", "list-storage", attempt, BulkJobSummary())
    for write in (lambda: late.replace(attempt / "part"), (attempt / "other").touch):
        with pytest.raises(FileNotFoundError):
            write()
    assert (Path(done.folder) / "part").read_text() == "one"
    assert publication.read_summary("run-1", "list-storage") == done


@pytest.mark.parametrize(("when", "published"), [("before", False), ("after", True)])
def test_death_at_the_link_leaves_all_or_nothing(publication: PublishedOutputs, when: str, published: bool) -> None:
    folder = _attempt(publication, "one")
    failpoints.arm(f"bulk.publish.{when}", "crash")
    with pytest.raises(SimulatedCrash):
        publication.publish("run-1", "list-storage", folder, BulkJobSummary())
    assert (publication.read_summary("run-1", "list-storage") is not None) is published
    failpoints.disarm_all_and_take_hits()
    again = publication.publish("run-1", "list-storage", _attempt(publication, "two"), BulkJobSummary())
    assert (Path(again.folder) / "part").read_text() == ("one" if published else "two")


def test_forgotten_run_has_no_output(publication: PublishedOutputs) -> None:
    publication.publish("run-1", "list-storage", _attempt(publication, "one"), BulkJobSummary())
    assert publication.list_runs() == ["run-1"]
    publication.remove_run_outputs("run-1")
    publication.remove_run_outputs("run-1")
    assert (publication.read_summary("run-1", "list-storage"), publication.list_runs()) == (None, [])


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "A", "-a", "a" * 81])
def test_run_id_that_could_name_another_folder_is_refused(publication: PublishedOutputs, run_id: str) -> None:
    with pytest.raises(InvalidInput, match="run_id"):
        publication.create_attempt_folder(run_id, "list-storage")


def test_damaged_pointer_is_no_summary(publication: PublishedOutputs) -> None:
    folder = publication.publish("run-1", "list-storage", _attempt(publication, "one"), BulkJobSummary()).folder
    (Path(folder).parents[1] / "list-storage.json").write_text("[]")
    with pytest.raises(CorruptData, match=r"list-storage.json"):
        publication.read_summary("run-1", "list-storage")


def test_output_that_lost_a_file_is_refused(publication: PublishedOutputs) -> None:
    """As where the machine died before its disk had it."""
    folder = publication.publish("run-1", "list-storage", _attempt(publication, "one"), BulkJobSummary()).folder
    (Path(folder) / "part").write_text("")
    with pytest.raises(CorruptData, match="expected 3 bytes of part"):
        publication.read_summary("run-1", "list-storage")
