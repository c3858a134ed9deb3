"""GLUE's table: every task whose files are in FOLDER, from scratch, with frozen weights, and fine-tuned from a run.

    python benchmarks/glue.py shared/data/glue --from runs/minilm --at-once 12 --minutes 7
    python benchmarks/glue.py shared/data/glue --from runs/minilm --tasks RTE,CoLA --methods finetune --seeds 1
    python benchmarks/glue.py shared/data/glue --from runs/minilm --tasks RTE data.examples=64 train.steps=4 --seeds 1

The files are those that GLUE publishes: FOLDER/CoLA/train.tsv, FOLDER/CoLA/dev.tsv, ... A tenth of train.tsv selects
the weights, and among the candidate settings of METHODS: each is trained with the first seeds, without dev.tsv. The
chosen setting is then trained with all seeds, and dev.tsv is evaluated at the end of these runs only. Settings on the
command line apply to all tasks and replace those of the candidates.

train.tsv of SST-2 has the phrases of its sentences as rows of their own, dev.tsv has sentences only. The tenth is
therefore one of sentences, a different one for each seed, and their phrases are removed from the training rows.

--at-once of the trainings run in parallel, each in its own process. The result of each is written to --out when it
ends. The same command again trains only what is missing, and resumes what was stopped by --minutes.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from harken import recipe as recipes
from harken.experiments.compare.summary import format_interval, mean_and_interval
from harken.files import write_atomic

Settings = dict[str, str]
Metrics = dict[str, float]


# --- the tasks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A task: its columns (names of the header; numbers of a file without one), metrics and settings.

    The first metric selects the weights. GLUE's mean takes the average of the metrics of a task.
    """

    texts: tuple[str | int, ...]
    label: str | int
    metrics: tuple[str, ...] = ("accuracy",)
    epochs: int = 3
    max_length: int = 128
    dev: tuple[str, ...] = ("dev",)  # a second file is evaluated as well, by the first metric
    phrases: bool = False  # train.tsv has the phrases of its sentences as rows of their own
    settings: Settings = field(default_factory=dict)


PAIR = ("sentence1", "sentence2")
MNLI_DEV = ("dev_matched", "dev_mismatched")
TASKS = {
    "CoLA": Task((3,), 1, ("matthews",), epochs=5),
    "SST-2": Task(("sentence",), "label", phrases=True),
    "MRPC": Task(("#1 String", "#2 String"), "Quality", ("f1", "accuracy"), epochs=5),
    "STS-B": Task(PAIR, "score", ("spearman", "pearson"), epochs=5, settings={"data.target_type": "number"}),
    "QQP": Task(("question1", "question2"), "is_duplicate", ("f1", "accuracy")),
    "MNLI": Task(PAIR, "gold_label", dev=MNLI_DEV),
    "QNLI": Task(("question", "sentence"), "label", max_length=256),
    "RTE": Task(PAIR, "label", epochs=10, max_length=256),
    "WNLI": Task(PAIR, "label", epochs=10),
}
LARGE = 10_000  # rows of a training file from which a training is compiled

# The settings of each method that are compared on the tenth of train.tsv.
METHODS: dict[str, Sequence[Settings]] = {
    "finetune": (
        {"model.pool": "mean", "train.lr": "1e-4"},
        {"model.pool": "mean", "train.lr": "5e-5"},
        {"model.pool": "mean", "train.lr": "1e-4", "train.layer_decay": "0.85"},
        {"model.pool": "first", "train.lr": "1e-4"},
        {"model.pool": "mean", "train.lr": "1e-4", "train.average": "ema"},
        {"model.pool": "first", "train.lr": "1e-4", "train.average": "ema"},
    ),
    "frozen": ({"model.pool": "mean"},),  # 0.486 Spearman on the tenth of STS-B; the first token 0.390
    "scratch": ({},),
}

# Published figures in percent, by task and metric.
TEST = "BERT-base (Devlin et al. 2019, table 1; test server; MNLI m / mm)"
DEV = "(dev; github.com/microsoft/unilm, minilm/README.md, of Wang et al. 2020)"
PUBLISHED: dict[str, dict[str, str]] = {
    TEST: {"CoLA": "52.1", "SST-2": "93.5", "MRPC": "88.9 F1", "STS-B": "85.8 Spearman", "QQP": "71.2 F1",
           "MNLI": "84.6 / 83.4", "QNLI": "90.5", "RTE": "66.4"},
    f"BERT-base {DEV}": {"CoLA": "58.9", "SST-2": "93.2", "MRPC": "87.3", "QQP": "91.3", "MNLI": "84.5 m",
                         "QNLI": "91.7", "RTE": "68.6"},
    f"MiniLM-L6xH384 {DEV}": {"CoLA": "47.5", "SST-2": "91.5", "MRPC": "88.9", "QQP": "90.6", "MNLI": "83.3 m",
                              "QNLI": "90.5", "RTE": "68.8"},
    f"MiniLM-L12xH384 {DEV}": {"CoLA": "58.5", "SST-2": "93.0", "MRPC": "89.5", "QQP": "91.3", "MNLI": "85.7 m",
                               "QNLI": "91.5", "RTE": "73.3"},
}  # fmt: skip


def read_rows(file: Path, task: Task) -> Iterator[dict[str, str]]:
    """The texts and the label of each row. GLUE's files have no quoting: a quote is a character of a text."""
    lines = [line.split("\t") for line in file.read_text("utf-8-sig").split("\n") if line.strip()]
    columns, rows = (*task.texts, task.label), lines
    if isinstance(task.label, str):
        header, *rows = lines
        if missing := [column for column in columns if column not in header]:
            raise SystemExit(f"{file}: no column {missing[0]!r}; its header has {', '.join(header)}")
        columns = tuple(header.index(str(column)) for column in columns)
    for cells in rows:
        if len(cells) > max(map(int, columns)):  # QQP has a few incomplete rows
            *texts, label = (cells[int(column)].strip() for column in columns)
            yield {**{f"text{n}": text for n, text in enumerate(texts, 1)}, "label": label}


def sentences_of(texts: Iterable[str]) -> dict[str, set[str]]:
    """The texts that are not a part of another text, each with its parts."""
    sentences, with_word = dict[str, set[str]](), defaultdict[str, list[str]](list)
    for text in sorted(set(texts), key=lambda text: (-len(text), text)):
        rarest = min(text.split(), key=lambda word: len(with_word[word]))
        wholes = [sentence for sentence in with_word[rarest] if f" {text} " in f" {sentence} "]
        for whole in wholes:
            sentences[whole].add(text)
        if not wholes:
            sentences[text] = {text}
            for word in set(text.split()):
                with_word[word].append(text)
    return sentences


def hold_out_sentences(rows: Sequence[dict[str, str]], seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The rows without a tenth of the sentences and their phrases, and these sentences."""
    sentences = sentences_of(row["text1"] for row in rows)
    drawn = random.Random(seed).sample(sorted(sentences), len(sentences) // 10)
    removed = set[str]().union(*(sentences[sentence] for sentence in drawn))
    held_out = set(drawn)
    return [r for r in rows if r["text1"] not in removed], [r for r in rows if r["text1"] in held_out]


def write_rows(rows: Sequence[dict[str, str]], out: Path) -> int:
    """Write rows as JSON lines, which need no detection; return their number."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(
        out, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    )  # another process may read it
    return len(rows)


# --- the trainings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What is common to all trainings."""

    run: Path | None
    out: Path
    seeds: int
    choice_seeds: int
    at_once: int
    deadline: float | None
    overrides: Settings


@dataclass(frozen=True)
class Training:
    """One training: of a task, by a method, with settings and a seed; it evaluates dev only if it is final."""

    name: str
    method: str
    settings: Settings
    seed: int
    final: bool

    def folder(self, out: Path) -> Path:
        words = "_".join(f"{path.rpartition('.')[2]}={value}" for path, value in self.settings.items()) or "default"
        return out / self.name / self.method / f"{words}-{'dev' if self.final else 'valid'}-seed={self.seed}"


def command(training: Training, plan: Plan, n_rows: int) -> list[str]:
    """The words after `harken` that start this training."""
    task, data = TASKS[training.name], plan.out / "data" / training.name
    settings = {"train.epochs": str(task.epochs), "train.batch": "32", "data.valid": "0.1", "report.samples": "0"}
    settings |= {"task.eval_examples": "0"}  # published figures are those of all rows
    settings |= {"task.metric": task.metrics[0], "data.max_length": str(task.max_length)} | task.settings
    settings |= {"train.compile": "auto" if n_rows >= LARGE else "no"} | training.settings
    if any(path in training.settings for path in ("train.steps", "train.minutes", "train.tokens")):
        del settings["train.epochs"]
    if plan.run is not None:
        context = recipes.read(plan.run / "recipe.toml")["model.context"]
        settings["data.max_length"] = str(min(int(settings["data.max_length"]), int(context)))
        settings |= {"from": str(plan.run), "transfer": training.method}
    settings["data.text"] = json.dumps([f"text{n}" for n in range(1, len(task.texts) + 1)])
    settings |= {"data.label": "label", "train.seed": str(training.seed)}
    settings["data.test"] = str(data / f"{task.dev[0]}.jsonl") if training.final else "0"
    train = data / "train.jsonl"
    if task.phrases:
        train, valid = (data / f"{split}-{training.seed}.jsonl" for split in ("train", "valid"))
        settings["data.valid"] = str(valid)
    words = [f"{path}={value}" for path, value in settings.items()]
    return ["train", str(train), *words, "--out", str(training.folder(plan.out))]


def harken(arguments: Sequence[str], plan: Plan, log: Path) -> dict[str, Any]:
    """Run a command of harken until it ends, or until the deadline; its progress is written to a file."""
    threads = max(1, (os.cpu_count() or 1) // plan.at_once)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    words = [sys.executable, "-m", "harken", *arguments, "--json"]
    with log.open("a") as messages:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=messages, text=True, env=environment)
        try:
            seconds = None if plan.deadline is None else max(1, plan.deadline - time.monotonic())
            answer, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # harken writes a checkpoint
            process.communicate()
            raise TimeoutError from None
    if process.returncode:
        reason = (log.read_text().strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{shlex.join(words)}: {reason}")
    return dict(json.loads(answer))


def run_training(training: Training, plan: Plan, n_rows: int) -> dict[str, Any]:
    """The result of a training: read, if it has one; its run folder is deleted when the result is written."""
    folder, task = training.folder(plan.out), TASKS[training.name]
    result_file, log = folder.with_name(f"{folder.name}.json"), folder.with_name(f"{folder.name}.log")
    if result_file.is_file():
        return dict(json.loads(result_file.read_text()))
    if plan.deadline is not None and time.monotonic() >= plan.deadline:
        raise TimeoutError
    folder.parent.mkdir(parents=True, exist_ok=True)
    arguments = command(training, plan, n_rows)
    started = (folder / "recipe.toml").is_file()
    facts = harken(["train", str(folder), "--resume"] if started else arguments, plan, log)
    result = {"task": training.name, "method": training.method, "settings": training.settings, "seed": training.seed}
    result |= {key: facts[key] for key in ("steps", "seconds", "splits")}
    result |= {"baseline": facts["baseline"] if training.final else {}, "command": shlex.join(["harken", *arguments])}
    if training.final and task.dev[1:]:
        other = harken(
            ["eval", str(folder), str(plan.out / "data" / training.name / f"{task.dev[1]}.jsonl")], plan, log
        )
        result |= {"second": other["metrics"], "second_baseline": other["baseline"]}
    result_file.write_text(json.dumps(result, indent=1))
    shutil.rmtree(folder)
    return result


def candidates(method: str, overrides: Settings) -> list[Settings]:
    """The settings that are compared: with those of the command line, without repetitions."""
    rows = [row | overrides for row in METHODS[method]]
    return [row for n, row in enumerate(rows) if row not in rows[:n]]


def choose_and_train(name: str, method: str, plan: Plan, n_rows: int, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """Choose the settings on the tenth of train.tsv, then train all seeds and evaluate dev.tsv."""
    metric, choices = TASKS[name].metrics[0], candidates(method, plan.overrides)
    chosen, scores = choices[0], dict[str, float]()
    if len(choices) > 1:
        seeds = range(plan.choice_seeds)
        trials = [[Training(name, method, settings, seed, final=False) for seed in seeds] for settings in choices]
        futures = [[pool.submit(run_training, trial, plan, n_rows) for trial in row] for row in trials]
        means = [fmean(future.result()["splits"]["valid"][metric] for future in row) for row in futures]
        chosen = choices[means.index(max(means))]
        scores = {str(row): round(mean, 4) for row, mean in zip(choices, means, strict=True)}
    final = [Training(name, method, chosen, seed, final=True) for seed in range(plan.seeds)]
    finals = [pool.submit(run_training, each, plan, n_rows) for each in final]
    results = [future.result() for future in finals if not isinstance(future.exception(), TimeoutError)]
    if not results:
        raise TimeoutError
    row = {"task": name, "method": method, "chosen": chosen, "choice": scores, "results": results}
    values = " / ".join(map(format_seeds, by_metric(name, results).values()))
    print(f"{name} {method} {values}, {len(results)} seeds, {json.dumps(chosen)} {json.dumps(scores)}", flush=True)
    return row


# --- the table --------------------------------------------------------------------------------------------------------


def by_metric(name: str, results: Sequence[dict[str, Any]], baseline: str = "") -> dict[str, list[float]]:
    """The values of the seeds of each metric of a task on its evaluation files, or of a baseline."""
    task = TASKS[name]
    first = [r["baseline"][baseline] if baseline else r["splits"]["test"] for r in results]
    values = {metric: [metrics[metric] for metrics in first] for metric in task.metrics}
    if task.dev[1:]:
        second = [r["second_baseline"][baseline] if baseline else r["second"] for r in results]
        values |= {task.dev[1]: [metrics[task.metrics[0]] for metrics in second]}
    return values


def task_means(values: dict[str, list[float]]) -> list[float]:
    """The average of the metrics of a task, for each seed."""
    return [fmean(seed) for seed in zip(*values.values(), strict=True)]


def format_seeds(values: Sequence[float]) -> str:
    """The mean of the seeds in percent, with its interval."""
    return format_interval(*mean_and_interval([100 * value for value in values]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line per system, a column per task: the mean of the seeds in percent with its interval; last, GLUE's mean."""
    names = [name for name in TASKS if any(row["task"] == name for row in rows)]
    systems = {method: {r["task"]: by_metric(r["task"], r["results"]) for r in rows if r["method"] == method}
               for method in METHODS}  # fmt: skip
    for baseline in dict.fromkeys(b for row in rows for r in row["results"][:1] for b in r["baseline"]):
        by_task = {row["task"]: row["results"][:1] for row in rows if baseline in row["results"][0]["baseline"]}
        systems[baseline] = {name: by_metric(name, results, baseline) for name, results in by_task.items()}
    labels = {name: list(next(s[name] for s in systems.values() if name in s)) for name in names}
    lines = [["", *(f"{name} {' / '.join(labels[name])}" for name in names), "mean"], ["---"] * (len(names) + 2)]
    for system, tasks in ((system, tasks) for system, tasks in systems.items() if tasks):
        cells = [" / ".join(map(format_seeds, tasks[n].values())) if n in tasks else "-" for n in names]
        complete = len(tasks) == len(names) > 0
        means = [fmean(seed) for seed in zip(*map(task_means, tasks.values()), strict=False)] if complete else []
        lines.append([system, *cells, format_seeds(means) if means else "-"])
    for system, figures in PUBLISHED.items():
        lines.append([system, *(figures.get(name, "-") for name in names), "-"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_table(rows: Sequence[dict[str, Any]], out: Path) -> None:
    (out / "glue.json").write_text(json.dumps(list(rows), indent=1))
    (out / "glue.md").write_text(table(rows))


def run(names: Sequence[str], methods: Sequence[str], folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """All tasks by all methods; the table is written after each of them. Failures are printed."""
    rows: list[dict[str, Any]] = []
    n_rows = dict[str, int]()
    for name in names:
        data = plan.out / "data" / name
        splits = {
            split: list(read_rows(folder / name / f"{split}.tsv", TASKS[name])) for split in ("train", *TASKS[name].dev)
        }
        n_rows[name], *n_dev = (write_rows(split_rows, data / f"{split}.jsonl") for split, split_rows in splits.items())
        for seed in range(plan.seeds) if TASKS[name].phrases else ():
            parts = zip(("train", "valid"), hold_out_sentences(splits["train"], seed), strict=True)
            for split, split_rows in parts:
                write_rows(split_rows, data / f"{split}-{seed}.jsonl")
        print(f"{name}: {n_rows[name]:,} rows in train, {' and '.join(f'{n:,}' for n in n_dev)} in dev", flush=True)
    pairs = [(name, method) for method in methods for name in names]
    with ThreadPoolExecutor(plan.at_once) as pool, ThreadPoolExecutor(len(pairs)) as drivers:
        futures = {drivers.submit(choose_and_train, *pair, plan, n_rows[pair[0]], pool): pair for pair in pairs}
        for future in as_completed(futures):
            pair = futures[future]
            try:
                rows.append(future.result())
                write_table(rows, plan.out)
            except TimeoutError:
                print(f"{' '.join(pair)}: not finished in time; the same command continues", flush=True)
            except RuntimeError as error:
                print(f"{' '.join(pair)}: {error}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with a folder of files for each task")
    parser.add_argument("settings", nargs="*", metavar="section.key=value")
    parser.add_argument("--from", dest="run", type=Path, help="run with the initial weights; without it only scratch")
    parser.add_argument("--tasks", help=f"default: those of {', '.join(TASKS)} whose files are there")
    parser.add_argument("--methods", help=f"default: {','.join(METHODS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--choice-seeds", type=int, default=1, help="seeds that decide between settings")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="stop all trainings after this time")
    parser.add_argument("--out", type=Path, default=Path("runs/glue"))
    options = parser.parse_intermixed_args()
    names = options.tasks.split(",") if options.tasks else [n for n in TASKS if (options.folder / n).is_dir()]
    methods = options.methods.split(",") if options.methods else list(METHODS) if options.run else ["scratch"]
    for given, known in ((names, TASKS), (methods, METHODS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"{unknown[0]!r}: {', '.join(known)} are accepted")
    if not names:
        parser.error(f"{options.folder}: has no folder of a task ({', '.join(TASKS)})")
    overrides = dict(word.split("=", 1) for word in options.settings)
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    plan = Plan(options.run, options.out, options.seeds, options.choice_seeds, options.at_once, deadline, overrides)
    if rows := run(names, methods, options.folder, plan):
        print(table(rows))


if __name__ == "__main__":
    main()
