"""Copying as a user sees it: chosen with a reason, unseen words, resume, scores, the attention map, refusals."""

import random
from contextlib import suppress
from typing import Any

import pytest
import torch

import harken
from harken.bridge.export import export
from harken.bridge.onnx import _build_graph
from harken.data.tokenizers.pairs import PairTokenizers
from harken.errors import BadInput, BadSetting
from harken.experiments.choose import choose
from harken.experiments.report.attention_map import source_attention
from harken.experiments.transfer import inherited_processor
from harken.files import sha256_of

SMALL = {"data.tokenizer": "word", "model.d": 32, "model.layers": 1, "model.heads": 2, "model.d_ff": 64}
SMALL |= {"train.batch": 32, "train.threads": 1, "train.device": "cpu", "train.lr": 0.02, "task.label_smoothing": 0.0}
SMALL |= {"task.metric": "exact_match", "task.beam": 2, "task.eval_pairs": 40, "report.samples": 1}


def rows(rng: random.Random, letters: str, count: int) -> str:
    """Introductions of people with invented names, and the answer to one of two questions."""
    lines = []
    for _ in range(count):
        name, town = ("".join(rng.choices(letters, k=4)) for _ in range(2))
        question, answer = rng.choice([("who ?", f"it is {name}"), ("where ?", f"in {town}")])
        lines.append(f"{name} lives in {town} . {question}\t{answer}\n")
    return "source\ttarget\n" + "".join(lines)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("people"), random.Random(0)
    for split, letters, count in (("train", "abcdefgh", 2000), ("valid", "stuvwxyz", 60), ("test", "stuvwxyz", 60)):
        (folder / f"{split}.tsv").write_text(rows(rng, letters, count))
    return folder


@pytest.fixture(scope="module")
def run(people, tmp_path_factory):
    return harken.train(people, out=tmp_path_factory.mktemp("run") / "people", settings={**SMALL, "train.steps": 100})


def test_copying_is_chosen_with_its_reason_where_targets_copy(people):
    notices = list[str]()
    recipe = choose(
        str(people), {"data.tokenizer": "word"}, listen=lambda event, **f: notices.append(str(f.get("text")))
    ).recipe
    assert (recipe.model.copy, recipe.data.unknown_words) == (True, 64)
    assert recipe.origins["model.copy"].endswith("of the target words are copied")
    assert "% of the target words are in the source" in " ".join(notices)
    assert (plain := choose(str(people), {}).recipe).data.tokenizer == "word"
    assert (plain.model.copy, plain.data.unknown_words) == (True, 64)
    assert choose(str(people), {"data.tokenizer": "bpe"}).recipe.data.unknown_words == 0
    for other in ({"model.copy": False}, {"model.kind": "conv"}, {"data.target_tokenizer": "char"}):
        chosen = choose(str(people), {"data.tokenizer": "word", **other}).recipe
        assert not dict(chosen.model).get("copy")
        assert chosen.data.unknown_words == 0


def test_a_recipe_that_copies_has_unknown_words_wherever_it_comes_from(people, tmp_path):
    file, words = tmp_path / "my.toml", {"data.path": str(people), "data.tokenizer": "word"}
    file.write_text(f"[data]\nkind = 'pairs'\npath = '{people}'\ntokenizer = 'word'\n[model]\ncopy = true\n")
    assert choose(str(file)).recipe.data.unknown_words == 64
    assert choose(str(file), {"data.unknown_words": 3}).recipe.data.unknown_words == 3
    assert choose(str(file), {"model.copy": False}).recipe.data.unknown_words == 0
    assert choose("translate", {**words, "model.copy": True}).recipe.data.unknown_words == 64
    assert choose("translate", words).recipe.data.unknown_words == 0
    assert choose(None, {"data.kind": "pairs", **words, "model.copy": True}).recipe.data.unknown_words == 64


def test_copying_is_not_chosen_for_translations(tmp_path):
    from harken.data.synthetic.phrases import phrases

    (tmp_path / "p.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in phrases(400)))
    assert choose(str(tmp_path / "p.tsv"), {}).recipe.model.copy is False


def test_a_trained_model_copies_words_that_the_vocabulary_does_not_have(run):
    assert run.metrics["test"]["exact_match"] > 0.9
    assert run.translate("zyxw lives in Paris . who ?") == "it is zyxw"
    assert run.translate("zyxw lives in Paris . where ?", beam=1) == "in Paris"
    assert run.translate("zyxw lives in Paris . where ?", prefix="in Paris") == "in Paris"
    assert run.unknown_words("zyxw lives in Paris . where ?") == []
    assert run.facts["audit"]["passed"]
    with pytest.raises(BadInput, match=r"prefix='Rome'.*use words of the source"):
        run.translate("zyxw lives in Paris .", prefix="Rome")


def test_a_prefix_has_the_words_of_its_source_that_fit_into_the_context(run, monkeypatch):
    text = "zyxw lives in vuts . where ?"
    assert run.translate(text, prefix="in vuts") == "in vuts"
    monkeypatch.setattr(run.model, "context", 4)  # zyxw lives in, and the edge token
    with pytest.warns(match="truncated"):
        assert run.translate(text, prefix="zyxw").startswith("zyxw")
    with (
        pytest.warns(match="truncated"),
        pytest.raises(BadInput, match=r"'vuts' is not in this run's vocabulary; .*fits"),
    ):
        run.translate(text, prefix="in vuts")


def test_the_score_of_a_target_is_the_sum_of_the_log_probabilities_of_its_words(run):
    text = "zyxw lives in Paris . who ?"
    (targets,) = run.alternatives([text], alternatives=2, length_penalty=0.0)
    words = run.tokenizer.temporary_words(text)
    source = torch.from_numpy(run.tokenizer.encode_source(text))[None]
    for target in targets:
        ids = run.tokenizer.encode_target(target["text"], words).tolist()
        logs = run.model.scores(torch.tensor([[run.model.edge, *ids]]), source=source)[0]
        total = sum(float(logs[n, token].detach()) for n, token in enumerate([*ids, run.model.edge]))
        assert target["score"] == pytest.approx(total, abs=1e-4)


def test_the_pointer_attends_to_the_copied_word(run):
    text = "zyxw lives in Paris . who ?"
    trace = run.trace(text)
    weights = trace.attention("pointer", layer=0, head=0)
    assert trace.tokens == ["it", "is", "zyxw", "<edge>"]
    assert trace.source[:4] == ["zyxw", "lives", "in", "Paris"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))
    assert int(weights[2].argmax()) == 0
    assert {*source_attention(run, text)} == {"cross", "pointer"}
    assert "pointer attention of" in (run.path / "report.html").read_text()


def test_the_sources_of_a_run_that_copies_have_their_words(run, people):
    sources = {line.split("\t")[0] for line in (people / "valid.tsv").read_text().splitlines()[1:]}
    assert {*harken.cluster(run, k=2, split="valid").points.names} == sources


def test_int8_weights_copy_the_same_words(run):
    quantized = harken.load(run.path, precision="int8")
    assert quantized.translate("zyxw lives in Paris . where ?") == "in Paris"


def test_exports_refuse_a_model_that_copies_in_one_line(run, tmp_path):
    with pytest.raises(BadInput, match=r"model.copy=true: a model that copies has no counterpart in transformers"):
        export(run, tmp_path / "hf")
    with pytest.raises(BadInput, match=r"model.copy=true has no ONNX export; train with model.copy=false"):
        _build_graph(run)


def test_packed_rows_copy_unknown_words_as_single_rows_do(people):
    """Rows of several pairs, whose temporary ids have the same numbers, against each pair alone."""
    settings = {**SMALL, "task.packed": True, "data.examples": 100, "train.batch": 4}
    recipe = choose(str(people), settings).recipe
    task = recipe.bind(recipe.load_data())
    torch.manual_seed(0)
    model, batch, total = recipe.build(task.data.processor.vocab).double(), task.batches.batch(0, 0), 0.0
    edge, n_temporary = model.edge, 0
    for source, target in zip(split_rows(batch.source, edge), split_rows(batch.targets, edge), strict=True):
        tokens = torch.tensor([[edge, *target[:-1]]])
        logs = model.scores(tokens, source=torch.tensor([source])).log_softmax(-1)[0]
        total -= sum(float(logs[n, token].detach()) for n, token in enumerate(target))
        n_temporary += any(task.data.processor.source.vocab <= token < edge for token in target)
    assert recipe.data.unknown_words == 64
    assert n_temporary > 5
    assert float(task.loss(model, batch).total.detach()) == pytest.approx(total, rel=1e-6)


def split_rows(rows: torch.Tensor, edge: int) -> list[list[int]]:
    """The pairs of packed rows: each ends with the edge token; padding has none before it."""
    pairs = [list[int]()]
    for token in (int(token) for row in rows for token in row if token >= 0):
        pairs[-1].append(token)
        pairs += [[]] * (token == edge)
    return [list(pair) for pair in pairs if len(pair) > 1]


class Died(Exception):
    """Simulates a killed process."""


@pytest.mark.parametrize("kind", ["transformer", "rnn-attention"])
def test_an_interrupted_training_resumes_bitwise(people, tmp_path, kind):
    sizes = {} if kind == "transformer" else {"model.kind": kind}
    kept = {k: v for k, v in SMALL.items() if kind == "transformer" or k not in ("model.heads", "model.d_ff")}
    settings = {**kept, **sizes, "train.steps": 6, "train.checkpoint_every": 2, "task.eval_pairs": 4}

    def die(event: str, **facts: Any) -> None:
        if event == "step" and facts["step"] == 5:
            raise Died

    harken.train(people, out=tmp_path / "complete", settings=settings)
    with suppress(Died):
        harken.train(people, out=tmp_path / "broken", settings=settings, listen=die)
    harken.train(tmp_path / "broken", resume=True)
    checksums = [sha256_of(tmp_path / name / "model.safetensors") for name in ("complete", "broken")]
    assert checksums[0] == checksums[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"model.copy": True, "data.shared_vocab": False, "model.share_embeddings": False},
            "model.copy=true: a word .*set data.shared_vocab=true",
        ),
        ({"model.copy": False, "data.unknown_words": 4}, "data.unknown_words=4: only a model that copies"),
        ({"data.unknown_words": 4, "task.grammar": "trees"}, "data.unknown_words=4: .* or task.grammar=none"),
    ],
)
def test_settings_that_do_not_fit_to_copying_are_refused(people, tmp_path, settings, message):
    with pytest.raises(BadSetting, match=message):
        harken.train(people, out=tmp_path / "run", settings={**SMALL, **settings})


def test_a_model_that_cannot_copy_is_refused_with_those_that_can(people):
    with pytest.raises(BadSetting, match=r"model.copy is not a setting of conv; models with it: .*rnn-attention, .*"):
        choose(str(people), {"model.kind": "conv", "model.copy": True})


def test_several_runs_to_start_from_are_a_comparison(people):
    with pytest.raises(BadSetting, match=r"from=runs/a,runs/b: .*: harken compare DATA from=runs/a,runs/b$"):
        choose(str(people), {"from": "runs/a,runs/b"})


def test_a_schema_that_sqlite_refuses_is_found_before_the_training(tmp_path):
    lines = [f"table city (name, size): how many with size {n} ?\tselect count(*) from city\n" for n in range(60)]
    file, steps = tmp_path / "sql.tsv", list[str]()
    settings = {**SMALL, "task.metric": "execution", "train.steps": 1}
    for problem, bad in (
        ("has no schema", "how many ?"),
        ("has no table in sqlite: duplicate", "table a (x, X): all ?"),
    ):
        (tmp_path / "valid.tsv").write_text(f"{bad}\tselect count(*) from a\n")
        file.write_text("".join(lines))
        held_out = {"data.valid": str(tmp_path / "valid.tsv"), "data.test": 0.0}
        with pytest.raises(BadInput, match=f"task.metric=execution: .*{problem}"):
            harken.train(
                file, out=tmp_path / "run", settings=settings | held_out, listen=lambda e, **_: steps.append(e)
            )
    assert "step" not in steps


def test_a_run_with_unknown_words_gives_their_number_to_the_next_training(run, people):
    start = {"from": str(run.path)}
    assert choose(str(people), start).recipe.data.unknown_words == 64
    for number, other in ((64, {}), (8, {"transfer": "scratch", "data.unknown_words": 8})):
        recipe = choose(str(people), {**start, **other}).recipe
        assert recipe.data.unknown_words == number
        processor = inherited_processor(recipe)
        assert isinstance(processor, PairTokenizers)
        assert processor.n_temporary == number
    with pytest.raises(BadSetting, match=r"data.unknown_words = 8: .* has 64, and its weights fit only that"):
        inherited_processor(choose(str(people), {**start, "data.unknown_words": 8}).recipe)
