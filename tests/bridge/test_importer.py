"""From a source to a run: what is written, what the certificate says, and what happens when it fails."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import harken
from harken import run_folder
from harken.bridge import certificate, weight_mapping
from harken.bridge.importer import bring
from harken.errors import BadInput, HarkenError

pytestmark = pytest.mark.filterwarnings("ignore")


def test_an_imported_run_is_a_run_like_any_other(small: Path, tmp_path: Path) -> None:
    made = bring(small, tmp_path / "run")
    loaded = harken.load(tmp_path / "run")
    assert run_folder.facts(tmp_path / "run")["sha256"].keys() >= {
        "certificate.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert loaded.generate("Once upon", tokens=9) == made.generate("Once upon", tokens=9)
    assert loaded.score("Once upon a time")["perplexity"] > 1
    assert loaded.facts["imported"] == {"source": str(small), "family": "gpt2"}
    assert loaded.recipe.data.tokens == "bpe"
    assert loaded.metrics == {}


def test_a_model_folder_is_loaded_as_it_is_and_imported_once(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = harken.load(small)
    assert first.generate("Once", tokens=5) == bring(small, tmp_path / "run").generate("Once", tokens=5)
    monkeypatch.setattr("harken.bridge.importer.bring", lambda *_, **__: pytest.fail("imported again"))
    assert harken.load(small).path == first.path
    assert not (small / "harken.json").exists()


def test_a_changed_certificate_is_noticed(small: Path, tmp_path: Path) -> None:
    bring(small, tmp_path / "run")
    (tmp_path / "run" / "certificate.json").write_text("{}")
    with pytest.raises(harken.BadRun, match=r"certificate\.json: is not the file this run was finished with"):
        run_folder.facts(tmp_path / "run")


@pytest.mark.oracle
def test_the_certificate_says_what_was_compared(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    bring(small, tmp_path / "run")
    said = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert said["passed"] is True
    assert said["not_checked"] == []
    assert said["logits"]["max_difference"] <= 1e-5
    assert said["greedy"]["equal"] == said["greedy"]["tokens"] == 32
    assert said["tokenizer"]["equal"] == said["tokenizer"]["texts"] == len(certificate.TEXTS)
    assert said["versions"].keys() >= {"harken", "torch", "transformers", "tokenizers"}


def test_without_transformers_it_says_what_was_not_checked(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def none(name: str, *args: Any, **how: Any) -> Any:
        if name.split(".")[0] == "transformers":
            raise ModuleNotFoundError("no", name="transformers")
        return real(name, *args, **how)

    monkeypatch.setattr(builtins, "__import__", none)
    bring(small, tmp_path / "run")
    said = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert said["passed"] is True
    assert said["tokenizer"]["passed"] is True
    assert "logits" not in said
    assert said["not_checked"] == [
        'what the model says, for lack of transformers; install it with: pip install "harken[hf]"'
    ]


@pytest.mark.parametrize("error", [ImportError("no kernel"), ModuleNotFoundError("no", name="kernels")])
def test_what_transformers_lacks_is_no_reason_to_skip_the_certificate(
    error: ImportError, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr("harken.bridge.transformers_reference.witness", fails)
    with pytest.raises(HarkenError, match=r"transformers cannot load it \(no( kernel)?\); it is not imported"):
        bring(small, tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_weights_that_changed_are_not_taken_from_the_cache(small: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(small / "model.safetensors")
    (small / "model.safetensors").unlink()
    listed = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "mine.safetensors")}
    (small / "model.safetensors.index.json").write_text(json.dumps(listed))
    save_file(tensors, small / "mine.safetensors")
    first = harken.load(small)
    save_file({name: tensor + 0.5 for name, tensor in tensors.items()}, small / "mine.safetensors")
    moved = harken.load(small).model.embed.weight - first.model.embed.weight
    assert moved[: first.model.vocab].detach() == pytest.approx(0.5, abs=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("wrong", ["look.W_q.weight", "mlp.W_2.bias", "embed.weight", "norm.weight"])
def test_one_wrong_weight_fails_the_certificate_and_leaves_nothing_else(
    wrong: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    real = weight_mapping.read

    def read(*args: Any) -> dict[str, torch.Tensor]:
        found = real(*args)
        for name in found:
            if name.endswith(wrong):
                found[name].view(-1)[7] += 0.5
        return found

    monkeypatch.setattr(weight_mapping, "read", read)
    with pytest.raises(HarkenError, match=r"certificate\.json: .*logits differ.*; nothing else was kept") as error:
        bring(small, tmp_path / "run")
    assert error.value.exit_code == 1
    left = [path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")]
    assert left == ["certificate.json"]
    assert json.loads((tmp_path / "run" / "certificate.json").read_text())["passed"] is False
    with pytest.raises(HarkenError):
        harken.load(tmp_path / "run")


def test_a_nan_in_what_is_compared_fails_the_certificate() -> None:
    found = certificate.near(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 1.0]))
    assert found["passed"] is False


def test_other_ids_fail_the_certificate(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harken.bridge.folder import Folder

    real = Folder.encode
    monkeypatch.setattr(Folder, "encode", lambda self, texts: [[*ids, 5] for ids in real(self, texts)])
    with pytest.raises(HarkenError, match="tokenizer differ"):
        bring(small, tmp_path / "run")


def test_a_model_with_more_words_than_its_tokenizer_has_ids_says_the_same(small: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(small / "model.safetensors")
    words = tensors["transformer.wte.weight"]
    tensors["transformer.wte.weight"] = torch.cat([words, torch.randn(112, words.shape[1])])
    save_file(tensors, small / "model.safetensors")
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": len(words) + 112}))
    made = bring(small, tmp_path / "run")
    assert made.model.vocab == len(words)
    assert harken.load(tmp_path / "run").generate("a", tokens=3) == made.generate("a", tokens=3)


def test_half_precision_weights_are_the_same_numbers_in_float32(small: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {name: t.to(torch.bfloat16) for name, t in load_file(small / "model.safetensors").items()}
    save_file(tensors, small / "model.safetensors")
    made = bring(small, tmp_path / "run")
    assert made.model.embed.weight.dtype == torch.float32
    assert torch.equal(made.model.embed.weight[: made.model.vocab], tensors["transformer.wte.weight"].float())


def test_what_is_no_model_is_refused_by_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"accepted are a folder, a \.gguf file, org/name@revision, and smollm2, minilm"):
        bring("smolm2?", tmp_path / "run")
    with pytest.raises(BadInput, match="shakespeare: this set of the catalogue holds no weights"):
        bring("shakespeare", tmp_path / "run")
