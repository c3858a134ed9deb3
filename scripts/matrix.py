"""docs/matrix.md: which family can do what, found out by doing it.

    python scripts/matrix.py            print the table
    python scripts/matrix.py --write    write docs/matrix.md

Every model of harken is trained for a few steps on a little of harken's own data, judged, and trained once more with a
death in the middle: the resumed run must end with the same bytes. A cell passes, or says why not.
"""

import argparse
import io
import json
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
COLUMNS = ("train", "eval", "kill+resume", "look", "audit", "serve", "export", "compare")
PASSES = "passes"
STEPS, DIES, SAVES = 6, 5, 2  # dies in step 5; the last checkpoint is of step 4
SETTINGS: Mapping[str, Any] = {
    "data.tokenizer": "char",
    "model.d": 16,
    "model.layers": 1,
    "model.dropout": 0.1,  # so that the random state must be taken up again too
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
PICTURES = {"model.heads": 2, "model.stem": "patch", "model.pool": "first"}  # those of the paper, which others have too
PICTURES |= {"task.shift": 0.1, "task.flip": True, "task.erase": 0.3, "task.mixup": 0.3, "task.cutmix": 0.3}
PAIRS = {"task.eval_pairs": 10, "task.max_new_tokens": 12, "task.beam": 1, "task.label_smoothing": 0.1}
TWO_HEADS = ("gpt", "bert", "transformer", "set", "caption")
SHORT = {("text", model) for model in ("gpt", "rnn", "gru", "lstm")}


class Died(Exception):
    """What stands in for a kill: the training is left where it is, nothing is tidied up."""


@dataclass(frozen=True)
class Family:
    """A kind of data and a model that learns from it."""

    data: str
    model: str

    def settings(self) -> dict[str, Any]:
        own: dict[str, Any] = {"model.heads": 2} if self.model in TWO_HEADS else {}
        own |= {"model.context": 16} if (self.data, self.model) in SHORT else {}
        own |= PAIRS if self.data == "pairs" else {}
        own |= {"data.tokenizer": "wordpiece"} if self.model == "bert" or self.data in ("tags", "spans") else {}
        own |= PICTURES if self.data == "images" else {}
        own |= {"task.eval_pairs": 10, "task.max_new_tokens": 8, "task.beam": 1} if self.data == "captions" else {}
        own |= {"model.heads": 2} if self.model in ("gat", "graph-transformer") else {}
        own |= {"data.valid": 10, "data.test": 10} if self.data == "maths" else {}
        own |= {"data.tokenizer": "word"} if self.data == "stories" else {}
        source = registry.find_kind("data", self.data)
        known = {"data": source, "model": registry.find_kind(f"model{getattr(source, 'model_group', '')}", self.model)}
        made = {**SETTINGS, "data.kind": self.data, "model.kind": self.model, **own}
        return {path: value for path, value in made.items() if _knows(known, path)}

    def write(self, folder: Path) -> Path | str:
        """A little data of this kind, or the name of what is drawn."""
        if self.data not in DATA:
            return f"{self.data}:gcd"
        name, make = DATA[self.data]
        made = make()
        if self.data == "captions":  # whose pictures lie beside them
            (folder / "spots.npz").write_bytes(_images())
        (folder / name).write_bytes(made if isinstance(made, bytes) else made.encode())
        return folder / name


def _pairs() -> str:
    return "".join(f"{source}\t{target}\n" for source, target in phrases(150))


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
    """Whether there is such a setting: a memory network has no layers, and a graph no tokens."""
    section, _, name = path.partition(".")
    return section not in parts or name in parts[section].model_fields


DATA: dict[str, tuple[str, Callable[[], str | bytes]]] = {
    "text": ("tales.txt", lambda: "\n\n".join(tales(8))),
    "pairs": ("phrases.tsv", _pairs),
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
    """Every model harken brings, with the data it learns from. Of heads one for each body; of RNNs the plain one."""
    shelves = {"text": "model", "pairs": "model of pairs"}
    found = [Family(data, model) for data, shelf in shelves.items() for model in registry.BUILT_IN[shelf]]
    return [*found, *(Family(*head) for head in HEADS)]


# --- the columns ------------------------------------------------------------------------------------------------------


def trains(family: Family, text: Path | str, folder: Path) -> str:
    made = harken.train(text, out=folder / "whole", settings=family.settings())
    steps, loss = made.facts["steps"], made.metrics["valid"]["loss"]
    return PASSES if steps == STEPS and loss < 10 else f"ended at step {steps} with loss {loss:.1f}"


def evaluates(family: Family, text: Path | str, folder: Path) -> str:
    whole = harken.load(folder / "whole", device="cpu")
    again, told = whole.evaluate("valid")[0].metrics["loss"], whole.metrics["valid"]["loss"]
    return PASSES if again == told else f"the run says {told}, judging it again {again}"


def resumes(family: Family, text: Path | str, folder: Path) -> str:
    begun: list[int] = []

    def die(event: str, **facts: Any) -> None:
        if event == "step" and facts["step"] == DIES:
            raise Died

    def note(event: str, **facts: Any) -> None:
        if event == "start":
            begun.append(facts["step"])

    with suppress(Died):
        harken.train(text, out=folder / "broken", settings=family.settings(), listen=die)
    resumed = harken.train(folder / "broken", resume=True, listen=note)
    if begun != [SAVES * (DIES // SAVES)]:
        return f"went on from step {begun[-1] if begun else STEPS}, not from the last checkpoint"
    same = sha256_of(resumed.path / "model.safetensors") == sha256_of(folder / "whole" / "model.safetensors")
    return PASSES if same else "the resumed weights are not those of the unbroken run"


def audits(family: Family, text: Path | str, folder: Path) -> str:
    found = harken.audit(folder / "whole")
    return PASSES if found.passed else str(found)


def compares(family: Family, text: Path | str, folder: Path) -> str:
    found = harken.compare(text, settings=family.settings(), seeds=2, out=folder / "compared")
    return PASSES if all(row["interval"].get("loss") for row in found.rows) else found.verdict


def exports(family: Family, text: Path | str, folder: Path) -> str:
    from harken.bridge.export import export

    export(harken.load(folder / "whole", device="cpu"), folder / "there")
    return PASSES


def verb(name: str) -> str:
    """A verb this table does not try: it is not there yet, or the table is behind."""
    return "not tried here" if name in COMMANDS else f"comes with `harken {name}`"


CHECKS: dict[str, Callable[[Family, Path | str, Path], str]] = {
    "train": trains,
    "eval": evaluates,
    "kill+resume": resumes,
    "audit": audits,
    "compare": compares,
}


def cell(column: str, family: Family, text: Path | str, folder: Path) -> str:
    try:
        if column == "export":  # not every family has a counterpart
            return exports(family, text, folder)
        return CHECKS[column](family, text, folder) if column in CHECKS else verb(column)
    except harken.HarkenError as error:
        return str(error).removeprefix(f"{folder / 'whole'}: ")


def row(family: Family) -> list[str]:
    """What this family can do, tried now."""
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
        "Written by `python scripts/matrix.py --write`, which tries every cell; tests/docs/test_matrix.py tries them",
        "again and compares. A cell passes, or says why not.",
        "",
        f"| data | model | {' | '.join(COLUMNS)} |",
        "|" + "---|" * (len(COLUMNS) + 2),
        *(f"| {f.data} | {f.model} | {' | '.join(cells)} |" for f, cells in rows.items()),
        "",
        "- train: a few steps on a little data, from its file to a finished run folder.",
        "- eval: the finished run, loaded and judged again, has the loss it was finished with, to the last bit.",
        "- kill+resume: left between two checkpoints and resumed from the last one, the run ends with the same bytes",
        "  as the unbroken one. Dropout is on, so the dice are taken up again as well. Real kills, at any time and",
        "  wherever a file is written: tests/training/test_resume.py.",
        "- audit: no check of `harken audit` fails ([audit.md](audit.md)).",
        "- export: to the layout of transformers, with a certificate; or what keeps this run from it.",
        "- compare: two seeds; every loss has its interval.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/matrix.md")
    made = page({family: row(family) for family in families()})
    if parser.parse_args().write:
        PAGE.write_text(made, "utf-8")
    else:
        print(made, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
