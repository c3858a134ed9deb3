"""harken demo vocabulary: two language models of equal size and tokens, in one table with both kinds of sentences."""

import pytest

from harken.data import catalogue
from harken.errors import BadInput
from harken.experiments.demos import vocabulary as demo
from harken.inference.run import load


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The output of the demo with little data, one seed, one transfer and two steps per training."""
    home = tmp_path_factory.mktemp("vocabulary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.setattr("harken.data.synthetic.vocabulary.SPLIT_SIZES", dict.fromkeys([*SPLITS, "new-words"], 60))
        patch.setitem(catalogue.ENTRIES["vocabulary-text"].arguments, "count", 400)
        patch.setattr(demo, "TRANSFERS", {"finetune": "fine-tuned"})
        for name, value in {"TOKENS": 100, "STEPS": 2, "N_SEEDS": 1}.items():
            patch.setattr(demo, name, value)
        yield home / "out", demo.vocabulary(out=home / "out")


SPLITS = ("train", "valid", "test")


def test_both_language_models_have_equal_weights_and_tokens(shown):
    lstm, gpt = (load(shown[0] / kind) for kind in demo.BODIES)
    assert (lstm.recipe.model.kind, gpt.recipe.model.kind) == ("lstm", "gpt")
    assert lstm.recipe.train.tokens == gpt.recipe.train.tokens
    assert lstm.tokenizer.json == gpt.tokenizer.json
    weights = [run.facts["parameters"] for run in (lstm, gpt)]
    assert lstm.tokenizer.vocab == catalogue.ENTRIES["vocabulary-text"].settings["data.vocab_size"]  # full size
    assert max(weights) / min(weights) < 1.02


def test_the_table_has_a_row_for_each_model_and_transfer(shown):
    heads, lines = shown[1].table
    assert heads[1:3] == ["known words", "new words"]
    names = [f"{kind}, {how}" for kind in demo.BODIES for how in demo.TRANSFERS.values()]
    assert [line[0] for line in lines] == ["baseline: most frequent label", "baseline: bag of words", *names]
    accuracies = [row["splits"]["test"]["metrics"]["accuracy"] for row in shown[1].rows]
    assert [float(line[1].split()[0]) for line in lines[2:]] == pytest.approx(accuracies, abs=0.01)
    parameters = [row["parameters"] for row in shown[1].rows]
    assert [line[3] for line in lines[2:]] == [f"{n:,}" for n in parameters]


def test_the_new_words_are_evaluated_and_the_verdict_is_shown(shown):
    home, output = shown
    run, new_words = load(output.rows[0]["runs"][0]), catalogue.fetch("vocabulary").path / "new-words.tsv"
    accuracy = run.evaluate(data=new_words).metrics["accuracy"]
    assert float(output.table[1][2][2]) == pytest.approx(accuracy, abs=5e-3)
    assert str(home / "compare" / "report.html") in output.title
    assert (home / "compare" / "report.html").is_file()
    assert len(output.samples) == 5


def test_a_non_empty_folder_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear all")
    with pytest.raises(BadInput, match="is not empty; choose another folder"):
        demo.vocabulary(out=tmp_path)
