"""Fixtures for all tests: random seed, default precision and threads, a temporary cache, and small trained runs."""

import gc
import json
import sys
from collections.abc import Iterator
from getpass import getuser
from itertools import product
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

COMPILED = Path(gettempdir()) / f"torchinductor_{getuser()}"  # PyTorch's default: shared by all tests


def pytest_collection() -> None:
    """Imported modules and collected tests are not garbage: without the collector, collection takes two thirds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Later passes of the garbage collector skip the modules and tests; each is 0.5 s shorter."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def reset_torch_state(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """Seed torch if it is imported; tests without torch do not import it."""
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(COMPILED))
    if "torch" not in sys.modules and "core" not in request.path.parts:
        yield
        return
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed(0) stores the stack for each kind of accelerator: 1 ms
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    yield
    torch.set_default_dtype(dtype)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if "harken.core.products" in sys.modules:
        sys.modules["harken.core.products"].enabled = False  # type: ignore[attr-defined]  # a Trainer sets it


@pytest.fixture
def largest() -> Any:
    """Inside it, `numel` is the size of the largest tensor that an operation returned."""
    from largest_tensor import Largest

    return Largest()


# --- tiny runs, trained once: a gpt on characters, words and byte pairs, and an lstm ----------------------------------

TINY = {"model.d": 16, "model.context": 16, "train.steps": 20, "train.batch": 8, "train.eval_every": 20}
GPT = {"model.kind": "gpt", "model.layers": 1, "model.heads": 2}
KINDS = {
    "char": {**GPT, "data.tokenizer": "char"},
    "word": {**GPT, "data.tokenizer": "word", "data.vocab_size": 120},
    "bpe": {**GPT, "data.tokenizer": "bpe", "data.vocab_size": 300},
    "lstm": {"model.kind": "lstm", "data.tokenizer": "char"},
}


@pytest.fixture(scope="session")
def tales(tmp_path_factory) -> Path:
    from harken.data.synthetic.tales import tales

    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text("\n\n".join(tales(30)) + "\n")
    return path


@pytest.fixture(scope="session")
def folders(tmp_path_factory, tales) -> dict[str, Path]:
    """Run folders, read-only."""
    from harken.experiments import train

    home = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
        for name, settings in KINDS.items():
            train.train(tales, out=home / name, settings={**TINY, **settings})
    return {name: home / name for name in KINDS}


@pytest.fixture(scope="session")
def pair_file(tmp_path_factory) -> Path:
    """All sentences of a grammar that a tiny model learns in seconds; adjectives follow their nouns in the target."""
    who = {"I": "je", "she": "elle", "he": "il", "Tom": "Tom"}
    do = {"saw": "vu", "lost": "perdu", "found": "trouvé", "ate": "mangé"}
    how = {"red": "rouge", "big": "grand", "old": "vieux", "": ""}
    what = {"cat": "chat", "dog": "chien", "fish": "poisson", "bus": "bus"}
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    with path.open("w") as file:
        for a, b, c, d in product(who, do, how, what):
            source, target = f"{a} {b} the {c} {d}.", f"{who[a]} a {do[b]} le {what[d]} {how[c]}"
            file.write(f"{' '.join(source.split())}\t{target.strip()}.\n")
    return path


PAIRED = {"model.d": 32, "model.layers": 1, "model.heads": 2, "data.tokenizer": "word", "task.eval_pairs": 40}
PAIRED |= {"train.steps": 90, "train.batch": 32, "train.eval_every": 45, "train.threads": 1}


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory, pair_file) -> Path:
    """A run of pairs, read-only."""
    from harken.experiments import train

    home = tmp_path_factory.mktemp("paired")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        train.train(pair_file, out=home / "pairs", settings=PAIRED)
    return home / "pairs"


@pytest.fixture
def char(folders):
    import harken

    return harken.load(folders["char"])


@pytest.fixture(params=list(KINDS))
def every(request, folders):
    """A run of each kind, in double precision."""
    import harken

    run = harken.load(folders[request.param])
    run.model.double()
    return run


# --- a model of another library ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def byte_pairs():
    """A BPE tokenizer of a few tales."""
    from harken.data.synthetic.tales import tales
    from harken.data.tokenizers.tokenizer import train_tokenizer

    return train_tokenizer("bpe", lambda: ["\n".join(tales(50))], 400)


@pytest.fixture
def small(tmp_path: Path, byte_pairs) -> Path:
    """A GPT-2 of one layer in Hugging Face layout, written without transformers."""
    import numpy as np
    from safetensors.numpy import save_file

    D, L, V = 16, 64, byte_pairs.vocab
    shapes = {"wte.weight": (V, D), "wpe.weight": (L, D)}
    for name in ("ln_f", "h.0.ln_1", "h.0.ln_2"):
        shapes |= {f"{name}.weight": (D,), f"{name}.bias": (D,)}
    maps = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, 4 * D), "mlp.c_proj": (4 * D, D)}
    for name, shape in maps.items():
        shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[1:]}
    folder, rng = tmp_path / "small", np.random.default_rng(0)
    folder.mkdir()
    tensors = {f"transformer.{name}": rng.normal(0, 0.3, shape).astype("f4") for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "gpt2", "n_embd": D, "n_layer": 1, "n_head": 2, "n_positions": L, "vocab_size": V}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(byte_pairs.json)
    return folder
