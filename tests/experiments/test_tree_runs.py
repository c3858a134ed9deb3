"""Runs on trees as pairs: symbols as tokens, and answers that are complete trees."""

import pytest

import harken
from harken.data.pairs.source import PairSource
from harken.data.pairs.trees import parse_brackets
from harken.data.tokenizers.pairs import detach_punctuation
from harken.errors import BadInput, BadSetting
from harken.experiments.choose import choose

TREE = "( (S (NP-SBJ (DT the) (NN {0}-{1}.) ) (VP (VBD ran) (ADVP (RB {1}) ) ) (. .) ))\n"
SHORT = "( (NP (NN {0}) ) )\n"
NAMES = [(a, b) for a in ("dog", "cat", "cow", "pig", "hen", "fox", "ape", "bee") for b in ("off", "in", "up", "out")]
STEPS = {"model.size": "tiny", "model.layers": 1, "train.batch": 8, "train.steps": 2, "train.device": "cpu"}
TEXTS = ["the dog ran .", "hen", "", "the fox-up. ran out , and the cow ran in ."]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bank") / "bank.mrg"
    path.write_text("".join(TREE.format(*name) + SHORT.format("".join(name)) for name in NAMES))
    return path


@pytest.fixture(scope="module")
def run(file):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(file.parent / "cache"))
        harken.train(file, out=file.parent / "run", settings={**STEPS, "train.threads": 1, "data.vocab_size": 300})
    return harken.load(file.parent / "run")


def n_leaves(line: str) -> int:
    spans = parse_brackets(line)
    return spans[-1][2] if spans else 0


def test_a_tree_has_one_token_per_symbol(file):
    data = choose(str(file), {"data.vocab_size": 300}).recipe.load_data()
    line = "(S (NP 1 2 )NP (VP 3 (ADVP 4 )ADVP )VP 5 )S"
    assert data.tokenizers.target.token_texts(data.tokenizers.encode_target(line)) == line.split()
    assert data.tokenizers.decode_target(data.tokenizers.encode_target(line)) == line
    assert [len(data.tokenizers.encode_source(text)) - 1 for text in TEXTS] == [len(text.split()) for text in TEXTS]
    assert max(map(len, data.tokenizers.target.token_texts(range(data.tokenizers.target.vocab)))) == len("(ADVP")


def test_symbols_are_read_verbatim_and_words_are_split_from_punctuation(file, tmp_path):
    settings = PairSource(path=str(file), tokenizer="symbol", target_tokenizer="word")
    tokenizers = settings.load_data().tokenizers
    for name, content in tokenizers.files().items():
        (tmp_path / name).write_bytes(content)
    for processor in (tokenizers, settings.load_processor(tmp_path)):
        assert processor.source.token_texts(processor.encode_source("the dog-up. ran")[:-1]) == [
            "the",
            "dog-up.",
            "ran",
        ]
        assert (
            processor.target.token_texts(processor.encode_target("(NP 1 )NP"))
            == detach_punctuation("(NP 1 )NP").split()
        )
        assert processor.unknown_pieces("the dog-us. ran") == ["dog-us."]


def test_only_sources_get_bpe_dropout_if_targets_are_symbols(file):
    datasets = (
        choose(str(file), {"data.bpe_dropout": p, "data.tokenizer": "bpe", "data.vocab_size": 300}).recipe.load_data()
        for p in (0.0, 0.5)
    )
    batches = [processor.batches(8, 0) for processor in datasets]
    tokenizers = [tuple(source.batch(0, n) for source in batches) for n in range(batches[0].steps)]
    assert all(full.tokens.equal(split.tokens) for full, split in tokenizers)
    assert not all(full.source.equal(split.source) for full, split in tokenizers)


def test_every_answer_is_a_complete_tree_over_the_words_of_its_source(run):
    assert [n_leaves(line) for line in run.translate(TEXTS)] == [len(text.split()) for text in TEXTS]
    assert run.translate(TEXTS) == [run.translate(text) for text in TEXTS]
    for best in run.alternatives(TEXTS[3:], alternatives=4, temperature=1.5)[0]:
        assert n_leaves(best["text"]) == len(TEXTS[3].split())


def test_the_protocol_reports_the_effect_of_the_grammar(run):
    score, _ = run.evaluate("valid")
    assert score.metrics["valid_trees"] == 1
    assert score.protocol["valid_trees_without_grammar"] < 1


def test_an_impossible_prefix_is_refused(run):
    assert run.translate("the dog ran", prefix="(S (NP 1").startswith("(S (NP 1 ")
    with pytest.raises(BadInput, match=r"no tree of 1 words starts like this"):
        run.translate(["the dog ran", "hen"], prefix="(S (NP 1 2")


def test_a_grammar_needs_one_token_per_bracket(file):
    settings = {"data.target_tokenizer": "bpe", "data.vocab_size": 300}
    spans = choose(str(file), settings).recipe
    with pytest.raises(BadSetting, match=r"task.grammar=trees: .* set data.target_tokenizer=symbol"):
        spans.bind(spans.load_data())
    ungrammatical = choose(str(file), {**settings, "task.grammar": "none"}).recipe
    assert ungrammatical.bind(ungrammatical.load_data()).data.tokenizers.target.kind == "bpe"


def test_trees_are_learned_by_every_pair_model(file):
    for kind in ("rnn", "rnn-attention", "conv", "transformer"):
        spans = choose(str(file), {"model.kind": kind}).recipe
        assert (spans.task.grammar, spans.model.share_embeddings) == ("trees", False)
