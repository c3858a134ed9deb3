"""The examples in the docstrings of Run and load, each on a tiny run of the matching task."""

import doctest
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harken
from harken.bridge import importer
from harken.data.tokenizers.pretrained import PretrainedTokenizer
from harken.data.tokenizers.tokenizer import train_tokenizer
from harken.inference import loaded_model, run
from harken.inference.chat import CHAT_TEMPLATES
from harken.recipe import resolve

SMALL = {"model.d": 16, "model.layers": 1, "model.heads": 2, "train.batch": 8, "train.steps": 2, "train.threads": 1}
WORDS = {**SMALL, "data.tokenizer": "word", "data.vocab_size": 120}
LINES = ["Tom had a hat.", "Lily sat on a log.", "Tom saw a big dog.", "The dog had a hat.", "Lily ran home."] * 60
PLACES = ["kitchen", "garden", "office"]


class StandInFrame(dict[str, list[str]]):
    """A table with the two members of a DataFrame that harken uses."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def text_file(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def pair_file(folder: Path) -> Path:
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{line} {n}\t{n} {line}\n" for n, line in enumerate(LINES[:120])))
    return path


def label_file(folder: Path) -> Path:
    path = folder / "labels.tsv"
    rows = (f"a {'good' if n % 2 else 'bad'} film {n}\t{'positive' if n % 2 else 'negative'}\n" for n in range(120))
    path.write_text("text\tlabel\n" + "".join(rows))
    return path


def tag_file(folder: Path) -> Path:
    path = folder / "tags.conll"
    path.write_text("\n".join(f"Ada X I-PER\nlives X O\nin X O\nRome X I-LOC\n{n} X O\n" for n in range(80)))
    return path


def story_file(folder: Path) -> Path:
    path = folder / "stories.txt"
    blocks = []
    for n in range(90):
        place, other = PLACES[n % 3], PLACES[(n + 1) % 3]
        blocks.append(f"1 Mary went to the {place}.\n2 John went to the {other}.\n3 Where is Mary?\t{place}\t1\n")
    path.write_text("".join(blocks))
    return path


def caption_file(folder: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8)).astype(np.uint8)
    np.savez(folder / "images.npz", x=images, y=np.arange(60) % 3)
    path = folder / "captions.tsv"
    rows = (f"images.npz[{n}]\tpattern number {n % 3}\n" for n in range(60))
    path.write_text("image\tcaption\n" + "".join(rows))
    return path


CAPTIONS = {**SMALL, "data.kind": "captions", "task.eval_pairs": 4, "task.max_new_tokens": 4, "task.beam": 1}
FAMILIES: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "text": (text_file, {**WORDS, "model.kind": "gpt", "model.context": 16}),
    "masked": (text_file, {**SMALL, "model.kind": "bert", "model.context": 16, "data.vocab_size": 120}),
    "pairs": (pair_file, {**WORDS, "task.eval_pairs": 4, "task.max_new_tokens": 8}),
    "labels": (label_file, {**SMALL, "data.kind": "table", "data.vocab_size": 120}),
    "tags": (tag_file, {**SMALL, "data.vocab_size": 120}),
    "stories": (story_file, {"data.kind": "stories", "model.d": 16, "train.steps": 2, "train.batch": 8}),
    "captions": (caption_file, CAPTIONS),
}
EXAMPLES = {  # method: its family; all others use "text"
    "Run.fill": "masked",
    "Run.translate": "pairs",
    "Run.alternatives": "pairs",
    "Run.classify": "labels",
    "Run.predict": "labels",
    "Run.tag": "tags",
    "Run.ask": "stories",
    "Run.story": "stories",
    "Run.caption": "captions",
    "Run.chat": "chat",
}


@pytest.fixture(scope="module")
def load_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], harken.Run]:
    """Trains the run of a family on first use."""
    home = tmp_path_factory.mktemp("doctests")
    runs: dict[str, harken.Run] = {}

    def load(family: str) -> harken.Run:
        if family not in runs:
            write, settings = FAMILIES[family]
            folder = home / family
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HARKEN_CACHE", str(home / "cache"))
                patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
                runs[family] = harken.train(write(folder), out=folder / "run", settings=settings)
        return runs[family]

    return load


def chat_run(folder: Path) -> harken.Run:
    """An untrained GPT with the special tokens of a chat template."""
    spec = json.loads(train_tokenizer("bpe", lambda: LINES, 300).json)
    n_tokens = len(spec["model"]["vocab"])
    for n, token in enumerate((CHAT_TEMPLATES[0].start, CHAT_TEMPLATES[0].end), n_tokens):
        spec["added_tokens"].append({**spec["added_tokens"][0], "id": n, "content": token, "special": True})
    tokenizer = PretrainedTokenizer.from_spec(spec, "test")
    recipe = resolve(("test", {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 128}))
    return harken.Run(folder, recipe, {}, recipe.build(tokenizer.vocab), tokenizer)


TESTS = {
    test.name.split(".", 3)[-1]: test
    for module in (run, loaded_model, importer)
    for test in doctest.DocTestFinder().find(module)
    if test.examples
}


@pytest.mark.parametrize("name", TESTS)
def test_the_example_of_a_docstring_runs(
    name: str, load_family: Callable[[str], harken.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Tom had a hat.\nLily sat.\n")
    family = EXAMPLES.get(name, "text")
    loaded = chat_run(tmp_path) if family == "chat" else load_family(family)
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    test = TESTS[name]
    frame = StandInFrame({"text": ["a good film", "a bad film"]})
    test.globs |= {"run": loaded, "folder": loaded.path, "image": image, "frame": frame}
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
    assert outcome.attempted > 0 or "SKIP" in test.docstring
    assert outcome.failed == 0


def test_every_public_method_has_an_example() -> None:
    methods = [
        name
        for owner in (harken.Run, loaded_model.LoadedModel)
        for name, member in vars(owner).items()
        if callable(member) and not name.startswith("_")
    ]
    names = {name.rpartition(".")[2] for name in TESTS}
    assert [name for name in methods if name not in names] == []
    assert "load" in names
