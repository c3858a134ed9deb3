"""Models trained together are the models trained alone."""

import numpy as np
import pytest
import torch

from harken.data.batch import IGNORE, Batch, dice
from harken.errors import BadSetting, HarkenError
from harken.models.gpt import Shape
from harken.tasks import Loss, Score
from harken.tasks.next_word import nll
from harken.training.loop import Trainer
from harken.training.settings import Train
from harken.training.stacked_seeds import ManyTrainer, Several, Together

M, STEPS = 3, 6
SHAPE = Shape(d=16, layers=2, heads=2, context=8, dropout=0.0, positions="rotary")


class Counting:
    """Rows that count up from a drawn number, in an order of the seed's own; some answers are not asked."""

    steps, splits, tokens = 4, ("valid",), 24

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def batch(self, epoch: int, step: int) -> Batch:
        first = dice(self.seed, epoch, step).integers(0, 20, (3, 1))
        rows = torch.from_numpy((first + np.arange(9)) % 20)
        targets = rows[:, 1:].clone()
        targets[0, : 1 + self.seed + step] = IGNORE
        return Batch(rows[:, :-1], targets)

    def loss(self, model, batch, start=0):
        return Loss(nll(model, batch)[0])

    def evaluate(self, model, split, *, quick=False):
        batch = Counting(99).batch(0, 0)
        with torch.no_grad():
            return Score({"loss": float(nll(model, batch)[0]) / batch.count}, {})

    def baselines(self, split):
        return {}

    def state(self):
        return {}

    def load_state(self, state): ...


def alone(seed, **fields):
    torch.manual_seed(seed)
    return SHAPE.build(20), Counting(seed), settings(seed=seed, **fields)


def settings(**fields):
    return Train(**{"device": "cpu", "precision": "float32", "compile": "no", "steps": STEPS, **fields})


def together(many=M, **fields):
    models = [alone(seed)[0] for seed in range(many)]
    return ManyTrainer(Together(models), Several([Counting(seed) for seed in range(many)]), settings(**fields))


def trained(trainer, folder):
    folder.mkdir(exist_ok=True)
    trainer.fit(folder, STEPS)
    trainer.finish()
    return trainer


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's CPU kernel loops over the models
@pytest.mark.parametrize(
    "rule",
    [
        {"optimizer": "adamw", "clip": 0.1, "micro": 2},
        {"optimizer": "sgd", "clip": 1.0, "eval_every": 2},
        {"optimizer": "adamw", "average": "ema", "eval_every": 3},
        {"optimizer": "rmsprop", "clip": 0.0, "best": False},
        {"optimizer": "muon", "clip": 1.0},
    ],
    ids=lambda rule: "-".join(map(str, rule.values())),
)
def test_each_member_ends_with_the_weights_it_has_when_it_is_trained_alone(rule, tmp_path):
    many = trained(together(**rule), tmp_path / "many")
    for seed in range(M):
        one = trained(Trainer(*alone(seed, **{k: v for k, v in rule.items() if k != "micro"})), tmp_path / str(seed))
        mine = dict(many.model.alone(seed).named_parameters())
        for name, p in one.model.named_parameters():
            torch.testing.assert_close(mine[name], p, rtol=1e-3, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


def die(event, **facts):
    if event == "step" and facts["step"] == 5:
        raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_members_that_were_stopped_go_on_to_the_same_bits(tmp_path):
    whole = trained(together(checkpoint_every=2, eval_every=2), tmp_path / "whole")
    begun = together(checkpoint_every=2, eval_every=2)
    begun.listen = die
    with pytest.raises(KeyboardInterrupt):
        trained(begun, tmp_path / "broken")
    later = together(checkpoint_every=2, eval_every=2)
    assert later.resume(tmp_path / "broken")["step"] == 4
    trained(later, tmp_path / "broken")
    for (name, a), b in zip(whole.model.named_parameters(), later.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert [c.step for c in whole.course.each] == [c.step for c in later.course.each]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_member_whose_loss_is_not_finite_stands_still_and_the_others_go_on(tmp_path):
    broken, sound = together(keep_best=False), together(keep_best=False)
    with torch.no_grad():
        broken.model.one.embed.weight[1].fill_(torch.nan)
    trained(broken, tmp_path / "broken")
    trained(sound, tmp_path / "sound")
    for (name, a), b in zip(broken.model.named_parameters(), sound.model.parameters(), strict=True):
        torch.testing.assert_close(a[[0, 2]], b[[0, 2]], msg=name)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("micro", [None, 1, 2])
def test_a_broken_member_is_told_and_counted_and_leaves_the_losses_to_the_others(micro, tmp_path):
    broken, heard = together(micro_batch=micro, seed=5, checkpoint_every=1), []
    broken.listen = lambda event, **facts: heard.append(facts["text"]) if event == "notice" else None
    with torch.no_grad():
        broken.model.one.embed.weight[1].fill_(torch.nan)
    whole = [trainer.update(STEPS)["loss"] for trainer in (Trainer(*alone(0)), Trainer(*alone(2)))]
    assert broken.update(STEPS)["loss"] == pytest.approx(sum(whole) / 2, rel=1e-5)
    seen = broken.task.evaluate(broken.model, "valid")
    assert seen.metrics["loss"] == pytest.approx((seen.parts["seed 0"]["loss"] + seen.parts["seed 2"]["loss"]) / 2)
    broken.update(STEPS)
    assert [course.skipped for course in broken.course.each] == [0, 2, 0]
    what = "the loss or the gradient of 1 of 3 seeds was not finite, so they were not updated: 6"
    assert heard == [f"step 1: {what}"]
    broken.fit(tmp_path, 3)
    later = together(seed=5)
    later.resume(tmp_path)
    assert later.model.odds.tolist() == [0, 3, 0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_members_that_stop_early_say_how_long_they_waited_and_what_is_kept(tmp_path):
    many, heard = together(early_stopping_patience=1, eval_every=1, lr=5.0, grad_clip=0.0, warmup=0), []
    many.listen = lambda event, **facts: heard.append(facts["text"]) if event == "notice" else None
    many.fit(tmp_path, 60)
    why = "the valid loss was no better for 1 look; the best weights of each seed are kept"
    assert heard == [f"stopped at step {many.step} of 60: {why}"]


def test_members_that_stop_early_but_keep_their_last_weights_are_refused():
    with pytest.raises(BadSetting, match=r"^train\.seeds: a seed that stops early [^\n]+; leave train\.best=false out"):
        together(early_stopping_patience=1, keep_best=False)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_nothing_is_learned_when_no_member_is_finite():
    broken = together(1)
    with torch.no_grad():
        broken.model.one.embed.weight.fill_(torch.nan)
    with pytest.raises(HarkenError, match="is not finite"):
        broken.update(STEPS)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_each_member_keeps_the_weights_of_its_own_best_look(tmp_path):
    many = trained(together(eval_every=1, lr=0.5, grad_clip=0.0, warmup=0), tmp_path / "many")
    best = [course.step for course in many.course.each]
    assert len(set(best)) > 1  # at such a rate they are best at different steps
    for seed, step in enumerate(best):
        assert step in range(1, STEPS + 1)
        found = Counting(seed).evaluate(many.model.alone(seed), "valid").metrics["loss"]
        assert found == pytest.approx(many.course.each[seed].best, rel=1e-4)


def test_tied_weights_stay_tied():
    torch.manual_seed(0)
    models = [Shape(d=16, layers=1, heads=2, context=8, tie_embeddings=True).build(20) for _ in range(2)]
    many = Together(models)
    assert many.one.head.weight is many.one.embed.weight
    assert sum(p.numel() for p in many.parameters()) == 2 * sum(p.numel() for p in models[0].parameters())


def test_a_plateau_has_one_rate_and_is_refused():
    with pytest.raises(BadSetting, match=r"^train\.seeds: plateau has one rate for all members"):
        together(schedule="plateau")


def test_in_lower_precision_every_member_answers_with_its_own_weights():
    models = [Shape(d=16, layers=1, heads=2, context=8).build(11) for _ in range(3)]
    tokens = torch.arange(8)[None]
    want = []
    for model in models:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            want.append(model(tokens))
    many = Together(models)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for n, one in enumerate(want):
            torch.testing.assert_close(many.alone(n)(tokens), one)
