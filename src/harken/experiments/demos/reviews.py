"""harken demo reviews: sentiment of film reviews, with a pretrained model and from scratch.

Three trainings with the same few labelled sentences and the same minutes, evaluated on the same held-out sentences: a
small model from scratch, a pretrained body that is frozen under a new head, and the same body fine-tuned.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

from harken import run_folder
from harken.bridge.importer import import_model
from harken.data import catalogue
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.experiments.compare.summary import Trial, summarize
from harken.experiments.folders import is_available, next_available
from harken.experiments.report.formatting import format_duration, format_number, format_quantity
from harken.experiments.train import train
from harken.inference.run import Run, load
from harken.recipe import SettingsDict

from . import DemoOutput, credit, demo_texts, labelled_samples, total_cost

SPLIT = {"data.valid": 0.03, "data.test": 0.12, "data.max_length": 64}  # validation of a large body is slow
N_LABELS = {"movie-sentences": 2000, "opinions": 400}
PRETRAINING = {"model.kind": "bert", "model.d": 64, "model.layers": 2, "data.vocab_size": 400, "train.lr": 1e-2}
PRETRAINING |= {"data.lowercase": True}
Variants = Mapping[str, tuple[str, SettingsDict]]  # folder -> name and settings


def reviews(*, minutes: float = 3.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on film reviews with and without MiniLM. The run is the one with the best validation accuracy."""
    if out and not is_available(Path(out)):
        raise BadInput(f"{out}: is not empty; choose another folder")
    home = Path(out) if out else next_available(Path("runs/reviews"))
    data_name, body, minutes = _pretrained(home, minutes, listen)
    fetched = catalogue.fetch(data_name, listen=listen)
    variants: Variants = {
        "scratch": ("a small BERT from scratch", {"data.lowercase": True}),
        "frozen": (
            f"{body.path.name}, frozen: only a new head is trained",
            {"from": str(body.path), "transfer": "frozen"},
        ),
        "finetuned": (f"{body.path.name}, fine-tuned: all weights are trained", {"from": str(body.path)}),
    }
    settings = {**SPLIT, "data.path": str(fetched.path), "data.examples": N_LABELS[data_name]}
    trials = _train_all(home, variants, settings, minutes, listen)
    rows = summarize([[trial] for trial in trials])["rows"]
    for row, (name, _) in zip(rows, variants.values(), strict=True):
        row["name"] = name
    best = load(max(trials, key=lambda trial: trial.facts["metrics"]["valid"]["accuracy"]).run)
    origin = body.facts.get("imported")
    body_credit = f"MiniLM: {origin['attribution']} ({origin['license']})" if origin else "BERT: trained by harken"
    return DemoOutput(
        best,
        f"{credit(fetched)}; {body_credit}",
        samples=labelled_samples(best),
        table=_table(trials, [name for name, _ in variants.values()], N_LABELS[data_name]),
        rows=rows,
        cost=total_cost([body.path, *(trial.run for trial in trials)]),
        **demo_texts("reviews", best, best=best.path.name, body=quote(str(body.path))),
    )


def _pretrained(home: Path, minutes: float, listen: Listener) -> tuple[str, Run, float]:
    """The labelled data, the pretrained body and the minutes per training; generated data without network access."""
    try:
        catalogue.fetch("movie-sentences", listen=listen, stand_in=False)
        return "movie-sentences", import_model("minilm", home / "minilm", listen=listen), minutes / 3
    except HarkenError as error:
        fallback = "using generated opinions instead, and a BERT pretrained on unlabelled ones"
        listen("notice", text=f"{error}; {fallback}")
    text, minutes = catalogue.fetch("opinions-text", listen=listen).path, minutes / 4
    body = train(str(text), out=home / "bert", settings=PRETRAINING, minutes=minutes, listen=listen)
    return "opinions", body, minutes


def _train_all(home: Path, variants: Variants, shared: SettingsDict, minutes: float, listen: Listener) -> list[Trial]:
    """Train each variant in its folder, with the events of a comparison."""
    trials = list[Trial]()
    listen("comparison_start", rows=len(variants), seeds=1, minutes=minutes * len(variants))
    for number, (folder, (name, settings)) in enumerate(variants.items(), 1):
        listen("trial_start", number=number, trials=len(variants), name=name, seed=0)
        run = train("labels", out=home / folder, settings=shared | settings, minutes=minutes, listen=listen)
        cost, log = run_folder.read_json(run.path / "cost.json"), run_folder.read_log(run.path)
        trials.append(Trial(settings, 0, run.path, run.facts, cost, log))
        listen("trial_end", name=name, seed=0, trial=trials[-1])
    return trials


def _table(trials: Sequence[Trial], names: Sequence[str], n_labels: int) -> tuple[list[str], list[list[str]]]:
    """The test accuracy of the baselines (the best over the tokenizers) and of the trainings."""
    baselines: dict[str, float] = {}
    for trial in trials:
        for name, metrics in trial.facts["baseline"]["test"].items():
            baselines[name] = max(metrics["accuracy"], baselines.get(name, 0.0))
    lines = [[f"baseline: {name}", format_number(accuracy, 3), *[""] * 3] for name, accuracy in baselines.items()]
    for name, trial in zip(names, trials, strict=True):
        cost = format_duration(trial.cost["seconds"]), format_quantity(trial.cost["kwh"], "energy")
        accuracy = format_number(trial.facts["metrics"]["test"]["accuracy"], 3)
        lines.append([name, accuracy, format_quantity(trial.facts["parameters"], "count"), *cost])
    n_texts = trials[0].facts["protocol"]["test"]["texts"]
    head = f"{n_texts:,} held-out reviews, {n_labels:,} training labels"
    return [head, "accuracy", "parameters", "time", "energy"], lines
