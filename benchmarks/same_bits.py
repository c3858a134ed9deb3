"""Check that a refactoring changes no bit of any model: train every family, hash weights, metrics and outputs, compare.

    python benchmarks/same_bits.py record before.json      with the code before the change
    python benchmarks/same_bits.py record after.json       with the code after it, on the same machine
    python benchmarks/same_bits.py compare before.json after.json

Each row is one tiny training in float32 with one thread, on data that this script generates. Tensor names and file
layouts may change between the two versions, values may not: the script hashes every weight tensor by its content.
The generated data sets of the catalogue are hashed too. `before` may be a version with the former setting names
(FORMER_NAMES translates them). The exit code of `compare` is 1 if any row differs.
"""

import argparse
import hashlib
import importlib.util
import io
import json
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import harken

STEPS = 6
COMMON = {"train.steps": STEPS, "train.batch": 4, "train.precision": "float32", "train.device": "cpu"}
COMMON |= {"train.threads": 1}
SMALL = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.dropout": 0.1}
CONTEXT = {"model.context": 16}
PAIRS = {"task.eval_pairs": 10, "task.max_new_tokens": 12, "task.beam": 2, "task.label_smoothing": 0.1}
BIGBIRD = {"model.structure": "bigbird", "model.block_size": 4, "model.window_blocks": 1, "model.global_blocks": 1}
BIGBIRD |= {"model.random_blocks": 1, "model.random_seed": 3, "model.context": 64}
COPYING = {"data.kind": "pairs", "data.tokenizer": "word", "model.copy": True, "data.unknown_words": 2}
WORDPIECE = {"data.tokenizer": "wordpiece", "data.target_tokenizer": "wordpiece"}
TWO_VOCABULARIES = {"data.shared_vocab": False, "model.share_embeddings": False}
MEMNET = {"data.kind": "stories", "model.kind": "memnet", "model.d": 16}
AUGMENT = {"model.stem": "patch", "model.pool": "first"}
AUGMENT |= {"task.shift": 0.1, "task.flip": True, "task.erase": 0.3, "task.mixup": 0.3, "task.cutmix": 0.3}

FORMER_NAMES = {  # name of a setting -> its name before the redesign
    "data.tokenizer": "data.tokens",
    "data.batching": "data.batches",
    "data.vocab_size": "data.vocab",
    "model.share_embeddings": "model.shared",
    "data.max_length": "data.longest",
    "data.bpe_dropout": "data.split_dropout",
    "data.shared_vocab": "data.joint",
    "task.max_new_tokens": "task.longest",
    "task.objective": "task.learns",
    "model.block_size": "model.block",
    "model.window_blocks": "model.near",
    "model.global_blocks": "model.hubs",
    "model.random_blocks": "model.links",
    "model.random_seed": "model.links_seed",
    "model.embedding_scale": "model.loud",
    "model.input_projection": "model.lift",
    "train.average_last": "train.last",
    "train.ema_decay": "train.decay",
    "train.micro_batch": "train.micro",
    "train.plateau_patience": "train.patience",
    "data.target_level": "data.ask",
}
FORMER_VALUES = {("task.objective", "mlm"): "words", ("train.average", "ema"): "moving"}


@dataclass(frozen=True)
class Row:
    """One training: its data file, its settings, and the function that returns an output of the trained run."""

    data: str
    settings: dict[str, Any]
    output: Callable[[Any], Any]
    common: dict[str, Any] = field(default_factory=lambda: COMMON)


# --- generated data ---------------------------------------------------------------------------------------------------

NOUNS, VERBS = (
    ["cat", "dog", "bird", "fish", "child", "teacher", "river", "garden", "house", "student"],
    ["sees", "likes", "finds", "takes"],
)
NOMS, VERBES = (
    ["chat", "chien", "oiseau", "poisson", "enfant", "maître", "fleuve", "jardin", "maison", "élève"],
    ["voit", "aime", "trouve", "prend"],
)
PLACES = ["kitchen", "garden", "office", "bathroom"]


def sentences(n: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return English sentences with a word-by-word French translation."""
    rng, rows = random.Random(seed), []
    for _ in range(n):
        a, v, b = rng.randrange(10), rng.randrange(4), rng.randrange(10)
        rows.append((f"the {NOUNS[a]} {VERBS[v]} the {NOUNS[b]} .", f"le {NOMS[a]} {VERBES[v]} le {NOMS[b]} ."))
    return rows


def text_file() -> str:
    lines = [source for source, _ in sentences(400, 1)]
    return "\n\n".join(" ".join(lines[i : i + 8]) for i in range(0, len(lines), 8))


def table_file() -> str:
    return "text,label\n" + "".join(
        f"A {('cold', 'warm')[n % 2]} day {n}.,{('bad', 'good')[n % 2]}\n" for n in range(60)
    )


def numbers_file() -> str:
    return "text,score\n" + "".join(f"A {('cold', 'warm')[n % 2]} day {n}.,{n % 7 + 0.5}\n" for n in range(60))


def two_texts_file() -> str:
    rows = (
        (a, b, ("yes", "no")[n % 2])
        for n, ((a, _), (b, _)) in enumerate(zip(sentences(80, 2), sentences(80, 3), strict=True))
    )
    return "first\tsecond\tlabel\n" + "".join(f"{a} {n}\t{b}\t{c}\n" for n, (a, b, c) in enumerate(rows))


def names_file() -> str:
    """Pairs where each target has a word of its source that occurs nowhere else."""
    return "".join(f"my name is Ada{n} .\tje m'appelle Ada{n} .\n" for n in range(150))


def columns_file() -> str:
    rows = (f"user{n % 5}\t{('lamp', 'chair')[n % 2]}\tit is loud {n}\t{'ny'[n % 3 > 0]}\n" for n in range(90))
    return "user\tproduct\ttext\tlabel\n" + "".join(rows)


def several_labels_file() -> str:
    rows = (f"A {('cold', 'warm')[n % 2]} day {n},{('wet;dark', 'dry', 'dry;dark')[n % 3]}\n" for n in range(90))
    return "text,label\n" + "".join(rows)


def tags_file() -> str:
    return "\n".join(f"Ada{n} B-PER\nlives O\nin O\nNew B-LOC\nRome I-LOC\n" for n in range(40))


def spans_file() -> str:
    answers = [{"text": "Ada", "answer_start": 0}]
    paragraphs = [
        {"context": f"Ada lives in house {n}.", "qas": [{"id": str(n), "question": "Who lives?", "answers": answers}]}
        for n in range(30)
    ]
    return json.dumps({"version": "1.1", "data": [{"title": "Ada", "paragraphs": paragraphs}]})


def stories_file() -> str:
    rng, lines = random.Random(4), []
    for _ in range(60):
        people = {}
        number = 0
        for _ in range(4):
            number += 1
            name, place = rng.choice(["Mary", "John", "Dan"]), rng.choice(PLACES)
            people[name] = (place, number)
            lines.append(f"{number} {name} went to the {place}.")
        name = rng.choice(sorted(people))
        lines.append(f"{number + 1} Where is {name}? \t{people[name][0]}\t{people[name][1]}")
    return "\n".join(lines) + "\n"


def images_file() -> bytes:
    file, rng = io.BytesIO(), np.random.default_rng(0)
    np.savez(file, x=rng.integers(0, 256, (60, 8, 8), np.uint8), y=np.arange(60) % 2)
    return file.getvalue()


def graph_file() -> bytes:
    file, rng = io.BytesIO(), np.random.default_rng(0)
    label = np.arange(40) % 2
    edges = [(a, b) for a, b in rng.integers(0, 40, (200, 2)).tolist() if label[a] == label[b]]
    np.savez(file, edges=np.array(edges), x=rng.normal(size=(40, 4)).astype(np.float32), label=label)
    return file.getvalue()


def sets_file() -> str:
    rows = (f"c{n},{n % 2 + 0.1 * k},{n * k},{('low', 'high')[n % 2]}\n" for n in range(60) for k in range(3 + n % 2))
    return "cloud,x,y,label\n" + "".join(rows)


def captions_file() -> str:
    return "image\tcaption\n" + "".join(f"spots.npz[{n}]\tspots of kind {n % 3}\n" for n in range(60))


def trees_file() -> str:
    return "".join(f"(S (NP (D the) (N {a.split()[1]})) (VP (V {a.split()[2]})))\n" for a, _ in sentences(120, 5))


FILES: dict[str, Callable[[], str | bytes]] = {
    "text.txt": text_file,
    "pairs.tsv": lambda: "".join(f"{a}\t{b}\n" for a, b in sentences(150)),
    "names.tsv": names_file,
    "labels.csv": table_file,
    "scores.csv": numbers_file,
    "two.tsv": two_texts_file,
    "columns.tsv": columns_file,
    "several.csv": several_labels_file,
    "names.conll": tags_file,
    "houses.json": spans_file,
    "qa1_stories.txt": stories_file,
    "spots.npz": images_file,
    "friends.npz": graph_file,
    "clouds.csv": sets_file,
    "captions.tsv": captions_file,
    "trees.mrg": trees_file,
}


# --- rows -------------------------------------------------------------------------------------------------------------


def generate(run: Any) -> Any:
    return (
        run.generate("the cat", max_new_tokens=12, temperature=0),
        run.generate("the", max_new_tokens=12, seed=3),
        run.score("the dog"),
    )


def translate(run: Any) -> Any:
    return run.translate("the cat sees the dog ."), run.translate("the bird likes the river .", beam=1)


def translate_name(run: Any) -> Any:
    return run.translate("my name is Zoe ."), run.translate("my name is Ada7 .", beam=1)


def fill(run: Any) -> Any:
    return run.fill("the cat [MASK] the dog .", 3)


def classify(text: str) -> Callable[[Any], Any]:
    return lambda run: run.classify(text)


def picture(run: Any) -> Any:
    return run.classify([np.arange(64, dtype=np.uint8).reshape(8, 8)])


def caption(run: Any) -> Any:
    return run.caption([np.arange(64, dtype=np.uint8).reshape(8, 8)])


def cloud(run: Any) -> Any:
    return run.classify([np.array([[0.1, 2.0], [0.2, 4.0], [1.0, 0.0]])])


def nothing(run: Any) -> Any:
    return None


def ask_story(run: Any) -> Any:
    return run.ask("Where is Mary?", "Mary went to the kitchen. John went to the garden.")


def rows() -> dict[str, Row]:
    gpt = {**SMALL, **CONTEXT, "data.tokenizer": "char", "data.kind": "text", "model.kind": "gpt"}
    pairs = {**SMALL, **PAIRS, "data.kind": "pairs", "data.tokenizer": "word"}
    head = {**SMALL, "data.tokenizer": "wordpiece"}
    plain = {name: value for name, value in SMALL.items() if name not in ("model.layers", "model.heads")}
    table = {
        "text gpt": Row("text.txt", gpt, generate),
        "text gpt bpe": Row("text.txt", {**gpt, "data.tokenizer": "bpe", "data.vocab_size": 300}, generate),
        "text gpt word": Row("text.txt", {**gpt, "data.tokenizer": "word"}, generate),
        "text gpt packed": Row("text.txt", {**gpt, "data.batching": "packed", "data.documents": "blank"}, generate),
        "text gpt llama": Row("text.txt", {**gpt, "model.style": "llama", "model.kv_heads": 1}, generate),
        "text gpt window": Row("text.txt", {**gpt, "model.window": 4, "model.positions": "alibi"}, generate),
        "text gpt additive": Row("text.txt", {**gpt, "model.similarity": "additive"}, generate),
        "text gpt scaled input": Row(
            "text.txt", {**gpt, "model.embedding_scale": 4.0, "model.input_projection": True}, generate
        ),
        "text gpt micro-batch": Row("text.txt", {**gpt, "train.micro_batch": 2}, generate),
        "text gpt bigbird": Row("text.txt", {**gpt, **BIGBIRD}, generate),
        "text gpt muon": Row("text.txt", {**gpt, "train.optimizer": "muon"}, generate),
        "text gpt sgd plateau": Row(
            "text.txt",
            {**gpt, "train.optimizer": "sgd", "train.schedule": "plateau", "train.plateau_patience": 1,
             "train.eval_every": 1},
            generate,
        ),
        "text gpt rmsprop": Row("text.txt", {**gpt, "train.optimizer": "rmsprop"}, generate),
        "text gpt ema": Row("text.txt", {**gpt, "train.average": "ema", "train.ema_decay": 0.5}, generate),
        "text gpt last": Row(
            "text.txt", {**gpt, "train.average": "last", "train.average_last": 2, "train.eval_every": 1}, generate
        ),
        "text gpt seeds": Row("text.txt", {**gpt, "train.seeds": 3}, generate),
        "text bert": Row("text.txt", {**head, **CONTEXT, "data.kind": "text", "model.kind": "bert"}, fill),
        "text bert words": Row(
            "text.txt",
            {**head, **CONTEXT, "data.kind": "text", "model.kind": "bert", "task.objective": "mlm",
             "task.whole_words": True},
            fill,
        ),
    }  # fmt: skip
    for kind in ("rnn", "gru", "lstm"):
        settings = {**plain, **CONTEXT, "data.tokenizer": "char", "data.kind": "text", "model.kind": kind}
        table[f"text {kind}"] = Row("text.txt", settings, generate)
    for kind in ("transformer", "rnn", "gru", "lstm", "rnn-attention", "conv"):
        settings = pairs if kind == "transformer" else {n: v for n, v in pairs.items() if n != "model.heads"}
        table[f"pairs {kind}"] = Row("pairs.tsv", {**settings, "model.kind": kind}, translate)
    table |= {
        "pairs bpe dropout": Row(
            "pairs.tsv", {**pairs, "data.tokenizer": "bpe", "data.vocab_size": 400, "data.bpe_dropout": 0.1}, translate
        ),
        "pairs two vocabularies": Row("pairs.tsv", {**pairs, **TWO_VOCABULARIES}, translate),
        "pairs packed": Row("pairs.tsv", {**pairs, "task.packed": True}, translate),
        "pairs copying": Row("names.tsv", {**pairs, **COPYING, "model.kind": "transformer"}, translate_name),
        "pairs rnn-attention copying": Row(
            "names.tsv", {**plain, "model.layers": 1, **PAIRS, **COPYING, "model.kind": "rnn-attention"}, translate_name
        ),
        "pairs bert copying": Row(
            "names.tsv",
            {**pairs, **WORDPIECE, "model.copy": True, "model.kind": "bert"},
            translate_name,
        ),
        "pairs trees": Row("trees.mrg", {**SMALL, **PAIRS}, lambda run: run.translate("the cat sees")),
        "table gpt": Row("labels.csv", {**head, "data.kind": "table", "model.kind": "gpt"}, classify("A warm day")),
        "table bert": Row("labels.csv", {**head, "data.kind": "table", "model.kind": "bert"}, classify("A warm day")),
        "table bert bigbird": Row(
            "labels.csv", {**head, **BIGBIRD, "data.kind": "table", "model.kind": "bert"}, classify("A warm day")
        ),
        "table rnn": Row(
            "labels.csv",
            {**plain, "data.tokenizer": "wordpiece", "data.kind": "table", "model.kind": "rnn"},
            classify("A warm day"),
        ),
        "table numbers": Row("scores.csv", {**head, "model.kind": "bert"}, classify("A warm day")),
        "table two texts": Row("two.tsv", {**head, "model.kind": "bert"}, classify("the cat sees\tthe dog")),
        "table three columns": Row(
            "columns.tsv",
            {**head, "model.kind": "bert", "data.text": ["user", "product", "text"]},
            classify("user1\tlamp\tit is loud"),
        ),
        "table several labels": Row(
            "several.csv", {**head, "model.kind": "bert", "data.separator": ";"}, classify("A warm day")
        ),
        "tags bert": Row("names.conll", {**head, "data.kind": "tags"}, lambda run: run.tag("Ada7 lives in New Rome")),
        "spans bert": Row(
            "houses.json", {**head, "data.kind": "spans"}, lambda run: run.ask("Who lives?", "Ada lives in house 3.")
        ),
        "images vit": Row(
            "spots.npz", {**SMALL, **AUGMENT, "data.kind": "images"}, picture
        ),
        "images vit defaults": Row("spots.npz", {"data.kind": "images"}, picture),
        "stories memnet": Row(
            "qa1_stories.txt", {**MEMNET, "task.noise": 0.1}, ask_story
        ),
        "stories memnet seeds": Row(
            "qa1_stories.txt", {**MEMNET, "train.seeds": 3}, ask_story
        ),
        "stories bert": Row("qa1_stories.txt", {**SMALL, "data.kind": "stories", "model.kind": "bert"}, ask_story),
        "graph gcn": Row("friends.npz", {"model.kind": "gcn", "model.d": 16, "task.l2": 1e-3}, nothing),
        "graph gat": Row("friends.npz", {"model.kind": "gat", "model.d": 16, "model.heads": 2}, nothing),
        "graph gat seeds": Row(
            "friends.npz", {"model.kind": "gat", "model.d": 16, "model.heads": 2, "train.seeds": 3}, nothing
        ),
        "graph transformer": Row(
            "friends.npz", {"model.kind": "graph-transformer", "model.d": 16, "model.heads": 2}, nothing
        ),
        "graph edges": Row("friends.npz", {"model.kind": "gcn", "data.target_level": "edge"}, nothing),
        "sets": Row("clouds.csv", {**SMALL, "data.kind": "sets"}, cloud),
        "captions": Row(
            "captions.tsv",
            {**SMALL, "data.kind": "captions", "task.eval_pairs": 10, "task.max_new_tokens": 8, "task.beam": 1},
            caption,
        ),
    }  # fmt: skip
    for operation in ("gcd", "fractions", "modular-addition", "transposition", "eigenvalues", "integrals"):
        settings = {**SMALL, "data.valid": 10, "data.test": 10}
        table[f"maths {operation}"] = Row(f"maths:{operation}", settings, nothing)
    return table


# --- digests ----------------------------------------------------------------------------------------------------------


def tensor_digests(file: Path) -> list[str]:
    """Return the sorted SHA-256 of bytes, dtype and shape of every tensor of a safetensors file, without names."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    digests = []
    for entry in header.values():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        about = f"{entry['dtype']} {entry['shape']} ".encode()
        digests.append(hashlib.sha256(about + content[start:end]).hexdigest())
    return sorted(digests)


def values(of: Any) -> Iterator[str]:
    """Yield the numbers and texts of a nested output in order, without the names of its fields."""
    if isinstance(of, dict):
        for each in of.values():
            yield from values(each)
    elif isinstance(of, list | tuple):
        for each in of:
            yield from values(each)
    elif isinstance(of, torch.Tensor | np.ndarray):
        yield from values(of.tolist())
    else:
        yield repr(of)


def settings_for(row: Row, version: str) -> dict[str, Any]:
    chosen = {**row.common, **row.settings}
    if version == "after":
        return chosen
    translated = {FORMER_NAMES.get(name, name): FORMER_VALUES.get((name, value), value)
                  if isinstance(value, str) else value for name, value in chosen.items()}  # fmt: skip
    return translated


def record(file: Path, only: str) -> None:
    version = "after" if importlib.util.find_spec("harken.registry") else "before"
    digests: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HARKEN_CACHE"] = str(folder / "cache")
        for file_name, make in FILES.items():
            content = make()
            (folder / file_name).write_bytes(content if isinstance(content, bytes) else content.encode())
        for title, row in rows().items():
            if only not in title:
                continue
            start = time.perf_counter()
            source = row.data if row.data.startswith("maths:") else folder / row.data
            out = folder / "runs" / title.replace(" ", "-")
            run = harken.train(source, out=out, settings=settings_for(row, version))
            metrics = {split: dict(sorted(scores.items())) for split, scores in run.metrics.items()}
            digests[title] = {
                "weights": tensor_digests(out / "model.safetensors"),
                "metrics": list(values(metrics)),
                "output": list(values(row.output(harken.load(out, device="cpu")))),
            }
            print(f"{title}: {time.perf_counter() - start:.1f} s", flush=True)
    file.write_text(json.dumps({"harken": version, "torch": torch.__version__, "rows": digests}, indent=1), "utf-8")


def compare(before: Path, after: Path) -> int:
    rows_before, rows_after = (json.loads(path.read_text("utf-8"))["rows"] for path in (before, after))
    different = 0
    for title in sorted({*rows_before, *rows_after}):
        missing = [str(path) for path, table in ((before, rows_before), (after, rows_after)) if title not in table]
        parts = [
            part
            for part in ("weights", "metrics", "output")
            if not missing and rows_before[title][part] != rows_after[title][part]
        ]
        different += bool(missing or parts)
        print(f"{title}: {f'missing in {missing[0]}' if missing else f'differs in {parts}' if parts else 'equal'}")
    print(f"{len({*rows_before, *rows_after})} rows, {different} different")
    return int(different > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("file", type=Path)
    recorder.add_argument("--only", default="", help="only the rows with this text in their title")
    comparer = commands.add_parser("compare")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "record":
        record(options.file, options.only)
        return 0
    return compare(options.before, options.after)


if __name__ == "__main__":
    sys.exit(main())
