"""A frozen body runs once per text: cached features give the same numbers as a forward pass."""

import pytest
import torch

import harken
from harken.experiments.choose import choose
from harken.experiments.train import prepare
from harken.tasks import head_task
from harken.tasks.classify import batch_outputs, predict
from harken.tasks.label_task import label_loss

TINY = {"model.d": 16, "model.layers": 2, "model.heads": 2, "train.batch": 8, "train.threads": 1}


@pytest.fixture
def reviews(tmp_path):
    words = ["good", "fine", "great"], ["bad", "poor", "awful"]
    path = tmp_path / "reviews.csv"
    rows = [f"the film number {n} was {words[n % 2][n % 3]},{('yes', 'no')[n % 2]}" for n in range(80)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def pretrained(reviews, tmp_path):
    return harken.train(str(reviews), out=tmp_path / "first", settings={**TINY, "train.steps": 2})


def frozen_trainer(reviews, pretrained):
    settings = {"from": str(pretrained.path), "transfer": "frozen", "train.steps": 5}
    settings |= {"train.batch": 8, "train.threads": 1}
    return prepare(choose(str(reviews), settings).recipe, lambda *_, **__: None)[1]


def test_the_loss_from_cached_features_is_the_loss_of_a_forward_pass(reviews, pretrained):
    trainer = frozen_trainer(reviews, pretrained)
    model, batch = trainer.model.eval(), trainer.task.batch(0, 0)
    loss = trainer.task.loss(model, batch)
    expected = label_loss(batch_outputs(model, batch), batch.targets.flatten(0, 1), "label")
    torch.testing.assert_close(loss.total, expected)
    loss.total.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {"W_y.weight", "W_y.bias"}


def test_features_are_computed_once_for_all_trainings_and_again_for_another_body(reviews, pretrained, monkeypatch):
    writes, save_file = [], head_task.save_file

    def counting_save(*args):
        writes.append(1)
        return save_file(*args)

    monkeypatch.setattr(head_task, "save_file", counting_save)
    for _ in range(2):
        trainer = frozen_trainer(reviews, pretrained)
        for step in range(2):
            trainer.task.loss(trainer.model, trainer.task.batch(0, step))
    assert len(writes) == 1
    with torch.no_grad():
        trainer.model.body.embed.weight.add_(0.1)
    trainer.task.frozen = None
    trainer.task.loss(trainer.model, trainer.task.batch(0, 0))
    assert len(writes) == 2


def test_features_are_computed_in_full_precision_and_depend_on_the_settings_of_the_body(reviews, pretrained):
    trainer, cpu = frozen_trainer(reviews, pretrained), torch.device("cpu")
    model, texts = trainer.model, trainer.task.data.train.texts
    features, key = head_task.frozen_features(model, texts), head_task._cache_key(model, texts, cpu)
    with torch.autocast("cpu", torch.bfloat16):
        assert head_task._cache_key(model, texts, cpu) == key
        assert torch.equal(head_task._compute(model, texts, cpu), features)
    one_head = pretrained.recipe.model.model_copy(update={"heads": 1}).build(trainer.task.data.vocab)
    one_head.load_state_dict(model.state_dict())
    assert not torch.allclose(head_task.frozen_features(one_head.requires_grad_(False), texts), features)


def test_damaged_cache_files_are_replaced(reviews, pretrained):
    trainer = frozen_trainer(reviews, pretrained)
    texts, folder = trainer.task.data.train.texts, head_task.cache_folder("states")
    features = head_task.frozen_features(trainer.model, texts)
    for content in (b"", b"no tensors at all"):
        for path in folder.glob("*.safetensors"):
            path.write_bytes(content)
        assert torch.equal(head_task.frozen_features(trainer.model, texts), features)
    assert not list(folder.glob("*.tmp"))


def test_frozen_training_changes_the_head_and_not_the_body(reviews, pretrained, tmp_path):
    settings = {"from": str(pretrained.path), "transfer": "frozen", "train.steps": 3}
    settings |= {"train.batch": 8, "train.threads": 1}
    run = harken.train(str(reviews), out=tmp_path / "second", settings=settings)
    parameters = run.model.body.named_parameters(), pretrained.model.body.named_parameters()
    for (name, after), (_, before) in zip(*parameters, strict=True):
        assert torch.equal(after, before), name
    assert not torch.equal(run.model.W_y.weight, pretrained.model.W_y.weight)


def test_evaluation_of_a_frozen_model_equals_a_forward_pass(reviews, pretrained, monkeypatch):
    trainer = frozen_trainer(reviews, pretrained)
    texts = trainer.task.data.splits["valid"].texts
    with torch.no_grad():
        trainer.model.W_y.weight.normal_()  # outputs that differ between texts
    trainer.model.train()
    for quick in (True, False):
        loss = trainer.task.evaluate(trainer.model, "valid", quick=quick).metrics["loss"]
        expected = label_loss(predict(trainer.model, texts), torch.from_numpy(texts.targets), "label") / len(texts)
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    monkeypatch.setattr(head_task, "save_file", None)  # from now on all features are in the cache
    trainer.task.evaluate(trainer.model, "valid")
    assert trainer.model.training
