"""harken demo reviews: baselines, training from scratch and transfer in one table."""

from contextlib import contextmanager

import pytest

from harken.data import catalogue
from harken.data.synthetic.opinions import opinions
from harken.errors import BadInput, HarkenError
from harken.experiments import train
from harken.experiments.demos import reviews as reviews_module
from harken.run_folder import read_json

TINY = {"train.steps": 3, "train.batch": 8, "train.threads": 1}
SHAPE = {"model.d": 16, "model.layers": 1, "model.heads": 2}
FOLDERS = ["scratch", "frozen", "finetuned"]


class TinyDemo:
    """The demo with few labels and tiny models; records the trainings and the events."""

    def __init__(self, home) -> None:
        self.home, self.trainings, self.events = home, [], []

    def train(self, what, *, settings, minutes, **options):
        self.trainings.append({**settings, "minutes": minutes})
        sizes = {} if "from" in settings else SHAPE
        return train.train(what, settings={**settings, **TINY, **sizes}, **options)

    def listen(self, event, /, **facts) -> None:
        self.events.append((event, facts))

    def event_values(self, event, what):
        return [facts[what] for name, facts in self.events if name == event]

    @contextmanager
    def patched(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HARKEN_CACHE", str(self.home / "cache"))
            patch.setattr(reviews_module, "train", self.train)
            patch.setattr(reviews_module, "N_LABELS", dict.fromkeys(reviews_module.N_LABELS, 60))
            patch.setitem(catalogue.ENTRIES["opinions"].arguments, "count", 200)
            patch.setitem(catalogue.ENTRIES["opinions-text"].arguments, "count", 200)
            patch.chdir(self.home)
            yield patch


@pytest.fixture(scope="module")
def online(tmp_path_factory):
    """The output of the demo with a small dataset, and a tiny BERT instead of MiniLM."""
    demo = TinyDemo(tmp_path_factory.mktemp("online"))
    file = demo.home / "movie-sentences.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in opinions(200)))

    def import_tiny_bert(source, out, **_):
        run = train.train(file, out=out, settings={**TINY, **SHAPE})
        run.facts["imported"] = {"source": source, "attribution": "its authors", "license": "Apache-2.0"}
        return run

    with demo.patched() as patch:
        dataset = catalogue.FetchedDataset(file, "0" * 64, "Pang and Lee 2005", "research only")
        patch.setattr(catalogue, "fetch", lambda name, **_: dataset)
        patch.setattr(reviews_module, "import_model", import_tiny_bert)
        demo.output = reviews_module.reviews(minutes=3, out=demo.home / "out", listen=demo.listen)
    demo.facts = [read_json(demo.home / "out" / name / "harken.json") for name in FOLDERS]
    return demo


def test_the_three_models_train_on_the_same_labels_for_the_same_minutes(online):
    assert [(call.get("from"), call.get("transfer")) for call in online.trainings] == [
        (None, None),
        (str(online.home / "out" / "minilm"), "frozen"),
        (str(online.home / "out" / "minilm"), None),  # fine-tuning is the default
    ]
    shared = {(call["minutes"], call["data.examples"], call["data.path"]) for call in online.trainings}
    assert shared == {(1.0, 60, str(online.home / "movie-sentences.tsv"))}


def test_the_events_are_those_of_a_comparison_and_the_attribution_is_complete(online):
    assert online.event_values("notice", "text") == []
    assert online.event_values("comparison_start", "minutes") == [3.0]
    assert online.event_values("trial_start", "name") == [row["name"] for row in online.output.rows]
    assert [trial.run.name for trial in online.event_values("trial_end", "trial")] == FOLDERS
    assert online.output.attribution == "Pang and Lee 2005 (research only); MiniLM: its authors (Apache-2.0)"


def test_the_table_has_the_baselines_and_the_metrics_of_each_run(online):
    heads, lines = online.output.table
    assert [len(line) for line in lines] == [len(heads)] * 5
    baselines, trained = lines[:2], lines[2:]
    assert [line[0] for line in baselines] == ["baseline: most frequent label", "baseline: bag of words"]
    accuracy = [facts["metrics"]["test"]["accuracy"] for facts in online.facts]
    assert [float(line[1]) for line in trained] == pytest.approx(accuracy, abs=5e-4)
    bags = [facts["baseline"]["test"]["bag of words"]["accuracy"] for facts in online.facts]
    assert float(baselines[1][1]) == pytest.approx(max(bags), abs=5e-4)
    n_texts = online.facts[0]["protocol"]["test"]["texts"]
    assert heads[0] == f"{n_texts} held-out reviews, 60 training labels"


def test_the_run_is_the_best_on_the_validation_split(online):
    valid = [facts["metrics"]["valid"]["accuracy"] for facts in online.facts]
    assert online.output.run.path.name == FOLDERS[valid.index(max(valid))]


def test_the_cost_is_the_sum_of_all_trainings(online):
    folders = ["minilm", *FOLDERS]  # trained in this test, so it has a cost
    costs = [read_json(online.home / "out" / name / "cost.json") for name in folders]
    for amount in ("seconds", "kwh", "flops"):
        assert online.output.cost[amount] == pytest.approx(sum(cost[amount] for cost in costs))


def test_five_held_out_reviews_are_shown_with_their_labels(online):
    run = online.output.run
    labels = {row.texts[0]: row.labels for row in run.recipe.load_data(run.tokenizer).splits["test"].rows}
    assert len(online.output.samples) == 5
    for sample in online.output.samples:
        assert labels[sample["prompt"]] == tuple(sample["references"])
        best = run.classify([sample["prompt"]])[0][0]
        assert sample["text"] == f"{best['label']} {best['probability']:.0%}"


def test_without_network_access_generated_opinions_and_a_new_bert_are_used(tmp_path):
    demo, fetch = TinyDemo(tmp_path), catalogue.fetch

    def offline(name, **options):
        if catalogue.ENTRIES[name].bytes:
            raise HarkenError(f"data {name}: could not be fetched")
        return fetch(name, **options)

    with demo.patched() as patch:
        patch.setattr(catalogue, "fetch", offline)
        output = reviews_module.reviews(minutes=4, listen=demo.listen)
    assert demo.event_values("notice", "text")[0] == (
        "data movie-sentences: could not be fetched; using generated opinions instead, and a BERT pretrained on "
        "unlabelled ones"
    )
    assert output.attribution == "harken (Apache-2.0); BERT: trained by harken"
    assert [call["minutes"] for call in demo.trainings] == [1.0] * 4
    assert [call.get("from") for call in demo.trainings] == [None, None, "runs/reviews/bert", "runs/reviews/bert"]
    assert str(output.run.path.parent) == "runs/reviews"


def test_a_non_empty_folder_is_refused_before_anything_is_downloaded(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear all")
    demo = TinyDemo(tmp_path)
    with demo.patched(), pytest.raises(BadInput, match="is not empty; choose another folder"):
        reviews_module.reviews(out=tmp_path, listen=demo.listen)
    assert not demo.trainings + demo.events
