"""Pretrain a BERT in minutes on one GPU: masked words and next sentences, evaluated on held-out text.

    python benchmarks/pretrain_bert.py clean enwik8.txt movie-reviews.csv documents.txt.gz      files of `harken data`
    python benchmarks/pretrain_bert.py train documents.txt.gz --out runs/own-bert --parts parts train.minutes=7
    python benchmarks/pretrain_bert.py train documents.txt.gz --out runs/nsp from=runs/minilm model.nsp_head=true ...
    python benchmarks/pretrain_bert.py part runs/minilm parts       split a run into small files, weights in float16
    python benchmarks/pretrain_bert.py join parts runs/minilm       join them again

clean: writes the articles of Wikipedia's XML as plain text, one line per paragraph, and the long reviews of the table
(the short ones are those of SST-2), shuffled, with a blank line between two documents. train: prints the accuracy of
masked words (baseline: the most frequent word) and of next sentence prediction (baseline: 1/2) on held-out documents,
also at every validation pass. --parts writes the run as files of at most 15 MiB, for machines with a limit on file
sizes; join creates a run folder from them.
"""

import argparse
import csv
import gzip
import html
import json
import lzma
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

import harken
from harken import recipe as recipes
from harken import run_folder as runs
from harken.tasks import Score
from harken.tasks.masked_words import MaskedWordsTask

PART = 15 << 20  # bytes
WEIGHTS = "model.safetensors"
COMPRESSED: dict[str, Any] = {".gz": gzip, ".xz": lzma}
TEXTS = ("recipe.toml", "harken.json", "tokenizer.json", "log.jsonl", "cost.json")
TEXT = re.compile(r"<title>([^<]*)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
REMOVED = [
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"<!--.*?-->",
        r"<(math|ref|gallery|nowiki|pre|code|table|div)\b[^>]*(/>|>.*?</\1>)",
        r"\{\|.*?\|\}",
        r"https?://\S+",
        r"<[^>]*>",
    )
]
TEMPLATE, MEDIA = re.compile(r"\{\{[^{}]*\}\}"), re.compile(r"\[\[[\w -]+:[^\[\]]*(\[\[[^\[\]]*\]\][^\[\]]*)*\]\]")
LINK, OUTER = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]]*)\]\]"), re.compile(r"\[\S*\s?([^\]]*)\]")
SETTINGS = {
    "data.kind": "text",
    "data.tokenizer": "wordpiece",
    "data.lowercase": True,
    "data.vocab_size": 16_000,
    "data.batching": "sentences",
    "data.valid": 0.02,
    "data.test": 0.02,
    "model.kind": "bert",
    "model.d": 384,
    "model.layers": 6,
    "model.heads": 6,
    "model.context": 128,
    "model.norm": "pre",
    "model.dropout": 0.1,
    "train.batch": 256,
    "train.optimizer": "muon",
    "train.lr": 1e-2,
    "train.warmup": 0.02,
    "train.betas": [0.9, 0.98],
    "train.eval_every": 1000,
    "train.checkpoint_every": 10**9,
}


def plain(page: str) -> str:
    """Return the paragraphs of an article, one per line, without markup, lists, tables and headings."""
    text = html.unescape(html.unescape(page))
    for pattern in REMOVED:
        text = pattern.sub(" ", text)
    while (inner := TEMPLATE.sub(" ", text)) != text:  # the innermost first
        text = inner
    text = LINK.sub(r"\1", MEDIA.sub(" ", text))
    text = OUTER.sub(r"\1", text).replace("'''", "").replace("''", "")
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if len(line) > 80 and line[0] not in "*#:;|!=-{}" and ". " in f"{line} ")


def articles(file: Path) -> Iterator[str]:
    pages = TEXT.findall(file.read_text("utf-8"))
    texts = (plain(body) for title, body in pages if ":" not in title and not body.lower().startswith("#redirect"))
    return (text for text in texts if text.count(". ") >= 4)


def reviews(file: Path) -> Iterator[str]:
    with file.open(newline="") as opened:
        for row in csv.DictReader(opened):
            if row["source"] == "imdb":
                yield "\n".join(
                    " ".join(paragraph.split())
                    for paragraph in re.split(r"<br\s*/?>", row["text"])
                    if paragraph.strip()
                )


def clean(files: list[Path]) -> None:
    *files, out = files
    documents = [text for file in files for text in (reviews if file.suffix == ".csv" else articles)(file)]
    random.Random(0).shuffle(documents)  # the end of the text is held out
    out.write_bytes(COMPRESSED[out.suffix].compress("\n\n".join(documents).encode()))
    print(f"{out}: {len(documents):,} documents, {sum(map(len, documents)) / 1e6:.1f} million characters")


def train(data: Path, out: Path, parts: Path | None, **settings: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if data.suffix in COMPRESSED:
            text = Path(folder, data.stem)
            text.write_bytes(COMPRESSED[data.suffix].decompress(data.read_bytes()))
            data = text
        inherited = "model." if "from" in settings else ()  # settings of the run in `from`
        defaults = {name: value for name, value in SETTINGS.items() if not name.startswith(inherited)}
        run = harken.train(data, out=out, settings=defaults | settings, listen=print_event)
    row = {split: {**metrics, **run.facts["baseline"][split]} for split, metrics in run.metrics.items()}
    facts = {name: run.facts[name] for name in ("parameters", "steps", "seconds", "protocol", "intervals")}
    print(json.dumps({**facts, "metrics": row, "data": run.facts["data"]}))
    if parts:
        split_run(out, parts)


def print_event(event: str, /, **facts: object) -> None:
    if event in ("start", "notice"):
        print(json.dumps({name: facts[name] for name in ("steps", "epochs", "text") if name in facts}), flush=True)


def evaluate(self: MaskedWordsTask, model: object, split: str, *, quick: bool = False) -> Score:
    """Evaluate and print all metrics; the log has the loss only."""
    score = plain_evaluate(self, model, split, quick=quick)
    print(json.dumps({"split": split, **score.metrics}), flush=True)
    return score


plain_evaluate, MaskedWordsTask.evaluate = MaskedWordsTask.evaluate, evaluate


# --- split and join a run ---------------------------------------------------------------------------------------------


def split_run(run: Path, out: Path) -> None:
    """Write a run as small files: the weights in float16, split, and all text files in one JSON; no checkpoints."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile() as file:
        save_file({name: t.half().contiguous() for name, t in load_file(run / WEIGHTS).items()}, file.name)
        content = Path(file.name).read_bytes()
    for n, start in enumerate(range(0, len(content), PART)):
        (out / f"{WEIGHTS}.{n}").write_bytes(content[start : start + PART])
    (out / "run.json").write_text(json.dumps({name: (run / name).read_text("utf-8") for name in TEXTS}))


def join_run(parts: Path, run: Path) -> None:
    run.mkdir(parents=True)
    texts = json.loads((parts / "run.json").read_text())
    facts = json.loads(texts.pop("harken.json"))
    for name, text in texts.items():
        (run / name).write_text(text, "utf-8")
    pieces = sorted(parts.glob(f"{WEIGHTS}.*"), key=lambda path: int(path.suffix[1:]))
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(piece.read_bytes() for piece in pieces))
        file.flush()
        runs.write_tensors(run / WEIGHTS, {name: t.float() for name, t in load_file(file.name).items()})
    runs.write_manifest(
        run, {name: value for name, value in facts.items() if name not in ("format", "sha256", "checksum")}
    )
    print(harken.load(run, device="cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("clean").add_argument("files", type=Path, nargs="+", help="input files, then the output file")
    training, parting, joining = (verbs.add_parser(verb) for verb in ("train", "part", "join"))
    training.add_argument("data", type=Path)
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--parts", type=Path)
    for command, names in ((parting, ("run", "out")), (joining, ("parts", "run"))):
        for name in names:
            command.add_argument(name, type=Path)
    known, settings = parser.parse_known_args()
    verb = {"clean": clean, "train": train, "part": split_run, "join": join_run}[known.verb]
    verb(**{k: v for k, v in vars(known).items() if k != "verb"}, **dict(map(recipes.parse_override, settings)))


if __name__ == "__main__":
    main()
