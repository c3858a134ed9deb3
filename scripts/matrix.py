"""docs/matrix.md: the abilities of each model family, tested by running them.

    python scripts/matrix.py            print the table
    python scripts/matrix.py --write    write docs/matrix.md

Every model of harken is trained for a few steps on a small data set, evaluated, and trained once more with a
simulated kill: the resumed run must end with the same bytes. A cell passes, or gives the reason.
"""

import argparse
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import harken
from harken import registry
from harken.cli import COMMANDS
from harken.data.synthetic.phrases import phrases
from harken.data.synthetic.stories import stories
from harken.data.synthetic.tales import tales
from harken.files import sha256_of

HOME = Path(__file__).resolve().parents[1]
PAGE = HOME / "docs" / "matrix.md"
COLUMNS = ("train", "eval", "kill+resume", "inspect", "audit", "serve", "export", "compare")
PASSES = "passes"
STEPS, DIES, SAVES = 6, 5, 2  # killed in step 5; the last checkpoint is that of step 4
SETTINGS: Mapping[str, Any] = {
    "data.tokenizer": "char",
    "model.d": 16,
    "model.layers": 1,
    "model.dropout": 0.1,  # so that the random state must be restored too
    "train.steps": STEPS,
    "train.batch": 4,
    "train.checkpoint_every": SAVES,
    "train.precision": "float32",
    "train.device": "cpu",
}


HEADS = [
    *(("table", model) for model in ("bert", "gpt", "rnn")), ("tags", "bert"), ("spans", "bert"), ("images", "vit"),
    ("stories", "memnet"), *(("graph", model) for model in ("gcn", "gat", "graph-transformer")),
    ("maths", "transformer"), ("sets", "set"), ("captions", "caption"),
]  # fmt: skip
PICTURES = {"model.heads": 2, "model.stem": "patch", "model.pool": "first"}  # settings of the paper
PICTURES |= {"task.shift": 0.1, "task.flip": True, "task.erase": 0.3, "task.mixup": 0.3, "task.cutmix": 0.3}
PAIRS = {"task.eval_pairs": 10, "task.max_new_tokens": 12, "task.beam": 1, "task.label_smoothing": 0.1}
COPYING = {"model.copy": True, "data.tokenizer": "word", "data.unknown_words": 2}
COPY_MODELS = ("transformer", "rnn-attention")
TWO_HEADS = ("gpt", "bert", "transformer", "set", "caption")
SHORT = {("text", model) for model in ("gpt", "rnn", "gru", "lstm")}


class Died(Exception):
    """Simulates a kill: the training stops without any cleanup."""


@dataclass(frozen=True)
class Family:
    """A kind of data and a model that learns from it; `copies`: it can copy words of the source, also unknown ones."""

    data: str
    model: str
    copies: bool = False

    def __str__(self) -> str:
        return f"{self.data} | {self.model}{', model.copy=true' if self.copies else ''}"

    def settings(self) -> dict[str, Any]:
        family_settings: dict[str, Any] = {"model.heads": 2} if self.model in TWO_HEADS else {}
        family_settings |= {"model.context": 16} if (self.data, self.model) in SHORT else {}
        family_settings |= PAIRS if self.data == "pairs" else {}
        family_settings |= (
            {"data.tokenizer": "wordpiece"} if self.model == "bert" or self.data in ("tags", "spans") else {}
        )
        family_settings |= PICTURES if self.data == "images" else {}
        family_settings |= (
            {"task.eval_pairs": 10, "task.max_new_tokens": 8, "task.beam": 1} if self.data == "captions" else {}
        )
        family_settings |= {"model.heads": 2} if self.model in ("gat", "graph-transformer") else {}
        family_settings |= {"data.valid": 10, "data.test": 10} if self.data == "maths" else {}
        family_settings |= {"data.tokenizer": "word"} if self.data == "stories" else {}
        family_settings |= COPYING if self.copies else {}
        source = registry.find_kind("data", self.data)
        model = registry.find_kind("model", self.model, registry.FAMILIES[source.task].models)
        known = {"data": source, "model": model}
        values = {**SETTINGS, "data.kind": self.data, "model.kind": self.model, **family_settings}
        return {path: value for path, value in values.items() if _knows(known, path)}

    def write(self, folder: Path) -> Path | str:
        """Write a small data set of this kind; return its path, or the name of a generator."""
        if self.data not in DATA:
            return f"{self.data}:gcd"
        name, make = DATA["names" if self.copies else self.data]
        values = make()
        if self.data == "captions":  # the images of the table
            (folder / "spots.npz").write_bytes(_images())
        (folder / name).write_bytes(values if isinstance(values, bytes) else values.encode())
        return folder / name


def _pairs() -> str:
    return "".join(f"{source}\t{target}\n" for source, target in phrases(150))


def _names() -> str:
    """Pairs where each target has a word of its source that occurs nowhere else."""
    return "".join(f"My name is Ada{n}.\tJe m'appelle Ada{n}.\n" for n in range(60))


def _labels() -> str:
    rows = (f"A {('cold', 'warm')[n % 2]} day {n}.,{('bad', 'good')[n % 2]}\n" for n in range(60))
    return "text,label\n" + "".join(rows)


def _tags() -> str:
    return "\n".join(f"Ada{n} B-PER\nlives O\nin O\nRome B-LOC\n" for n in range(40))


def _spans() -> str:
    answers = [{"text": "Ada", "answer_start": 0}]
    read = [
        {"context": f"Ada lives in house {n}.", "qas": [{"id": str(n), "question": "Who lives?", "answers": answers}]}
        for n in range(30)
    ]
    return json.dumps({"version": "1.1", "data": [{"title": "Ada", "paragraphs": read}]})


def _images() -> bytes:
    file, rng = io.BytesIO(), np.random.default_rng(0)
    np.savez(file, x=rng.integers(0, 256, (60, 8, 8), np.uint8), y=np.arange(60) % 2)
    return file.getvalue()


def _sets() -> str:
    rows = (f"c{n},{n % 2 + 0.1 * k},{n * k},{('low', 'high')[n % 2]}\n" for n in range(60) for k in range(3 + n % 2))
    return "cloud,x,y,label\n" + "".join(rows)


def _captions() -> str:
    return "image\tcaption\n" + "".join(f"spots.npz[{n}]\tspots of kind {n % 3}\n" for n in range(60))


def _stories() -> str:
    return "".join(stories(1, 60, 0))


def _graph() -> bytes:
    file, rng = io.BytesIO(), np.random.default_rng(0)
    label = np.arange(40) % 2
    edges = [(a, b) for a, b in rng.integers(0, 40, (200, 2)).tolist() if label[a] == label[b]]
    np.savez(file, edges=np.array(edges), x=rng.normal(size=(40, 4)).astype(np.float32), label=label)
    return file.getvalue()


def _knows(parts: Mapping[str, Any], path: str) -> bool:
    """Return whether the setting exists: a memory network has no layers, and a graph has no tokenizer."""
    section, _, name = path.partition(".")
    return section not in parts or name in parts[section].model_fields


DATA: dict[str, tuple[str, Callable[[], str | bytes]]] = {
    "text": ("tales.txt", lambda: "\n\n".join(tales(8))),
    "pairs": ("phrases.tsv", _pairs),
    "names": ("names.tsv", _names),
    "table": ("days.csv", _labels),
    "tags": ("names.conll", _tags),
    "spans": ("houses.json", _spans),
    "images": ("spots.npz", _images),
    "stories": ("qa1_stories.txt", _stories),
    "graph": ("friends.npz", _graph),
    "sets": ("clouds.csv", _sets),
    "captions": ("captions.tsv", _captions),
}


def families() -> list[Family]:
    """Return every built-in model with its data; the models that copy; one body for each head, and the plain RNN."""
    encoders = [Family(data, model) for data in ("text", "pairs") for model in registry.MODELS[data]]
    copies = [Family("pairs", model, copies=True) for model in COPY_MODELS]
    return [*encoders, *copies, *(Family(*head) for head in HEADS)]


# --- the columns ------------------------------------------------------------------------------------------------------


def check_train(family: Family, text: Path | str, folder: Path) -> str:
    run = harken.train(text, out=folder / "whole", settings=family.settings())
    steps, loss = run.facts["steps"], run.metrics["valid"]["loss"]
    return PASSES if steps == STEPS and loss < 10 else f"ended at step {steps} with loss {loss:.1f}"


def check_eval(family: Family, text: Path | str, folder: Path) -> str:
    run = harken.load(folder / "whole", device="cpu")
    evaluated, stored = run.evaluate("valid")[0].metrics["loss"], run.metrics["valid"]["loss"]
    return (
        PASSES
        if math.isclose(evaluated, stored, rel_tol=1e-6)
        else f"the run has loss {stored}, evaluated again: {evaluated}"
    )


def check_resume(family: Family, text: Path | str, folder: Path) -> str:
    start_steps: list[int] = []

    def die(event: str, **facts: Any) -> None:
        if event == "step" and facts["step"] == DIES:
            raise Died

    def note(event: str, **facts: Any) -> None:
        if event == "start":
            start_steps.append(facts["step"])

    with suppress(Died):
        harken.train(text, out=folder / "broken", settings=family.settings(), listen=die)
    resumed = harken.train(folder / "broken", resume=True, listen=note)
    if start_steps != [SAVES * (DIES // SAVES)]:
        return f"resumed from step {start_steps[-1] if start_steps else STEPS}, not from the last checkpoint"
    same = sha256_of(resumed.path / "model.safetensors") == sha256_of(folder / "whole" / "model.safetensors")
    return PASSES if same else "the resumed weights differ from those of the uninterrupted run"


def check_audit(family: Family, text: Path | str, folder: Path) -> str:
    report = harken.audit(folder / "whole")
    return PASSES if report.passed else str(report)


def check_compare(family: Family, text: Path | str, folder: Path) -> str:
    comparison = harken.compare(text, settings=family.settings(), seeds=2, out=folder / "compared")
    return PASSES if all(row["interval"].get("loss") for row in comparison.rows) else comparison.verdict


def check_export(family: Family, text: Path | str, folder: Path) -> str:
    from harken.bridge.export import export

    export(harken.load(folder / "whole", device="cpu"), folder / "there")
    return PASSES


def verb(name: str) -> str:
    """Return the text for a command that this table does not test."""
    return "not tried here" if name in COMMANDS else f"comes with `harken {name}`"


CHECKS: dict[str, Callable[[Family, Path | str, Path], str]] = {
    "train": check_train,
    "eval": check_eval,
    "kill+resume": check_resume,
    "audit": check_audit,
    "compare": check_compare,
}


def cell(column: str, family: Family, text: Path | str, folder: Path) -> str:
    try:
        if column == "export":  # not every family has a counterpart
            return check_export(family, text, folder)
        return CHECKS[column](family, text, folder) if column in CHECKS else verb(column)
    except harken.HarkenError as error:
        return str(error).removeprefix(f"{folder / 'whole'}: ")


def row(family: Family) -> list[str]:
    """Test this family; return its cells."""
    before, threads = os.environ.get("HARKEN_CACHE"), torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, torch.random.fork_rng(devices=[]):
        folder = Path(name)
        os.environ["HARKEN_CACHE"] = str(folder / "cache")
        try:
            return [cell(column, family, family.write(folder), folder) for column in COLUMNS]
        finally:
            torch.set_num_threads(threads)
            os.environ.pop("HARKEN_CACHE") if before is None else os.environ.update(HARKEN_CACHE=before)


# --- the page ---------------------------------------------------------------------------------------------------------


def page(rows: Mapping[Family, list[str]]) -> str:
    lines = [
        "# Which family can do what",
        "",
        "Written by `python scripts/matrix.py --write`, which tests every cell; tests/docs/test_matrix.py tests them",
        "again and compares. A cell passes, or gives the reason.",
        "",
        f"| data | model | {' | '.join(COLUMNS)} |",
        "|" + "---|" * (len(COLUMNS) + 2),
        *(f"| {family} | {' | '.join(cells)} |" for family, cells in rows.items()),
        "",
        "- train: a few steps on a little data, from its file to a finished run folder.",
        "- eval: the finished run, loaded and evaluated again, has the same loss to 6 digits: inference packs weights.",
        "- kill+resume: stopped between two checkpoints and resumed, the run ends with the same bytes as an",
        "  uninterrupted one. Dropout is on, so the random state is restored as well. tests/training/test_resume.py",
        "  kills runs at any time and at every write of a file.",
        "- audit: no check of `harken audit` fails ([audit.md](audit.md)).",
        "- export: to the layout of transformers, with a certificate; or the reason why it cannot be exported.",
        "- compare: two seeds; every loss has its interval.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/matrix.md")
    text = page({family: row(family) for family in families()})
    if parser.parse_args().write:
        PAGE.write_text(text, "utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
