"""A report that is built again equals the one of the training, and no damaged file gets a new checksum."""

import shutil

import pytest

import harken
from harken import run_folder
from harken.errors import BadRun
from harken.experiments.report.rebuild import rebuild_report


@pytest.fixture
def copy(folders, tmp_path, monkeypatch):
    """A copy of the char run that may be modified."""
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
    return shutil.copytree(folders["char"], tmp_path / "char")


def test_a_deleted_report_is_built_again_with_the_same_content(copy, folders):
    original = (copy / "report.html").read_text().replace(str(folders["char"]), str(copy))
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "report.html").unlink()
    assert rebuild_report(copy) == copy / "report.html"
    assert (copy / "report.html").read_text() == original
    assert (copy / "model.safetensors").read_bytes() == weights
    run_folder.read_manifest(copy)  # every checksum is right
    assert harken.load(copy).generate("Tom", max_new_tokens=2, temperature=0)


@pytest.mark.parametrize("name", ["log.jsonl", "cost.json", "model.safetensors"])
def test_a_modified_file_of_the_run_is_refused_and_gets_no_new_checksum(copy, name):
    (copy / name).write_bytes(b"{}\n")
    manifest = (copy / "harken.json").read_bytes()
    with pytest.raises(BadRun, match=f"{name}: SHA-256 mismatch"):
        rebuild_report(copy)
    assert (copy / "harken.json").read_bytes() == manifest


def test_without_its_data_an_intact_report_stays_and_a_missing_one_has_no_samples(tmp_path, tales, monkeypatch):
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
    data = shutil.copy(tales, tmp_path / "my.txt")
    tiny = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.steps": 1}
    harken.train(data, out=tmp_path / "run", settings=tiny)
    (tmp_path / "my.txt").unlink()
    original, notices = (tmp_path / "run" / "report.html").read_text(), []

    def listen(event, **facts):
        notices.extend([facts["text"]] if event == "notice" else [])

    path = rebuild_report(tmp_path / "run", listen=listen)
    assert path.read_text() == original
    assert notices[0].startswith("the report stays as it is: ")
    path.unlink()
    rebuild_report(tmp_path / "run", listen=listen)
    assert notices[1].startswith("the report has no samples: ")
    page = path.read_text()
    assert ("Samples" in page, "Learning curves" in page, "Recipe" in page) == (False, True, True)
    run_folder.read_manifest(tmp_path / "run")


def test_an_imported_run_gets_a_report(small, tmp_path):
    from harken.bridge.importer import import_model

    import_model(small, tmp_path / "imported")
    path = rebuild_report(tmp_path / "imported")
    assert "training report" in path.read_text()
    run_folder.read_manifest(tmp_path / "imported")
