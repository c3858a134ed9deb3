"""harken demo reviews: is the film good? What a model that has read much is worth, beside learning from nothing.

A small model from scratch, a learned body that is frozen under a new head, and the same body fine-tuned: each is an
ordinary training on the same few labelled sentences, for the same minutes, and judged by the same held-out ones.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from harken import run_folder as runs
from harken.bridge.importer import bring
from harken.data import catalogue
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.experiments.compare.summary import Trial, tally
from harken.experiments.report.line_chart import duration, figure, scaled
from harken.experiments.train import is_free, next_free, train
from harken.inference.run import Run, load
from harken.recipe import Settings
from harken.training import cost as meter

from .translate import Shown

HELD = {"data.valid": 0.03, "data.test": 0.12, "data.max_length": 64}  # a look at valid costs a large body much
LABELS = {"movie-sentences": 2000, "opinions": 400}  # how many are learned from
OWN = {"model.kind": "bert", "model.d": 64, "model.layers": 2, "data.vocab_size": 400, "train.lr": 1e-2}
Rows = Mapping[str, tuple[str, Settings]]  # by its folder: what it is called, and what is special about it
SHOWN = 5  # held-out reviews
TYPED = "It is not a great film, but I laughed a lot."


def reviews(*, minutes: float = 3.0, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Learn from short film reviews with and without MiniLM. The run is the one that is best on the valid split."""
    if out and not is_free(Path(out)):
        raise BadInput(f"{out}: is not empty; take another folder")
    home = Path(out) if out else next_free(Path("runs/reviews"))
    name, body, each = _begun(home, minutes, listen)
    fetched, start = catalogue.fetch(name, listen=listen), {"from": str(body.path)}
    asked: Rows = {
        "scratch": ("a small BERT from scratch", {}),
        "frozen": (f"{body.path.name}, frozen: only a new head learns", {**start, "transfer": "frozen"}),
        "finetuned": (f"{body.path.name}, fine-tuned: all of it learns", start),
    }
    given = {**HELD, "data.path": str(fetched.path), "data.examples": LABELS[name]}
    trials = _tried(home, asked, given, each, listen)
    rows = tally([[trial] for trial in trials])["rows"]
    for row, (said, _) in zip(rows, asked.values(), strict=True):
        row["name"] = said
    made = load(max(trials, key=lambda trial: trial.facts["metrics"]["valid"]["accuracy"]).run)
    costs = [runs.read_json(folder / "cost.json") for folder in (body.path, *(trial.run for trial in trials))]
    place, start_at = quote(str(made.path)), quote(str(body.path))
    return Shown(
        made,
        f"{fetched.attribution} ({fetched.licence}); {_thanks(body)}",
        _samples(made),
        title=f"What {made.path.name}, the best on the valid split, says of held-out reviews (in brackets: the truth):",
        table=_table(trials, [said for said, _ in asked.values()], LABELS[name]),
        rows=rows,
        cost=_together([cost for cost in costs if "joules" in cost]),  # importing has none
        hints={
            f'harken classify {place} "{TYPED}"': "a sentence of your own",
            f"harken eval {place}": "its numbers again",
            f"harken train my.csv from={start_at} transfer=frozen": "your own texts and labels",
        },
    )


def _begun(home: Path, minutes: float, listen: Listener) -> tuple[str, Run, float]:
    """The labelled set, the learned body, and the minutes of each training; without the registry, both of our own."""
    try:
        catalogue.fetch("movie-sentences", listen=listen)
        return "movie-sentences", bring("minilm", home / "minilm", listen=listen), minutes / 3
    except HarkenError as error:
        said = "harken's own opinions are taken instead, and a BERT that first reads others of them"
        listen("notice", text=f"{error}; {said}, without their labels")
    text, each = catalogue.fetch("opinions-text", listen=listen).path, minutes / 4
    return "opinions", train(str(text), out=home / "bert", settings=OWN, minutes=each, listen=listen), each


def _tried(home: Path, asked: Rows, given: Settings, minutes: float, listen: Listener) -> list[Trial]:
    """Train each in a folder of its name, and tell it as a comparison does."""
    trials = list[Trial]()
    listen("planned", rows=len(asked), seeds=1, minutes=minutes * len(asked))
    for number, (folder, (said, settings)) in enumerate(asked.items(), 1):
        listen("trial", number=number, trials=len(asked), name=said, seed=0)
        made = train("labels", out=home / folder, settings=given | settings, minutes=minutes, listen=listen)
        cost, log = runs.read_json(made.path / "cost.json"), runs.read_log(made.path)
        trials.append(Trial(settings, 0, made.path, made.facts, cost, log))
        listen("tried", name=said, seed=0, trial=trials[-1])
    return trials


def _samples(made: Run) -> list[dict[str, Any]]:
    """A few held-out reviews, from everywhere in the file: what is said of them, how surely, and what they are."""
    held = made.recipe.open(made.tokenizer).splits["test"].rows
    some = held[:: -(-len(held) // SHOWN)]
    found = made.classify([row.texts for row in some])
    return [
        {"prompt": row.texts[0], "text": f"{best['label']} {best['probability']:.0%}", "references": list(row.labels)}
        for row, (best, *_) in zip(some, found, strict=True)
    ]


def _thanks(body: Run) -> str:
    """Who made the body."""
    origin = body.facts.get("imported")
    return f"MiniLM: {origin['attribution']} ({origin['licence']})" if origin else "the BERT: harken's own"


def _table(trials: Sequence[Trial], names: Sequence[str], labels: int) -> tuple[list[str], list[list[str]]]:
    """Who is right how often on the test split: first what is free, the best where words were cut in two ways."""
    free: dict[str, float] = {}
    for trial in trials:
        for name, metrics in trial.facts["baseline"]["test"].items():
            free[name] = max(metrics["accuracy"], free.get(name, 0.0))
    lines = [[f"{name}, for free", figure(right, 3), *[""] * 3] for name, right in free.items()]
    for name, trial in zip(names, trials, strict=True):
        cost = duration(trial.cost["seconds"]), scaled(trial.cost["kwh"], "energy")
        right = trial.facts["metrics"]["test"]["accuracy"]
        lines.append([name, figure(right, 3), scaled(trial.facts["parameters"], "count"), *cost])
    many = trials[0].facts["protocol"]["test"]["texts"]
    return [
        f"{many:,} held-out reviews, after {labels:,} with labels",
        "accuracy",
        "weights",
        "trained",
        "energy",
    ], lines


def _together(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all trainings cost, as if they were one."""
    seconds, joules, tokens, flops = (sum(c[name] for c in costs) for name in ("seconds", "joules", "tokens", "flops"))
    reading = meter.Reading(seconds, joules, costs[0]["energy_source"], max(c["memory_mib"] for c in costs) * 2**20)
    return meter.cost(reading, tokens=tokens, flops_per_token=flops / max(1, tokens))
