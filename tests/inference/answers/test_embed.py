"""Text embeddings equal pooled hidden states for any batching; search is exhaustive."""

import os
from threading import Thread

import numpy as np
import pytest
import torch

import harken
from harken.data.labelled.examples import TokenLabelProcessor
from harken.errors import BadInput
from harken.events import silent
from harken.inference.answers import corpus, embed, text_vectors
from harken.recipe import resolve

TEXTS = ["Tom had a hat", "a", "!", "The cat saw a big dog and ran", "Tom had a hat"]


def states(run, text: str) -> torch.Tensor:
    """The hidden states of a single text."""
    end = run.tokenizer.end_id
    ids = run.tokenizer.encode(text).tolist()[: run.model.context] or [
        int(run.tokenizer.encode("\n")[0]) if end is None else end
    ]
    with torch.no_grad():
        return run.model(torch.tensor([ids]))[0]


@pytest.mark.parametrize("pool", embed.POOLS)
def test_the_vector_of_a_text_does_not_depend_on_its_batch(every, pool):
    pool_states = {"mean": lambda h: h.mean(0), "cls": lambda h: h[0], "last": lambda h: h[-1]}[pool]
    expected = torch.stack([pool_states(states(every, text)) for text in TEXTS])
    vectors = every.embed(TEXTS, pool=pool, normalize=False)
    assert vectors == pytest.approx(expected.numpy(), abs=1e-6)


def test_the_order_and_batching_of_texts_change_no_vector(every, monkeypatch):
    together = every.embed(TEXTS)
    monkeypatch.setattr(text_vectors, "BATCH_TOKENS", {"cpu": 20})
    assert every.embed(TEXTS[::-1])[::-1] == pytest.approx(together, abs=1e-6)
    assert every.embed("a") == pytest.approx(together[1], abs=1e-6)


def test_vectors_have_length_one_unless_normalize_is_false(char):
    assert np.linalg.norm(char.embed(TEXTS), axis=-1) == pytest.approx(np.ones(5), abs=1e-6)
    raw = char.embed("Tom", normalize=False)
    assert char.embed("Tom") == pytest.approx(raw / np.linalg.norm(raw), abs=1e-6)


def test_no_texts_give_no_vectors(char):
    assert char.embed([]).shape == (0, 16)


def test_a_long_text_is_truncated_with_a_notice(char):
    messages = []
    vector = char.embed("Tom had a hat and a cat", listen=lambda event, **facts: messages.append(facts["text"]))
    assert vector == pytest.approx(char.embed("Tom had a hat and a cat"[:16]))
    windows = 'use --overflow windows (Python: overflow="windows")'
    counts = "1 of 1 texts is longer than 16 tokens (longest: 23) and was truncated"
    assert messages == [f"{counts}; {windows}"]


@pytest.mark.parametrize(
    ("arguments", "message"), [({"pool": "max"}, "mean, cls, last"), ({"text": 3}, "a list of strings")]
)
def test_an_invalid_text_or_pooling_is_refused(char, arguments, message):
    with pytest.raises(BadInput, match=message):
        char.embed(**{"text": ["a"], **arguments}) if "pool" in arguments else char.embed([3])


def test_a_run_with_a_head_gives_the_vectors_of_its_body(char, tmp_path):
    processor, settings = (
        TokenLabelProcessor(char.tokenizer, ["O", "B-x"]),
        {"data.kind": "tags", "model.kind": "gpt", "model.d": 16},
    )
    recipe = resolve(("test", {**settings, "model.layers": 1, "model.heads": 2, "model.context": 16}))
    model = recipe.build(processor.vocab)
    run = harken.Run(tmp_path, recipe, {}, model, processor)
    with torch.no_grad():
        h = model.body(torch.tensor([char.tokenizer.encode("Tom").tolist()]))[0]
    assert run.embed("Tom", normalize=False) == pytest.approx(h.mean(0).numpy(), abs=1e-6)
    assert len(run.nearest("T", 3)) == 3


# --- a file -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Tom had a hat\n\n  The cat ran \r\nA dog\nTom had a hat\n")
    return path


def test_search_returns_the_lines_with_the_largest_cosines(char, notes):
    lines = {1: "Tom had a hat", 3: "The cat ran", 4: "A dog", 5: "Tom had a hat"}
    cosines = {n: float(char.embed(line) @ char.embed("Tom had")) for n, line in lines.items()}
    hits = char.corpus(notes).search("Tom had", 3)
    assert [hit["line"] for hit in hits] == sorted(lines, key=lambda n: (-round(cosines[n], 5), n))[:3]
    assert [hit["score"] for hit in hits] == pytest.approx([cosines[hit["line"]] for hit in hits], abs=1e-6)
    assert [hit["text"] for hit in hits] == [lines[hit["line"]] for hit in hits]


def test_a_pipe_is_read_once(char, tmp_path):
    def lines_of(text: str) -> list[str]:
        pipe = tmp_path / text.split()[0]
        os.mkfifo(pipe)
        writer = Thread(target=pipe.write_text, args=(text,))
        writer.start()
        piped = char.corpus(pipe)
        writer.join()
        assert piped.vectors[0] == pytest.approx(char.embed(text), abs=1e-6)
        return [line for _, line in piped.lines]

    assert lines_of("Tom had a hat") == ["Tom had a hat"]
    assert lines_of("A dog") == ["A dog"]  # as many lines as before, but other vectors


def test_searching_in_chunks_gives_the_same_hits(char, notes, monkeypatch):
    expected = char.corpus(notes).search("The cat", 9)
    monkeypatch.setattr(corpus, "CHUNK", 2)
    hits = char.corpus(notes).search("The cat", 9)
    assert [hit["line"] for hit in hits] == [hit["line"] for hit in expected]
    assert len(hits) == 4


def test_every_search_of_a_file_with_long_lines_gives_one_notice(char, notes, monkeypatch):
    monkeypatch.setattr(corpus, "CHUNK", 1)
    notes.write_text("Tom had a red hat and a cat\na dog\nLily had a red hat and a cat\n")
    notices = []
    for _ in range(2):  # the second time the vectors are in the cache
        char.corpus(notes, listen=lambda event, **facts: event == "notice" and notices.append(facts["text"]))
    counts = "2 of 3 texts are longer than 16 tokens (longest: 28) and were truncated"
    assert [each.partition(";")[0] for each in notices] == [counts, counts]
    before = char.corpus(notes, listen=silent).vectors
    windows = char.corpus(notes, overflow="windows")
    assert np.array_equal(windows.vectors[1], before[1])
    assert windows.vectors[0] == pytest.approx(char.embed(windows.lines[0][1], overflow="windows"), abs=1e-6)


def test_the_vectors_of_a_file_are_computed_once_until_it_changes(char, notes, monkeypatch):
    batches = []
    monkeypatch.setattr(char, "embed", lambda texts, **_: batches.append(len(texts)) or np.ones((len(texts), 2)))
    char.corpus(notes)
    char.corpus(notes)
    assert batches == [4]
    char.corpus(notes, pool="cls")
    notes.write_text("another\n")
    char.corpus(notes)
    assert batches == [4, 4, 1]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_each_precision_has_its_own_cached_vectors(folders, notes, precision, monkeypatch):
    monkeypatch.setattr("harken.inference.prepare.MIN_WEIGHTS", 0)
    plain, quantized = (harken.load(folders["char"], device="cpu", precision=p) for p in ("float32", precision))
    assert plain.corpus(notes).cache_file != quantized.corpus(notes).cache_file


def test_a_truncated_cache_file_is_recomputed(char, notes):
    complete = char.corpus(notes)
    complete.cache_file.write_bytes(complete.cache_file.read_bytes()[:100])
    assert char.corpus(notes).search("A dog", 1)[0]["line"] == 4


def test_a_failure_leaves_nothing_in_the_cache(char, notes, monkeypatch):
    monkeypatch.setattr(char, "embed", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        char.corpus(notes)
    assert list(corpus.cache_folder("vectors").iterdir()) == []


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
    pool_states = int(run.tokenizer.encode("the")[0])
    order = [i for i in np.argsort(-table @ table[pool_states]) if i not in (pool_states, run.tokenizer.unk_id)]
    vectors = run.nearest("the", 4)
    assert [item["word"] for item in vectors] == run.tokenizer.token_texts(order[:4])
    assert [item["similarity"] for item in vectors] == pytest.approx((table @ table[pool_states])[order[:4]], abs=1e-6)


def test_a_bpe_word_is_looked_up_with_a_leading_space(folders):
    run = harken.load(folders["bpe"])
    spaced = next(w for w in run.tokenizer.token_texts(range(run.tokenizer.vocab)) if w[0] == " " and len(w) > 3)
    ids = run.tokenizer.encode(spaced[1:])
    assert len(ids) > 1
    assert spaced not in [item["word"] for item in run.nearest(spaced[1:], 1000)]


def test_a_word_that_is_not_one_token_is_refused_with_its_pieces(folders):
    with pytest.raises(BadInput, match=r"'zebra': not a word of this run's vocabulary \(it is unknown"):
        harken.load(folders["word"]).nearest("zebra")
    with pytest.raises(BadInput, match="it is split into 'T', 'o', 'm'"):
        harken.load(folders["char"]).nearest("Tom")


# --- layers -----------------------------------------------------------------------------------------------------------


def test_layer_selects_the_output_of_its_block(char):
    ids = torch.tensor([char.tokenizer.encode("Tom had a hat").tolist()])
    arguments = []
    with (
        torch.no_grad(),
        char.model.stack.blocks[0].register_forward_hook(lambda _, x, batches: arguments.extend([x[0], batches])),
    ):
        char.model(ids)
    for layer, states in enumerate(arguments):
        vectors = char.embed("Tom had a hat", layer=layer, normalize=False)
        assert vectors == pytest.approx(states[0].mean(0).numpy(), abs=1e-6)
    texts = char.embed(TEXTS, layer=1)
    assert texts[0] == pytest.approx(char.embed(TEXTS[0], layer=1), abs=1e-6)


def test_a_layer_out_of_range_is_refused(folders, char):
    with pytest.raises(BadInput, match="this run has 1 layers; 0"):
        char.embed("Tom", layer=2)
    with pytest.raises(BadInput, match="no stack of blocks"):
        harken.load(folders["lstm"]).embed("Tom", layer=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'layers'"):
        char.embed("Tom", layers=1)


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.csv", 'id;text\n1;Tom had a hat\n2;"The cat; it ran"\n', {2: "Tom had a hat", 3: "The cat; it ran"}),
        ("a.jsonl", '{"text": "Tom had a hat"}\n{"text": ""}\n{"text": "A dog"}\n', {1: "Tom had a hat", 3: "A dog"}),
        ("mac.txt", "Tom had a hat\rThe cat ran\rA dog\r", {1: "Tom had a hat", 2: "The cat ran", 3: "A dog"}),
        ("marks.txt", "Tom had\u2028a hat\nA\x0cdog\n", {1: "Tom had\u2028a hat", 2: "A\x0cdog"}),
    ],
)
def test_a_corpus_is_read_as_other_files_of_texts_are(char, tmp_path, name, content, lines):
    for encoding in ("utf-8", "utf-16"):
        path = tmp_path / f"{encoding}-{name}"
        path.write_bytes(content.encode(encoding))
        assert dict(char.corpus(path).lines) == lines


def test_a_column_of_a_corpus_is_named_if_several_hold_texts(char, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("Tom had a hat today,The cat ran far away\nThe dog sat down,A hat was red again\n")
    with pytest.raises(BadInput, match=r"a table with the columns 1, 2; name that of the texts: --column 1"):
        char.corpus(path)
    assert [text for _, text in char.corpus(path, column="2").lines] == ["The cat ran far away", "A hat was red again"]
