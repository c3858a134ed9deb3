"""Stacked models train as each model alone."""

import numpy as np
import pytest
import torch

from harken.data.batch import IGNORE, Batch
from harken.data.rng import rng_for
from harken.errors import BadSetting, HarkenError
from harken.models.gpt import GPTSettings
from harken.tasks import BoundTask, Loss, Score
from harken.tasks.next_word import nll
from harken.training.loop import Trainer
from harken.training.settings import Train
from harken.training.stacked_seeds import StackedModels, StackedTask, StackedTrainer

M, STEPS = 3, 6
SHAPE = GPTSettings(d=16, layers=2, heads=2, context=8, dropout=0.0, positions="rotary")


class Counting(BoundTask):
    """Rows that count up from a random number, in an order that depends on the seed; some targets are ignored."""

    steps, splits, tokens_per_batch = 4, ("valid",), 24

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def batch(self, epoch: int, step: int) -> Batch:
        first = rng_for(self.seed, epoch, step).integers(0, 20, (3, 1))
        rows = torch.from_numpy((first + np.arange(9)) % 20)
        targets = rows[:, 1:].clone()
        targets[0, : 1 + self.seed + step] = IGNORE
        return Batch(rows[:, :-1], targets)

    def loss(self, model, batch, start=0):
        return Loss(nll(model, batch)[0])

    def evaluate(self, model, split, *, quick=False):
        batch = Counting(99).batch(0, 0)
        with torch.no_grad():
            return Score({"loss": float(nll(model, batch)[0]) / batch.n_targets}, {})


def single(seed, **fields):
    torch.manual_seed(seed)
    return SHAPE.build(20), Counting(seed), settings(seed=seed, **fields)


def settings(**fields):
    return Train(**{"device": "cpu", "precision": "float32", "compile": "no", "steps": STEPS, **fields})


def stacked_trainer(n_models=M, **fields):
    models = [single(seed)[0] for seed in range(n_models)]
    return StackedTrainer(
        StackedModels(models), StackedTask([Counting(seed) for seed in range(n_models)]), settings(**fields)
    )


def trained(trainer, folder):
    folder.mkdir(exist_ok=True)
    trainer.fit(folder, STEPS)
    trainer.finish()
    return trainer


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's CPU kernel loops over the models
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw", "grad_clip": 0.1, "micro_batch": 2},
        {"optimizer": "sgd", "grad_clip": 1.0, "eval_every": 2},
        {"optimizer": "adamw", "average": "ema", "eval_every": 3},
        {"optimizer": "rmsprop", "grad_clip": 0.0, "keep_best": False},
        {"optimizer": "muon", "grad_clip": 1.0},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_each_stacked_model_ends_with_the_weights_of_a_model_trained_alone(options, tmp_path):
    stacked = trained(stacked_trainer(**options), tmp_path / "many")
    for seed in range(M):
        alone = trained(
            Trainer(*single(seed, **{k: v for k, v in options.items() if k != "micro_batch"})), tmp_path / str(seed)
        )
        weights = dict(stacked.model.member(seed).named_parameters())
        for name, p in alone.model.named_parameters():
            torch.testing.assert_close(weights[name], p, rtol=1e-3, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


def die(event, **facts):
    if event == "step" and facts["step"] == 5:
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_interrupted_stacked_models_resume_bitwise(tmp_path):
    uninterrupted = trained(stacked_trainer(checkpoint_every=2, eval_every=2), tmp_path / "uninterrupted")
    interrupted = stacked_trainer(checkpoint_every=2, eval_every=2)
    interrupted.listen = die
    with pytest.raises(KeyboardInterrupt):
        trained(interrupted, tmp_path / "broken")
    resumed = stacked_trainer(checkpoint_every=2, eval_every=2)
    assert resumed.resume(tmp_path / "broken")["step"] == 4
    trained(resumed, tmp_path / "broken")
    for (name, a), b in zip(uninterrupted.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert [c.step for c in uninterrupted.validation.members] == [c.step for c in resumed.validation.members]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_model_with_a_non_finite_loss_is_skipped_and_the_others_train(tmp_path):
    broken, intact = stacked_trainer(keep_best=False), stacked_trainer(keep_best=False)
    with torch.no_grad():
        broken.model.stacked.embed.weight[1].fill_(torch.nan)
    trained(broken, tmp_path / "broken")
    trained(intact, tmp_path / "intact")
    for (name, a), b in zip(broken.model.named_parameters(), intact.model.parameters(), strict=True):
        torch.testing.assert_close(a[[0, 2]], b[[0, 2]], msg=name)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("micro", [None, 1, 2])
def test_a_non_finite_model_is_reported_counted_and_excluded_from_the_losses(micro, tmp_path):
    broken, notices = stacked_trainer(micro_batch=micro, seed=5, checkpoint_every=1), []
    broken.listen = lambda event, **facts: notices.append(facts["text"]) if event == "notice" else None
    with torch.no_grad():
        broken.model.stacked.embed.weight[1].fill_(torch.nan)
    losses = [trainer.update(STEPS)["loss"] for trainer in (Trainer(*single(0)), Trainer(*single(2)))]
    assert broken.update(STEPS)["loss"] == pytest.approx(sum(losses) / 2, rel=1e-5)
    score = broken.task.evaluate(broken.model, "valid")
    assert score.metrics["loss"] == pytest.approx((score.parts["seed 0"]["loss"] + score.parts["seed 2"]["loss"]) / 2)
    broken.update(STEPS)
    assert [member.skipped for member in broken.validation.members] == [0, 2, 0]
    text = "the loss or the gradient of 1 of 3 seeds is not finite; their updates are skipped: 6"
    assert notices == [f"step 1: {text}"]
    broken.fit(tmp_path, 3)
    resumed = stacked_trainer(seed=5)
    resumed.resume(tmp_path)
    assert resumed.model.n_skipped.tolist() == [0, 3, 0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_early_stopping_of_stacked_models_is_reported_with_its_patience(tmp_path):
    stacked, notices = stacked_trainer(early_stopping_patience=1, eval_every=1, lr=5.0, grad_clip=0.0, warmup=0), []
    stacked.listen = lambda event, **facts: notices.append(facts["text"]) if event == "notice" else None
    stacked.fit(tmp_path, 60)
    reason = "no better validation loss for 1 validation pass; the best weights of each seed are kept"
    assert notices == [f"stopped early at step {stacked.step} of 60: {reason}"]


def test_early_stopping_without_keep_best_is_an_error():
    with pytest.raises(
        BadSetting, match=r"^train\.seeds: a seed that stops early [^\n]+; remove train\.keep_best=false"
    ):
        stacked_trainer(early_stopping_patience=1, keep_best=False)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_no_finite_model_is_an_error():
    broken = stacked_trainer(1)
    with torch.no_grad():
        broken.model.stacked.embed.weight.fill_(torch.nan)
    with pytest.raises(HarkenError, match="is not finite"):
        broken.update(STEPS)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_each_model_keeps_the_weights_of_its_best_validation_pass(tmp_path):
    stacked = trained(stacked_trainer(eval_every=1, lr=0.5, grad_clip=0.0, warmup=0), tmp_path / "many")
    best = [member.step for member in stacked.validation.members]
    assert len(set(best)) > 1  # at this learning rate the best steps differ
    for seed, step in enumerate(best):
        assert step in range(1, STEPS + 1)
        loss = Counting(seed).evaluate(stacked.model.member(seed), "valid").metrics["loss"]
        assert loss == pytest.approx(stacked.validation.members[seed].best, rel=1e-4)


def test_tied_weights_stay_tied():
    torch.manual_seed(0)
    models = [GPTSettings(d=16, layers=1, heads=2, context=8, tie_embeddings=True).build(20) for _ in range(2)]
    stacked = StackedModels(models)
    assert stacked.stacked.head.weight is stacked.stacked.embed.weight
    assert sum(p.numel() for p in stacked.parameters()) == 2 * sum(p.numel() for p in models[0].parameters())


def test_a_plateau_schedule_is_an_error():
    with pytest.raises(BadSetting, match=r"^train\.seeds: plateau has one learning rate for all seeds"):
        stacked_trainer(schedule="plateau")


def test_in_bfloat16_every_model_uses_its_own_weights():
    models = [GPTSettings(d=16, layers=1, heads=2, context=8).build(11) for _ in range(3)]
    tokens = torch.arange(8)[None]
    expected = []
    for model in models:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            expected.append(model(tokens))
    stacked = StackedModels(models)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for n, y in enumerate(expected):
            torch.testing.assert_close(stacked.member(n)(tokens), y)
