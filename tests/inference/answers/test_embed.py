"""Vectors of texts: equal to the states computed by hand, however texts lie; the nearest found by looking at all."""

import numpy as np
import pytest
import torch

import harken
from harken.data.labelled.examples import LabelWords
from harken.errors import BadInput
from harken.inference.answers import embed
from harken.recipe import resolve

TEXTS = ["Tom had a hat", "a", "", "The cat saw a big dog and ran", "Tom had a hat"]


def states(run, text: str) -> torch.Tensor:
    """The last states of one text alone, read at once."""
    end = run.tokenizer.end
    ids = run.tokenizer.encode(text).tolist()[: run.model.context] or [
        int(run.tokenizer.encode("\n")[0]) if end is None else end
    ]
    with torch.no_grad():
        return run.model(torch.tensor([ids]))[0]


@pytest.mark.parametrize("pool", embed.POOLS)
def test_a_vector_is_that_of_the_text_read_alone(every, pool):
    own = {"mean": lambda h: h.mean(0), "cls": lambda h: h[0], "last": lambda h: h[-1]}[pool]
    expected = torch.stack([own(states(every, text)) for text in TEXTS])
    found = every.embed(TEXTS, pool=pool, normalised=False)
    assert found == pytest.approx(expected.numpy(), abs=1e-6)


def test_the_order_and_the_company_of_texts_change_no_vector(every, monkeypatch):
    together = every.embed(TEXTS)
    monkeypatch.setattr(embed, "AT_ONCE", 20)
    assert every.embed(TEXTS[::-1])[::-1] == pytest.approx(together, abs=1e-6)
    assert every.embed("a") == pytest.approx(together[1], abs=1e-6)


def test_a_vector_has_length_one_unless_it_is_asked_for_as_it_is(char):
    assert np.linalg.norm(char.embed(TEXTS), axis=-1) == pytest.approx(np.ones(5), abs=1e-6)
    raw = char.embed("Tom", normalised=False)
    assert char.embed("Tom") == pytest.approx(raw / np.linalg.norm(raw), abs=1e-6)


def test_no_texts_give_no_vectors(char):
    assert char.embed([]).shape == (0, 16)


def test_a_text_that_is_too_long_is_cut_and_this_is_said(char):
    said = []
    long = char.embed("Tom had a hat and a cat", listen=lambda event, **facts: said.append(facts["text"]))
    assert long == pytest.approx(char.embed("Tom had a hat and a cat"[:16]))
    assert said == ["'Tom had a hat and a cat'...: 23 tokens, and this run reads 16; the rest is left out"]


@pytest.mark.parametrize(("given", "message"), [({"pool": "max"}, "mean, cls, last"), ({"text": 3}, "a list of texts")])
def test_what_is_no_text_or_no_pool_is_refused(char, given, message):
    with pytest.raises(BadInput, match=message):
        char.embed(**{"text": ["a"], **given}) if "pool" in given else char.embed([3])


def test_a_run_of_pairs_has_no_vectors(pair_folder):
    with pytest.raises(BadInput, match="use harken translate"):
        harken.load(pair_folder).embed("a")


def test_a_run_with_a_head_gives_the_vectors_of_its_body(char, tmp_path):
    words, settings = (
        LabelWords(char.tokenizer, ["O", "B-x"]),
        {"data.kind": "tags", "model.kind": "gpt", "model.d": 16},
    )
    recipe = resolve(("test", {**settings, "model.layers": 1, "model.heads": 2, "model.context": 16}))
    model = recipe.build(words.vocab)
    run = harken.Run(tmp_path, recipe, {}, model, words)
    with torch.no_grad():
        h = model.body(torch.tensor([char.tokenizer.encode("Tom").tolist()]))[0]
    assert run.embed("Tom", normalised=False) == pytest.approx(h.mean(0).numpy(), abs=1e-6)
    assert len(run.nearest("T", 3)) == 3


# --- a file -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Tom had a hat\n\n  The cat ran \r\nA dog\nTom had a hat\n")
    return path


def test_the_best_lines_are_those_of_the_sorted_cosines(char, notes):
    lines = {1: "Tom had a hat", 3: "The cat ran", 4: "A dog", 5: "Tom had a hat"}
    cosines = {n: float(char.embed(line) @ char.embed("Tom had")) for n, line in lines.items()}
    hits = char.corpus(notes).search("Tom had", 3)
    assert [hit["line"] for hit in hits] == sorted(lines, key=lambda n: (-round(cosines[n], 5), n))[:3]
    assert [hit["score"] for hit in hits] == pytest.approx([cosines[hit["line"]] for hit in hits], abs=1e-6)
    assert [hit["text"] for hit in hits] == [lines[hit["line"]] for hit in hits]


def test_looking_in_blocks_finds_the_same(char, notes, monkeypatch):
    whole = char.corpus(notes).search("The cat", 9)
    monkeypatch.setattr(embed, "BLOCK", 2)
    parts = char.corpus(notes).search("The cat", 9)
    assert [hit["line"] for hit in parts] == [hit["line"] for hit in whole]
    assert len(parts) == 4


def test_the_vectors_of_a_file_are_made_once_until_it_changes(char, notes, monkeypatch):
    made = []
    monkeypatch.setattr(char, "embed", lambda texts, **_: made.append(len(texts)) or np.ones((len(texts), 2)))
    char.corpus(notes)
    char.corpus(notes)
    assert made == [4]
    char.corpus(notes, pool="cls")
    notes.write_text("another\n")
    char.corpus(notes)
    assert made == [4, 4, 1]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lighter_weights_keep_vectors_of_their_own(folders, notes, precision):
    plain, light = (harken.load(folders["char"], device="cpu", precision=p) for p in ("float32", precision))
    assert plain.corpus(notes).cached != light.corpus(notes).cached


def test_a_cached_file_that_was_cut_is_made_again(char, notes):
    corpus = char.corpus(notes)
    corpus.cached.write_bytes(corpus.cached.read_bytes()[:100])
    assert char.corpus(notes).search("A dog", 1)[0]["line"] == 4


def test_a_failure_leaves_nothing_in_the_cache(char, notes, monkeypatch):
    monkeypatch.setattr(char, "embed", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        char.corpus(notes)
    assert list(embed.cache_folder("vectors").iterdir()) == []


def test_a_file_that_cannot_be_searched_is_refused_by_its_name(char, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    for name, message in (("empty", "white space"), ("latin", "UTF-8"), ("none", "cannot be read")):
        with pytest.raises(BadInput, match=rf"{name}\.txt.*{message}"):
            char.corpus(tmp_path / f"{name}.txt")


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_nearest_words_are_those_of_the_largest_cosines(folders):
    run = harken.load(folders["word"])
    table = run.model.embed.weight[: run.tokenizer.vocab].detach().double().numpy()
    table /= np.linalg.norm(table, axis=-1, keepdims=True)
    own = int(run.tokenizer.encode("the")[0])
    order = [i for i in np.argsort(-table @ table[own]) if i not in (own, run.tokenizer.unknown)]
    found = run.nearest("the", 4)
    assert [one["word"] for one in found] == run.tokenizer.words(order[:4])
    assert [one["similarity"] for one in found] == pytest.approx((table @ table[own])[order[:4]], abs=1e-6)


def test_a_word_of_byte_pairs_is_found_with_the_space_before_it(folders):
    run = harken.load(folders["bpe"])
    spaced = next(w for w in run.tokenizer.words(range(run.tokenizer.vocab)) if w[0] == " " and len(w) > 3)
    alone = run.tokenizer.encode(spaced[1:])
    assert len(alone) > 1
    assert spaced not in [one["word"] for one in run.nearest(spaced[1:], 1000)]


def test_what_is_not_one_token_is_refused_with_its_parts(folders):
    with pytest.raises(BadInput, match=r"'zebra': is no word of this run's table \(this run does not know it"):
        harken.load(folders["word"]).nearest("zebra")
    with pytest.raises(BadInput, match="it is 'T', 'o', 'm'"):
        harken.load(folders["char"]).nearest("Tom")


# --- layers -----------------------------------------------------------------------------------------------------------


def test_the_states_behind_a_layer_are_those_its_block_gives(char):
    ids = torch.tensor([char.tokenizer.encode("Tom had a hat").tolist()])
    given = []
    with (
        torch.no_grad(),
        char.model.stack.blocks[0].register_forward_hook(lambda _, x, made: given.extend([x[0], made])),
    ):
        char.model(ids)
    for layer, states in enumerate(given):
        found = char.embed("Tom had a hat", layer=layer, normalised=False)
        assert found == pytest.approx(states[0].mean(0).numpy(), abs=1e-6)
    texts = char.embed(TEXTS, layer=1)
    assert texts[0] == pytest.approx(char.embed(TEXTS[0], layer=1), abs=1e-6)


def test_a_layer_that_is_not_there_is_refused(folders, char):
    with pytest.raises(BadInput, match="this run has 1; 0 is before the first"):
        char.embed("Tom", layer=2)
    with pytest.raises(BadInput, match="no stack of blocks"):
        harken.load(folders["lstm"]).embed("Tom", layer=0)
    with pytest.raises(BadInput, match="Did you mean layer"):
        char.embed("Tom", layers=1)
