"""Transfer: architecture, tokenizer and weights of another run; frozen weights do not change."""

import hashlib
import shutil

import pytest
import torch

import harken
from harken import recipe as recipes
from harken.errors import BadInput, BadRun, BadSetting
from harken.experiments import transfer
from harken.experiments.choose import choose
from harken.experiments.train import prepare
from harken.models.heads import BERTHeadSettings, GPTHeadSettings, RNNHeadSettings
from harken.settings import LabelOutputs
from harken.training.optimizers import build_optimizer, depth_from_output
from harken.training.settings import Train


def ignore(*_, **__) -> None:
    pass


def test_a_run_started_from_another_has_its_architecture_tokenizer_and_weights(tales, folders):
    first = harken.load(folders["char"])
    recipe = choose(str(tales), {"from": str(folders["char"]), "train.steps": 1}).recipe
    dataset, trainer = prepare(recipe, ignore)
    assert recipe.model == first.recipe.model
    assert dataset.tokenizer.vocab == first.tokenizer.vocab
    for parameter, expected in zip(trainer.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(parameter.cpu(), expected.cpu())


def test_from_scratch_it_has_only_the_architecture_and_the_tokenizer(tales, folders):
    settings = {"from": str(folders["char"]), "transfer": "scratch", "train.steps": 1}
    _, trainer = prepare(choose(str(tales), settings).recipe, ignore)
    first = harken.load(folders["char"])
    assert not torch.equal(trainer.model.embed.weight.cpu(), first.model.embed.weight.cpu())


def test_the_starting_run_is_stored_in_the_recipe(tales, folders, tmp_path):
    run = harken.train(str(tales), out=tmp_path / "next", settings={"from": str(folders["char"]), "train.steps": 2})
    stored = recipes.read(run.path / "recipe.toml")
    assert stored["from"] == str(folders["char"])
    weights = hashlib.sha256((folders["char"] / "model.safetensors").read_bytes()).hexdigest()
    assert recipes.resolve(("it", stored)).start == recipes.InitialWeights(str(folders["char"]), "finetune", weights)
    expected = recipes.resolve(("it", stored), ("override", {"from": str(folders["word"])}))
    assert expected.start == recipes.InitialWeights(
        str(folders["word"]), "finetune"
    )  # the checksum of the other run is dropped


def test_a_recipe_file_inherits_from_a_run_relative_to_its_folder(tales, folders, tmp_path):
    settings = harken.load(folders["char"]).recipe.model
    (tmp_path / "first").symlink_to(folders["char"])
    file = tmp_path / "my.toml"
    file.write_text(f'from = "first"\n[data]\npath = "{tales}"\n[model]\ndropout = 0.25\n[train]\nsteps = 1\n')
    recipe = choose(str(file)).recipe
    assert recipe.start.run == str(tmp_path / "first")
    assert recipe.model == settings.model_copy(update={"dropout": 0.25})
    prepare(recipe, ignore)  # the weights fit


def test_a_shipped_recipe_inherits_from_a_run(tales, folders):
    recipe = choose("char", {"data.path": str(tales), "from": str(folders["char"])}).recipe
    assert recipe.model == harken.load(folders["char"]).recipe.model


def test_the_starting_run_is_stored_as_an_absolute_path(tales, folders, tmp_path, monkeypatch):
    monkeypatch.chdir(folders["char"].parent)
    run = harken.train(str(tales), out=tmp_path / "next", settings={"from": folders["char"].name, "train.steps": 2})
    assert recipes.read(run.path / "recipe.toml")["from"] == str(folders["char"])


def test_the_learning_rate_for_labels_depends_on_the_transfer(folders, tmp_path):
    (tmp_path / "my.csv").write_text("text,label\n" + "a good day,yes\na bad day,no\n" * 30)
    overrides = {"from": str(folders["char"])}

    def rate(**extra):
        return choose(str(tmp_path / "my.csv"), overrides | extra).recipe.train.lr

    d = harken.load(folders["char"]).recipe.model.d
    assert rate() == rate(transfer="finetune") == pytest.approx(0.12 / d, rel=1e-2)
    assert rate(transfer="scratch") == pytest.approx(0.1 / d, rel=1e-2)
    assert rate(transfer="frozen") == pytest.approx(4 / d, rel=1e-2)
    assert rate(**{"train.lr": 0.5}) == 0.5


def test_continued_training_on_text_uses_the_rate_of_its_recipe(tales, folders):
    continued, alone = (
        choose(str(tales), {"data.tokenizer": "char", **extra}).recipe for extra in ({"from": str(folders["char"])}, {})
    )
    assert continued.train.lr == alone.train.lr


@pytest.mark.parametrize(
    ("settings", "error", "overrides"),
    [
        ({"transfer": "frozen"}, BadSetting, "needs a run; set from="),
        ({"from": "GPT", "transfer": "thaw"}, BadSetting, "accepted: finetune, frozen, scratch"),
        ({"from": "GPT", "transfer": "frozen"}, BadSetting, "no separate head"),
        ({"from": "GPT", "model.kind": "lstm"}, BadSetting, "is a gpt"),
        ({"from": "nowhere"}, (BadInput, BadRun), "nowhere"),
        ({"from": 3}, (BadSetting, BadInput, BadRun), "3"),
    ],
)
def test_an_invalid_starting_run_is_refused(tales, folders, settings, error, overrides):
    resolved_settings = {k: str(folders["char"]) if v == "GPT" else v for k, v in settings.items()}
    with pytest.raises(error, match=overrides):
        prepare(choose(str(tales), resolved_settings).recipe, ignore)


def test_settings_that_do_not_fit_the_weights_are_refused_unless_from_scratch(tales, folders):
    settings = harken.load(folders["char"]).recipe.model
    overrides = {"from": str(folders["char"]), "model.heads": 2 * settings.heads}
    with pytest.raises(
        BadSetting, match=rf"model.heads = {2 * settings.heads}: .* has {settings.heads}, .*transfer=scratch"
    ):
        prepare(choose(str(tales), overrides).recipe, ignore)
    prepare(choose(str(tales), overrides | {"transfer": "scratch"}).recipe, ignore)
    prepare(choose(str(tales), {"from": str(folders["char"]), "model.dropout": 0.3}).recipe, ignore)


def test_a_repeated_run_refuses_changed_starting_weights(tales, folders, tmp_path):
    source = shutil.copytree(folders["char"], tmp_path / "source")
    run = harken.train(str(tales), out=tmp_path / "next", settings={"from": str(source), "train.steps": 1})
    shutil.rmtree(source)
    harken.train(str(tales), out=source, settings={"from": str(folders["char"]), "train.steps": 1, "train.lr": 0.1})
    with pytest.raises(BadInput, match="not the weights that this recipe started from"):
        harken.train(str(run.path / "recipe.toml"), out=tmp_path / "again")


def test_a_run_resumes_without_its_starting_run(tales, folders, tmp_path):
    source = shutil.copytree(folders["char"], tmp_path / "source")

    def stop(kind, **_):
        if kind == "checkpoint":
            raise KeyboardInterrupt

    overrides = {"from": str(source), "train.steps": 4, "train.checkpoint_every": 2, "train.threads": 1}
    complete = harken.train(str(tales), out=tmp_path / "whole", settings=overrides)
    with pytest.raises(KeyboardInterrupt):
        harken.train(str(tales), out=tmp_path / "next", settings=overrides, listen=stop)
    shutil.rmtree(source)
    run = harken.train(tmp_path / "next", resume=True)
    for parameter, expected in zip(run.model.parameters(), complete.model.parameters(), strict=True):
        assert torch.equal(parameter, expected)


TABLES = {
    "two texts": ("text,other,label", lambda n: f"red {n},{'blue' if n % 2 else 'warm'} day,{n % 2}"),
    "a number": ("text,score", lambda n: f"red {n} blue,{1000 + n / 7}"),
    "fewer labels": ("text,label", lambda n: f"red {n} day,{n % 2}"),
    "one label": ("text,label", lambda n: f"red {n} day,{'xy'[n % 2]}"),
}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Runs with one of three labels per text, and with several."""
    home, run = tmp_path_factory.mktemp("labelled"), {}
    small = {"model.d": 16, "model.layers": 1, "model.heads": 2, "data.vocab_size": 300, "train.steps": 1}
    for name, label in (("three", lambda n: str(n % 3)), ("multilabel", lambda n: "xy"[n % 2] + "|x" * (n % 3 > 0))):
        file = home / f"{name}.csv"
        file.write_text("text,label\n" + "".join(f"red blue warm day {n},{label(n)}\n" for n in range(60)))
        extra = {"data.separator": "|"} if name == "multilabel" else {}
        run[name] = harken.train(str(file), out=home / name, settings={**small, **extra}).path
    return run


@pytest.mark.parametrize("source", ["three", "multilabel"])
@pytest.mark.parametrize("table", TABLES)
def test_the_labels_are_those_of_the_data(labelled, tmp_path, table, source):
    header, line = TABLES[table]
    file = tmp_path / "my.csv"
    file.write_text("\n".join([header, *map(line, range(80))]) + "\n")
    names = header.split(",")
    table_settings = {"data.kind": "table", "data.text": names[:-1], "data.label": names[-1]}
    alone, _ = prepare(choose(str(file), table_settings).recipe, ignore)
    continued, trainer = prepare(choose(str(file), {**table_settings, "from": str(labelled[source])}).recipe, ignore)
    for name in ("labels", "target_type", "n_texts", "mean", "std"):
        assert getattr(continued.processor, name) == getattr(alone.processor, name)
    assert continued.processor.tokenizer.files() == harken.load(labelled[source]).tokenizer.tokenizer.files()
    assert trainer.model.W_y.out_features == len(alone.processor.labels)


def head_model():
    return BERTHeadSettings(d=16, layers=3, heads=2, dropout=0.0).build(LabelOutputs(50, 4))


def test_a_frozen_body_is_trained_only_in_its_last_blocks(tmp_path, folders):
    model, body = head_model(), BERTHeadSettings(d=16, layers=3, heads=2, dropout=0.0).build(LabelOutputs(50, 4)).body
    folder = tmp_path / "body"
    folder.mkdir()
    from harken import run_folder

    run_folder.write_tensors(folder / "model.safetensors", run_folder.weights(body))
    recipe = recipes.resolve(("x", {"train.unfreeze_last": 1}))
    recipe = recipes.replace(recipe, start=recipes.InitialWeights(str(folder), "frozen"))
    transfer.init_from_run(model, recipe)
    assert torch.equal(model.body.embed.weight, body.embed.weight)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(name.startswith(("W_y.", "body.pooler", "body.stack.blocks.2.")) for name in trained)
    assert {"W_y.weight", "body.pooler.weight", "body.stack.blocks.2.mlp.W_1.weight"} <= trained


def test_the_layers_after_the_last_block_are_trained_with_it():
    model = GPTHeadSettings(d=16, layers=2, heads=2).build(LabelOutputs(50, 4))
    transfer._unfreeze(model.body.requires_grad_(False), 1)
    assert model.body.norm.weight.requires_grad
    assert not model.body.stack.blocks[0].mlp.W_1.weight.requires_grad


@pytest.mark.parametrize(("n_blocks", "transfer_kind"), [(1, "finetune"), (2, "frozen"), (1, "frozen")])
def test_unfreezing_needs_frozen_blocks(n_blocks, transfer_kind):
    recipe = recipes.resolve(("x", {"train.unfreeze_last": n_blocks}))
    recipe = recipes.replace(recipe, start=recipes.InitialWeights("gone", transfer_kind))
    model = RNNHeadSettings(d=16).build(LabelOutputs(50, 4))
    with pytest.raises(BadSetting, match=r"train\.unfreeze_last"):
        transfer.init_from_run(model, recipe, weights=False)


def test_the_learning_rate_decays_per_layer():
    model = head_model()
    optimizer = build_optimizer(model, Train(layer_decay=0.5))
    scale = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    names = dict(model.named_parameters())
    assert scale[id(names["W_y.weight"])] == 1
    assert [scale[id(names[f"body.stack.blocks.{n}.mlp.W_1.weight"])] for n in (2, 1, 0)] == [0.5, 0.25, 0.125]
    assert scale[id(names["body.embed.weight"])] == scale[id(names["body.segments.weight"])] == 0.0625
    assert set(depth_from_output(model)) == {id(p) for p in model.parameters()}


def test_layers_with_the_same_rate_share_a_parameter_group():
    assert len(build_optimizer(head_model(), Train()).param_groups) == 2


# --- the encoder of another task --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert(tmp_path_factory, tales):
    """A tiny BERT with WordPiece."""
    small = {"model.kind": "bert", "model.d": 16, "model.layers": 1, "model.heads": 2, "train.steps": 1}
    small |= {"data.tokenizer": "wordpiece", "data.vocab_size": 200, "data.lowercase": True}
    return harken.train(str(tales), out=tmp_path_factory.mktemp("bert") / "bert", settings=small).path


SHORT = {"train.steps": 2, "train.batch": 8, "model.decoder_layers": 1, "data.vocab_size": 260, "task.eval_pairs": 4}


def test_a_run_without_the_head_of_next_sentences_gets_a_new_one(tales, tmp_path):
    encoder = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.nsp_head": False, "task.objective": "mlm"}
    settings = {"model.kind": "bert", **encoder, "train.steps": 1}
    first = harken.train(str(tales), out=tmp_path / "encoder", settings=settings)
    overrides = {"from": str(first.path), "model.nsp_head": True, "task.objective": "nsp"}
    _, trainer = prepare(choose(str(tales), overrides).recipe, ignore)
    weights, expected = trainer.model.state_dict(), first.model.state_dict()
    assert weights.keys() - expected.keys() == {"nsp_head.weight", "nsp_head.bias"}
    assert all(torch.equal(weights[name].cpu(), tensor.cpu()) for name, tensor in expected.items())
    with pytest.raises(BadSetting, match=r"model.mlm_head = False: from=.* has True"):  # a head is not dropped
        prepare(choose(str(tales), overrides | {"model.mlm_head": False}).recipe, ignore)


def test_a_bert_becomes_the_encoder_of_a_model_for_pairs(bert, pair_file, tmp_path):
    dataset, trainer = prepare(choose(str(pair_file), {**SHORT, "from": str(bert)}).recipe, ignore)
    first = harken.load(bert)
    assert torch.equal(trainer.model.encoder.embed.weight, first.model.embed.weight)
    assert torch.equal(trainer.model.encoder.stack.blocks[0].mlp.W_1.weight, first.model.stack.blocks[0].mlp.W_1.weight)
    source, target = dataset.tokenizer.sides
    assert source.json == first.tokenizer.json
    assert (source.kind, target.kind) == ("wordpiece", "bpe")
    ids = dataset.tokenizer.encode_source("Tom saw the bus.").tolist()
    assert (ids[0], ids[-2], ids[-1]) == (source.cls_id, source.sep_id, source.vocab)
    assert dataset.train.source[0].tolist()[:1] == [source.cls_id]
    run = harken.train(str(pair_file), out=tmp_path / "pairs", settings={**SHORT, "from": str(bert)})
    assert harken.load(run.path).translate("Tom saw the bus.") == run.translate("Tom saw the bus.")
    continued = prepare(choose(str(pair_file), {"from": str(run.path), "train.steps": 1}).recipe, ignore)[1].model
    for ours, expected in zip(continued.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(ours, expected)
    (table := tmp_path / "my.csv").write_text("text,label\n" + "a good day,yes\na bad day,no\n" * 30)
    dataset, trainer = prepare(choose(str(table), {"from": str(run.path)}).recipe, ignore)
    assert dataset.processor.tokenizer.json == source.json
    assert torch.equal(trainer.model.body.embed.weight, run.model.encoder.embed.weight)


def test_a_target_with_the_tokenizer_of_the_source_shares_its_embeddings(bert, pair_file):
    settings = {**SHORT, "from": str(bert), "data.target_tokenizer": "wordpiece"}
    dataset, trainer = prepare(choose(str(pair_file), settings).recipe, ignore)
    assert dataset.tokenizer.source is dataset.tokenizer.target
    n = len(harken.load(bert).model.embed.weight)
    assert torch.equal(trainer.model.embed.weight[:n], harken.load(bert).model.embed.weight)
    frozen = choose(str(pair_file), settings | {"transfer": "frozen"}).recipe
    assert not frozen.model.share_embeddings
    with pytest.raises(BadSetting, match=r"share_embeddings=true: .* frozen with the encoder; set"):
        prepare(frozen.change(model__share_embeddings=True), ignore)


@pytest.mark.parametrize("transfer_kind", ["finetune", "frozen", "scratch"])
def test_the_encoder_learns_slowly_not_at_all_or_like_the_decoder(bert, pair_file, transfer_kind):
    recipe = choose(str(pair_file), {**SHORT, "from": str(bert), "transfer": transfer_kind}).recipe
    _, trainer = prepare(recipe, ignore)
    optimizer = build_optimizer(trainer.model, recipe.train)
    scale = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    scales = {scale.get(id(p), 0) for p in trainer.model.encoder.parameters()}
    assert scales == {{"finetune": 0.1, "frozen": 0, "scratch": 1}[transfer_kind]}
    assert {scale[id(p)] for p in trainer.model.stack.parameters()} == {1}


def test_a_language_model_that_fits_no_part_of_a_model_for_pairs_is_refused(folders, pair_file):
    for name, kind in (("char", "gpt"), ("lstm", "lstm")):
        with pytest.raises(
            BadSetting, match=f"a {kind} for text has no part that fits a model for pairs; use a run of"
        ):
            choose(str(pair_file), {"from": str(folders[name])})


def test_another_model_than_that_of_the_starting_run_is_refused(bert, pair_file):
    with pytest.raises(BadSetting, match=r"model.kind = 'transformer': from=.* is a bert; remove one"):
        choose(str(pair_file), {"from": str(bert), "model.kind": "transformer"})
