"""The demo of film reviews: one table of what is free, what is learned from nothing and what was learned before."""

from contextlib import contextmanager

import pytest

from harken.data import catalogue
from harken.data.synthetic.opinions import opinions
from harken.errors import BadInput, HarkenError
from harken.experiments import train
from harken.experiments.demos import reviews as room
from harken.run_folder import read_json

TINY = {"train.steps": 3, "train.batch": 8, "train.threads": 1}
SHAPE = {"model.d": 16, "model.layers": 1, "model.heads": 2}
FOLDERS = ["scratch", "frozen", "finetuned"]


class Little:
    """A demo with few labels and tiny models: what it was asked to train, and what it said."""

    def __init__(self, home) -> None:
        self.home, self.asked, self.said = home, [], []

    def train(self, what, *, settings, minutes, **options):
        self.asked.append({**settings, "minutes": minutes})
        own = {} if "from" in settings else SHAPE
        return train.train(what, settings={**settings, **TINY, **own}, **options)

    def listen(self, event, /, **facts) -> None:
        self.said.append((event, facts))

    def told(self, event, what):
        return [facts[what] for name, facts in self.said if name == event]

    @contextmanager
    def played(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HARKEN_CACHE", str(self.home / "cache"))
            patch.setattr(room, "train", self.train)
            patch.setattr(room, "LABELS", dict.fromkeys(room.LABELS, 60))
            patch.setattr(catalogue, "OPINIONS", 200)
            patch.chdir(self.home)
            yield patch


@pytest.fixture(scope="module")
def online(tmp_path_factory):
    """A registry with some sentences, and a tiny BERT in place of MiniLM; the demo has been shown."""
    it = Little(tmp_path_factory.mktemp("online"))
    file = it.home / "movie-sentences.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in opinions(200)))

    def brought(source, out, **_):
        made = train.train(file, out=out, settings={**TINY, **SHAPE})
        made.facts["imported"] = {"source": source, "attribution": "its authors", "licence": "Apache-2.0"}
        return made

    with it.played() as patch:
        found = catalogue.FetchedDataset(file, "0" * 64, "Pang and Lee 2005", "research only")
        patch.setattr(catalogue, "fetch", lambda name, **_: found)
        patch.setattr(room, "import_model", brought)
        it.shown = room.reviews(minutes=3, out=it.home / "mine", listen=it.listen)
    it.facts = [read_json(it.home / "mine" / name / "harken.json") for name in FOLDERS]
    return it


def test_the_three_models_train_on_the_same_labels_for_the_same_minutes(online):
    assert [(asked.get("from"), asked.get("transfer")) for asked in online.asked] == [
        (None, None),
        (str(online.home / "mine" / "minilm"), "frozen"),
        (str(online.home / "mine" / "minilm"), None),  # to be fine-tuned is the default
    ]
    shared = {(asked["minutes"], asked["data.examples"], asked["data.path"]) for asked in online.asked}
    assert shared == {(1.0, 60, str(online.home / "movie-sentences.tsv"))}


def test_the_events_are_those_of_a_comparison_and_the_attribution_is_complete(online):
    assert online.told("notice", "text") == []
    assert online.told("planned", "minutes") == [3.0]
    assert online.told("trial", "name") == [row["name"] for row in online.shown.rows]
    assert [trial.run.name for trial in online.told("tried", "trial")] == FOLDERS
    assert online.shown.whose == "Pang and Lee 2005 (research only); MiniLM: its authors (Apache-2.0)"


def test_the_table_has_the_baselines_and_the_metrics_of_each_run(online):
    heads, lines = online.shown.table
    assert [len(line) for line in lines] == [len(heads)] * 5
    free, learned = lines[:2], lines[2:]
    assert [line[0] for line in free] == ["most frequent label, for free", "bag of words, for free"]
    accuracy = [facts["metrics"]["test"]["accuracy"] for facts in online.facts]
    assert [float(line[1]) for line in learned] == pytest.approx(accuracy, abs=5e-4)
    bags = [facts["baseline"]["test"]["bag of words"]["accuracy"] for facts in online.facts]
    assert float(free[1][1]) == pytest.approx(max(bags), abs=5e-4)
    many = online.facts[0]["protocol"]["test"]["texts"]
    assert heads[0] == f"{many} held-out reviews, after 60 with labels"


def test_the_run_is_the_best_on_the_validation_split(online):
    valid = [facts["metrics"]["valid"]["accuracy"] for facts in online.facts]
    assert online.shown.run.path.name == FOLDERS[valid.index(max(valid))]


def test_the_cost_is_the_sum_of_all_trainings(online):
    folders = ["minilm", *FOLDERS]  # here it was trained, and has a cost too
    costs = [read_json(online.home / "mine" / name / "cost.json") for name in folders]
    for amount in ("seconds", "kwh", "flops"):
        assert online.shown.cost[amount] == pytest.approx(sum(cost[amount] for cost in costs))


def test_five_held_out_reviews_are_shown_with_their_labels(online):
    run = online.shown.run
    held = {row.texts[0]: row.labels for row in run.recipe.load_data(run.tokenizer).splits["test"].rows}
    assert len(online.shown.samples) == 5
    for sample in online.shown.samples:
        assert held[sample["prompt"]] == tuple(sample["references"])
        likeliest = run.classify([sample["prompt"]])[0][0]
        assert sample["text"] == f"{likeliest['label']} {likeliest['probability']:.0%}"


def test_without_network_access_generated_opinions_and_a_new_bert_are_used(tmp_path):
    it, fetch = Little(tmp_path), catalogue.fetch

    def offline(name, **how):
        if catalogue.ENTRIES[name].package:
            raise HarkenError(f"data {name}: could not be fetched")
        return fetch(name, **how)

    with it.played() as patch:
        patch.setattr(catalogue, "fetch", offline)
        shown = room.reviews(minutes=4, listen=it.listen)
    assert it.told("notice", "text")[0] == (
        "data movie-sentences: could not be fetched; harken's own opinions are taken instead, and a BERT that first "
        "reads others of them, without their labels"
    )
    assert shown.whose == "harken's own grammar (Apache-2.0); the BERT: harken's own"
    assert [asked["minutes"] for asked in it.asked] == [1.0] * 4
    assert [asked.get("from") for asked in it.asked] == [None, None, "runs/reviews/bert", "runs/reviews/bert"]
    assert str(shown.run.path.parent) == "runs/reviews"


def test_a_non_empty_folder_is_refused_before_anything_is_downloaded(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear all")
    it = Little(tmp_path)
    with it.played(), pytest.raises(BadInput, match="is not empty; take another folder"):
        room.reviews(out=tmp_path, listen=it.listen)
    assert not it.asked + it.said
