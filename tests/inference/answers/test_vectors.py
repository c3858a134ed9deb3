"""Vectors of words in their context and of the inputs of every family equal independent computations."""

import csv
from itertools import pairwise

import numpy as np
import pytest
import torch

import harken
from harken import registry
from harken.data.synthetic.stories import stories
from harken.errors import BadInput
from harken.experiments.choose import choose
from harken.inference.answers.embed import Embedder

TEXT = "Tom had a hat. The hat was red, and the cat saw the hat."
SMALL = {"model.d": 16}
BLOCKS = {**SMALL, "model.layers": 2, "model.heads": 2}


def untrained(path, tmp_path, **settings) -> harken.Run:
    """A run with random weights on this data."""
    recipe = choose(str(path), settings).recipe
    data = recipe.load_data()
    return harken.Run(tmp_path / "run", recipe, {"sha256": {}}, recipe.build(data.vocab), data.tokenizer)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def probabilities(rows, labels):
    return np.array([[next(s["probability"] for s in row if s["label"] == label) for label in labels] for row in rows])


def assert_head_reads(run, vectors, inputs):
    """The head of the model computes the probabilities of `classify` from these vectors."""
    W, b = (p.detach().numpy() for p in run.model.W_y.parameters())
    assert probabilities(run.classify(inputs), run.labels) == pytest.approx(softmax(vectors @ W.T + b), abs=1e-5)


@pytest.mark.parametrize("task", list(registry.FAMILIES))
def test_every_family_names_an_embedder(task):
    assert isinstance(registry.load_object(registry.FAMILIES[task].embed), Embedder)


# --- words ------------------------------------------------------------------------------------------------------------


def hidden_states(bert, text):
    """The hidden states of transformers for a text, and the word of each token."""
    run, model = bert
    encoding = run.tokenizer._library.encode(text, add_special_tokens=False)
    ids = torch.tensor([[run.tokenizer.cls_id, *encoding.ids, run.tokenizer.sep_id]])
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    return [h[0].numpy() for h in states], [None, *encoding.word_ids, None]


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_the_vector_of_a_word_is_the_mean_of_the_hidden_states_of_its_pieces(bert, layer):
    states, words = hidden_states(bert, "The cat saw zebras.")
    expected = states[layer][[n for n, word in enumerate(words) if word == 3]]  # zebras
    assert len(expected) > 1
    vector = bert[0].embed("The cat saw zebras.", word="zebras", layer=layer, normalize=False)
    assert vector == pytest.approx(expected.mean(0), abs=1e-5)


def test_a_word_that_occurs_twice_has_the_mean_unless_an_occurrence_is_chosen(bert):
    run, text = bert[0], "A cat saw a cat."
    states, words = hidden_states(bert, text)
    first, second = (states[-1][[n for n, w in enumerate(words) if w == k]].mean(0) for k in (1, 4))
    for occurrence, expected in ((1, first), (2, second), (None, (first + second) / 2)):
        vector = run.embed(text, word="cat", occurrence=occurrence, normalize=False)
        assert vector == pytest.approx(expected, abs=1e-5)
    rows = run.embed(["A cat.", text], word="cat")
    assert rows[1] == pytest.approx(run.embed(text, word="cat"), abs=1e-6)


def test_a_word_is_read_with_the_context_around_it(bert):
    run = bert[0]
    text = " ".join(["The dog ran."] * 20 + ["Tom had a hat."] + ["The dog ran."] * 20)
    near = " ".join(["The dog ran."] * 2 + ["Tom had a hat."] + ["The dog ran."] * 2)
    cosine = run.embed(text, word="hat") @ run.embed(near, word="hat")
    assert cosine > 0.8
    assert not np.allclose(run.embed(text, word="hat"), run.embed("Tom had a hat.", word="hat"), atol=1e-3)


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "lstm"])
def test_every_tokenizer_finds_the_pieces_of_a_word(folders, kind):
    run = harken.load(folders[kind])
    text = "Tom saw a cat "
    with torch.no_grad():
        h = run.model(torch.tensor([run.tokenizer.encode(text).tolist()]))[0]
    pieces = {"char": slice(4, 7), "lstm": slice(4, 7), "word": slice(1, 2)}
    tokens = run.tokenizer.token_texts(run.tokenizer.encode(text))
    ends = np.cumsum([len(token) for token in tokens])
    bpe = [n for n, end in enumerate(ends) if end > 4 and end - len(tokens[n]) < 7]
    expected = h[pieces.get(kind, bpe)].mean(0)
    assert run.embed(text, word="saw", normalize=False) == pytest.approx(expected.numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word": "dog"}, "word='dog': does not occur in 'Tom had a hat"),
        ({"word": "tom"}, "Did you mean Tom"),
        ({"word": "ha"}, "does not occur"),
        ({"word": ""}, "does not occur"),
        ({"word": "hat", "occurrence": 4}, "'hat' occurs 3 times in"),
        ({"occurrence": 1}, "occurrence=1: has no effect without word"),
        ({"word": 3}, "word=3: must be a string"),
        ({"word": "hat", "pool": "cls"}, "pool='cls': has no effect with word"),
        ({"word": "hat", "overflow": "windows"}, "overflow='windows': has no effect with word"),
    ],
)
def test_a_word_that_does_not_occur_is_refused(bert, options, message):
    with pytest.raises(BadInput, match=message):
        bert[0].embed(TEXT, **options)


# --- pairs ------------------------------------------------------------------------------------------------------------

PAIRS = {
    "transformer": ({"model.layers": 1, "model.heads": 2}, lambda m: m.encoder_norm, lambda out: out),
    "rnn": ({}, lambda m: m.encoder, lambda out: out[0]),
    "rnn-attention": ({}, lambda m: m.encoder, lambda out: out[0]),
    "conv": ({"model.layers": 1}, lambda m: m.encoder_norm, lambda out: out),
    "bert": ({"model.layers": 1, "model.heads": 2, "data.tokenizer": "wordpiece"}, lambda m: m.encoder, lambda o: o),
}


@pytest.mark.parametrize("kind", list(PAIRS))
def test_the_vector_of_a_source_is_the_mean_of_the_encoder_states_of_its_tokens(kind, pair_file, tmp_path):
    settings, module, states = PAIRS[kind]
    run = untrained(pair_file, tmp_path, **{"model.kind": kind, **SMALL, **settings})
    seen = []
    texts = ["Tom saw the cat.", "she ate", "he lost the big old bus."]
    with module(run.model).register_forward_hook(lambda _, inputs, output: seen.append(states(output)[0])):
        for text in texts:
            run.translate(text, beam=1, max_new_tokens=1)
    n_tokens = [len(run.tokenizer.encode_source(text)) - (kind == "bert") for text in texts]
    expected = [h[:n].mean(0).detach().numpy() for h, n in zip(seen, n_tokens, strict=True)]
    assert run.embed(texts, normalize=False) == pytest.approx(np.array(expected), abs=1e-5)
    if kind == "rnn":  # words between detached punctuation, and a pair
        pair = f"{texts[0]}\tTom a vu le chat."
        assert run.embed([pair, *texts[1:]], normalize=False) == pytest.approx(np.array(expected), abs=1e-5)
        assert run.embed(texts[0], word="cat", normalize=False) == pytest.approx(seen[0][3].detach().numpy(), abs=1e-5)
        with pytest.raises(BadInput, match="no stack of blocks"):
            run.embed("a", layer=1)


# --- images, captions, sets, stories ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two folders of images."""
    from PIL import Image

    home, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for n in range(24):
        label = ("dark", "light")[n % 2]
        (home / label).mkdir(exist_ok=True)
        x = rng.integers(0, 100, (8, 8)) + 150 * (n % 2)
        Image.fromarray(x.astype(np.uint8)).save(home / label / f"{n}.png")
    return home


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_the_vector_of_an_image_is_what_the_head_reads(pictures, tmp_path, pool):
    run = untrained(pictures, tmp_path, **{**BLOCKS, "model.pool": pool})
    files = sorted(map(str, pictures.rglob("*.png")))
    vectors = run.embed(files, normalize=False)
    assert_head_reads(run, vectors, files)
    assert run.embed(files[0]) == pytest.approx(vectors[0] / np.linalg.norm(vectors[0]), abs=1e-6)
    assert run.embed(files, layer=2).shape == vectors.shape
    assert not np.allclose(run.embed(files, layer=1), run.embed(files), atol=1e-2)
    if pool == "mean":
        with pytest.raises(BadInput, match="has no CLS token"):
            run.embed(files, pool="cls")
    with pytest.raises(BadInput, match="word='hat': has no effect on vectors of images; options that have one: layer"):
        run.embed(files, word="hat")


def test_the_nearest_images_have_names_and_labels(pictures, tmp_path):
    run = untrained(pictures, tmp_path, **BLOCKS)
    query = str(pictures / "dark/0.png")
    hits = run.corpus(pictures).search(query, 24)
    assert (hits[0]["name"], hits[0]["label"]) == (query, "dark")
    cosines = {name: float(run.embed(name) @ run.embed(query)) for name in map(str, pictures.rglob("*.png"))}
    assert [hit["score"] for hit in hits] == pytest.approx(sorted(cosines.values(), reverse=True), abs=1e-5)
    own = run.corpus().search(query, 1)[0]  # the training data
    assert own["name"].endswith("0.png")


def test_the_images_of_an_array_and_of_the_training_data_are_clustered_with_their_labels(pictures, tmp_path):
    from PIL import Image

    run = untrained(pictures, tmp_path, **BLOCKS)
    files = sorted(pictures.rglob("*.png"))
    labels = np.array([file.parent.name for file in files])
    np.savez(tmp_path / "x.npz", x=np.stack([np.asarray(Image.open(file)) for file in files]), y=labels)
    from_array = harken.cluster(run, tmp_path / "x.npz", k=2)
    from_folder = harken.cluster(run, pictures, k=2)
    assert from_array.points.labels == from_folder.points.labels == labels.tolist()
    assert from_array.points.x == pytest.approx(from_folder.points.x, abs=1e-5)
    own, train = (harken.cluster(run, k=2, split=split).points for split in (None, "train"))
    assert sorted(own.labels) == labels.tolist()
    assert 0 < len(train.x) < len(own.x)
    with pytest.raises(BadInput, match=r"split tset: not in this run, which has train, .*Did you mean test"):
        harken.cluster(run, k=2, split="tset")


def test_the_vector_of_a_captioned_image_is_the_mean_of_its_patches(pictures, tmp_path):
    with (tmp_path / "captions.csv").open("w") as file:
        file.write("image,caption\n")
        file.writelines(f"{name},a {name.parent.name} square\n" for name in sorted(pictures.rglob("*.png")))
    run = untrained(tmp_path / "captions.csv", tmp_path, **BLOCKS)
    seen, image = [], next(pictures.rglob("*.png"))
    with run.model.encoder.register_forward_hook(lambda _, inputs, output: seen.append(output[0])):
        run.caption(image, beam=1, max_new_tokens=1)
    assert run.embed(image, normalize=False) == pytest.approx(seen[0].mean(0).detach().numpy(), abs=1e-5)


def test_the_vector_of_a_set_is_what_the_head_reads(tmp_path):
    rng = np.random.default_rng(0)
    with (tmp_path / "sets.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["set", "x", "y", "label"])
        for n in range(40):
            for x, y in rng.normal(3 * (n % 2), 1, (4 + n % 3, 2)):
                writer.writerow([f"s{n}", x, y, "ab"[n % 2]])
    run = untrained(tmp_path / "sets.csv", tmp_path, **BLOCKS)
    vectors = run.embed(tmp_path / "sets.csv", normalize=False)
    assert vectors.shape == (40, 16)
    assert_head_reads(run, vectors, tmp_path / "sets.csv")
    assert run.embed(f"{tmp_path}/sets.csv[s3]", normalize=False) == pytest.approx(vectors[3], abs=1e-5)
    clustering = harken.cluster(run, k=2)
    assert sorted(clustering.points.labels) == ["a"] * 20 + ["b"] * 20
    assert harken.cluster(run, tmp_path / "sets.csv", k=2).points.labels[:3] == ["a", "b", "a"]
    arrays = [rng.normal(size=(5, 2)) for _ in range(3)]
    assert harken.cluster(run, arrays, k=2).points.names == ["array 1", "array 2", "array 3"]
    with pytest.raises(BadInput, match="pool='mean': has no effect on vectors of sets"):
        run.embed(tmp_path / "sets.csv", pool="mean")


@pytest.fixture(scope="module")
def story_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("stories") / "stories.txt"
    path.write_text("".join(stories(1, 60, seed=0)))
    return path


def test_the_vector_of_a_story_line_is_the_sum_of_its_words_in_a_memory_network(story_file, tmp_path):
    run = untrained(story_file, tmp_path, **{"model.kind": "memnet", "model.words": "bag", **SMALL})
    line = next(line for line in harken.cluster(run, k=2, restarts=1).points.names if len(line.split()) > 3)
    table = run.model.embed.weight[:, :16].detach().numpy()
    expected = sum(table[i + 1] for i in run.tokenizer.encode_line(line))
    assert run.embed(line, normalize=False) == pytest.approx(expected, abs=1e-5)
    assert run.embed(f"{line}\n{line}", normalize=False) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(BadInput, match="no effect on the line vectors of a memory network"):
        run.embed(line, pool="last")


def test_the_vector_of_a_story_line_is_the_mean_of_the_states_of_its_words_in_a_gpt(story_file, tmp_path):
    run = untrained(story_file, tmp_path, **{"model.kind": "gpt", **BLOCKS})
    end, line = run.tokenizer.end_id, "Mary went to the kitchen."
    ids = [end, *run.tokenizer.encode_line(line).tolist(), end]
    with torch.no_grad():
        expected = run.model.body(torch.tensor([ids]))[0].mean(0).numpy()
    assert run.embed(line, normalize=False) == pytest.approx(expected, abs=1e-5)


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def club(tmp_path_factory):
    """Two groups of nodes with few edges between them."""
    home, rng = tmp_path_factory.mktemp("club"), np.random.default_rng(0)
    with (home / "nodes.csv").open("w") as file:
        file.write("name,group\n" + "".join(f"n{n},{'ab'[n // 10]}\n" for n in range(20)))
    edges = {(a, b) for a in range(20) for b in range(a) if rng.random() < (0.5 if a // 10 == b // 10 else 0.05)}
    edges |= {(n, (n + 1) % 20) for n in range(20)}
    with (home / "edges.csv").open("w") as file:
        file.write("source,target\n" + "".join(f"n{a},n{b}\n" for a, b in sorted(edges)))
    return home


def test_the_vector_of_a_node_is_the_hidden_layer_of_a_gcn(club, tmp_path):
    run = untrained(club, tmp_path, **{"model.kind": "gcn", "model.d": 8})
    names = [f"n{n}" for n in range(20)]
    A = np.eye(20)
    for edge in [line.split(",") for line in (club / "edges.csv").read_text().split()[1:]]:
        a, b = (names.index(end) for end in edge)
        A[a, b] = A[b, a] = 1
    d = A.sum(1) ** -0.5
    first = run.model.blocks[0]
    W, b = first.input_projection.W.detach().numpy(), first.b.detach().numpy()
    expected = np.maximum(d[:, None] * A * d @ W + b, 0)  # each node is its own feature
    assert run.embed(names, normalize=False) == pytest.approx(expected, abs=1e-5)
    assert run.corpus().search("n3", 1)[0]["name"] == "n3"
    with pytest.raises(BadInput, match="'n99': not a node of"):
        run.embed("n99")


def test_the_head_of_a_graph_transformer_reads_the_vectors_of_nodes(club, tmp_path):
    run = untrained(club, tmp_path, **{"model.kind": "graph-transformer", **BLOCKS})
    names = ["n3", "n0", "n19"]
    assert_head_reads(run, run.embed(names, normalize=False), names)


def test_the_products_of_the_vectors_of_nodes_are_the_scores_of_edges(club, tmp_path):
    run = untrained(club, tmp_path, **{"data.target_level": "edge", "model.kind": "gcn", "model.d": 8})
    a, b = run.embed(["n3", "n7"], normalize=False)
    (row,) = probabilities([run.classify("n3--n7")], run.labels)
    assert 1 / (1 + np.exp(-a @ b)) == pytest.approx(row[1], abs=1e-5)


def test_the_vector_of_a_graph_is_the_mean_over_its_nodes(tmp_path):
    (tmp_path / "graphs.csv").write_text("graph,label\n" + "".join(f"g{n},{'ab'[n % 2]}\n" for n in range(12)))
    nodes = [(f"g{g}v{n}", f"g{g}", n % 3) for g in range(12) for n in range(3 + g % 4)]
    (tmp_path / "nodes.csv").write_text("node,graph,x\n" + "".join(f"{a},{b},{c}\n" for a, b, c in nodes))
    edges = [(a[0], b[0]) for a, b in pairwise(nodes) if a[1] == b[1]]
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in edges))
    run = untrained(tmp_path, tmp_path, **{"model.kind": "graph-transformer", **BLOCKS})
    names = [f"g{n}" for n in range(12)]
    assert_head_reads(run, run.embed(names, normalize=False), names)
    assert sorted(harken.cluster(run, k=2).points.labels) == ["a"] * 6 + ["b"] * 6
