"""A frozen body is read once: its kept states give the numbers that reading again would give."""

import pytest
import torch

import harken
from harken.experiments.choose import choose
from harken.experiments.train import prepare
from harken.tasks import frozen_features as kept
from harken.tasks.classify import answers, outputs
from harken.tasks.label_task import label_loss

TINY = {"model.d": 16, "model.layers": 2, "model.heads": 2, "train.batch": 8, "train.threads": 1}


def quiet(*_, **__) -> None:
    pass


@pytest.fixture
def reviews(tmp_path):
    words = ["good", "fine", "great"], ["bad", "poor", "awful"]
    path = tmp_path / "reviews.csv"
    rows = [f"the film number {n} was {words[n % 2][n % 3]},{('yes', 'no')[n % 2]}" for n in range(80)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def first(reviews, tmp_path):
    return harken.train(str(reviews), out=tmp_path / "first", settings={**TINY, "train.steps": 2})


def frozen(reviews, first):
    settings = {"from": str(first.path), "transfer": "frozen", "train.steps": 5, "train.batch": 8, "train.threads": 1}
    return prepare(choose(str(reviews), settings).recipe, quiet)[1]


def test_the_loss_from_kept_states_is_the_loss_of_reading_again(reviews, first):
    trainer = frozen(reviews, first)
    model, batch = trainer.model.eval(), trainer.task.batch(0, 0)
    found = trainer.task.loss(model, batch)
    wanted = label_loss(outputs(model, batch), batch.targets.flatten(0, 1), "label")
    torch.testing.assert_close(found.total, wanted)
    found.total.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {"W_y.weight", "W_y.bias"}


def test_states_are_read_once_for_all_trainings_and_again_for_another_body(reviews, first, monkeypatch):
    reads, keep = [], kept.save_file

    def counted(*given):
        reads.append(1)
        return keep(*given)

    monkeypatch.setattr(kept, "save_file", counted)
    for _ in range(2):
        trainer = frozen(reviews, first)
        for step in range(2):
            trainer.task.loss(trainer.model, trainer.task.batch(0, step))
    assert len(reads) == 1
    with torch.no_grad():
        trainer.model.body.embed.weight.add_(0.1)
    trainer.task.known = None
    trainer.task.loss(trainer.model, trainer.task.batch(0, 0))
    assert len(reads) == 2


def test_states_are_those_of_the_same_wiring_and_threads_in_full_precision(reviews, first):
    trainer = frozen(reviews, first)
    model, texts = trainer.model, trainer.task.data.train.texts
    known, key = kept.states(model, texts), kept._key(model, texts, torch.device("cpu"))
    with torch.autocast("cpu", torch.bfloat16):
        assert kept._key(model, texts, torch.device("cpu")) == key
        assert torch.equal(kept._read(model, texts, torch.device("cpu")), known)
    other = first.recipe.model.model_copy(update={"heads": 1}).build(trainer.task.data.vocab)
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(kept.states(other.requires_grad_(False), texts), known)


def test_states_that_were_damaged_in_the_cache_are_read_anew(reviews, first):
    trainer = frozen(reviews, first)
    texts = trainer.task.data.train.texts
    known = kept.states(trainer.model, texts)
    for content in (b"", b"no tensors at all"):
        for path in kept.cache_folder("states").glob("*.safetensors"):
            path.write_bytes(content)
        assert torch.equal(kept.states(trainer.model, texts), known)
    assert not list(kept.cache_folder("states").glob("*.tmp"))


def test_a_frozen_training_leaves_the_body_as_it_was_and_moves_the_head(reviews, first, tmp_path):
    settings = {"from": str(first.path), "transfer": "frozen", "train.steps": 3, "train.batch": 8, "train.threads": 1}
    made = harken.train(str(reviews), out=tmp_path / "second", settings=settings)
    for (name, mine), (_, other) in zip(
        made.model.body.named_parameters(), first.model.body.named_parameters(), strict=True
    ):
        assert torch.equal(mine, other), name
    assert not torch.equal(made.model.W_y.weight, first.model.W_y.weight)


def test_a_frozen_run_is_judged_by_what_reading_again_would_say(reviews, first, monkeypatch):
    trainer = frozen(reviews, first)
    part = trainer.task.data.splits["valid"].texts
    with torch.no_grad():
        trainer.model.W_y.weight.normal_()  # a head that says something
    trainer.model.train()
    for quick in (True, False):
        found = trainer.task.evaluate(trainer.model, "valid", quick=quick).metrics["loss"]
        wanted = label_loss(answers(trainer.model, part), torch.from_numpy(part.targets), "label") / len(part)
        assert found == pytest.approx(wanted.item(), rel=1e-5)
    monkeypatch.setattr(kept, "save_file", None)  # now all are kept
    trainer.task.evaluate(trainer.model, "valid")
    assert trainer.model.training
