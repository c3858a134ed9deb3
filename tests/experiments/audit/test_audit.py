"""The audit: every family passes, each fault is caught by its own check, and the guilty layer is named."""

import copy
import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import harken
from harken import registry
from harken.core import CAUSAL, FULL, Memory, Structure
from harken.data.synthetic.tales import tales as told
from harken.errors import BadInput, HarkenError
from harken.events import silent
from harken.experiments.audit import audit as room
from harken.experiments.audit.audit import CLAIMS, Audit, Check, audit
from harken.experiments.train import prepare
from harken.models import bert
from harken.models.gpt import GPT, Shape
from harken.models.rnn import RNN, GRUShape
from harken.recipe import resolve
from harken.tasks import Loss
from harken.tasks.next_word import NextWord
from harken.training.loop import as_before
from harken.training.step import Step

OWN = [name for name in CLAIMS if name not in ("told", "permuted")]  # a language model has no source and is no set

VOCAB = 29
SMALL = {"d": 16, "layers": 2, "heads": 2, "context": 20}


def gpt(make=GPT, **fields) -> GPT:
    return make(Shape(**{**SMALL, **fields}), VOCAB)


def results(audit: Audit) -> dict[str, tuple[str, str | None]]:
    """Of each check that did not pass: its outcome, and the layer that is named."""
    return {check.name: (check.outcome, check.layer) for check in audit.checks if check.outcome != "passed"}


def failures(model, task=None) -> dict[str, str | None]:
    return {name: layer for name, (outcome, layer) in results(audit(model, task)).items() if outcome == "failed"}


def trainer(text, **settings):
    """A trainer on a text; settings as model__d=16."""
    small = {"model.d": 16, "model.layers": 1, "model.context": 16, "train.batch": 7, "train.device": "cpu"}
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return prepare(resolve(("here", {"data.path": str(text), **small, **given})), silent)[1]


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text("\n\n".join(told(12)) + "\n")
    return path


# --- whoever obeys passes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", registry.names("model"))
def test_every_family_passes_and_says_what_does_not_apply(kind, tales):
    both_ways = kind == "bert"
    reads = (
        {"data__tokenizer": "wordpiece", "data__vocab_size": 200, "data__batching": "sentences"} if both_ways else {}
    )
    trained = trainer(tales, model__kind=kind, **reads)
    for step in range(2):
        trained.update(step + 2)
    found = audit(trained.model, trained.task)
    assert found.passed
    unfit = ["packed"] * (kind in ("rnn", "gru", "lstm")) + ["causal", "gradient", "cached"] * both_ways
    assert results(found) == dict.fromkeys(unfit, ("does not apply", None))
    assert [check.name for check in found.checks] == OWN
    assert all(check.difference <= 1e-12 for check in found.checks if check.outcome == "passed")


def test_a_bert_that_looks_at_padding_fails():
    class Careless(bert.BERT):
        def forward(self, tokens, *, lengths=None, **told):
            return super().forward(tokens, **told)

    found = failures(Careless(bert.Shape(**SMALL), VOCAB))
    assert found == dict.fromkeys(["padded", "batched"], "stack.blocks.0.look")


@pytest.mark.parametrize(
    "fields",
    [{"positions": p} for p in ("sinusoid-halves", "learned", "rotary", "rotary-interleaved", "alibi", "none")]
    + [{"similarity": s} for s in ("dot", "bilinear", "mahalanobis", "gaussian", "additive", "latent")]
    + [{"style": "llama", "kv_heads": 1}, {"style": "gpt2"}, {"window": 3}, {"norm": "post"}, {"residual": False}]
    + [{"dropout": 0.3, "word_dropout": 0.3}, {"context": 2}, {"context": 3}, {"d_k": 5, "d_v": 3}, {"lift": True}],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_every_choice_of_a_gpt_passes(fields):
    assert results(audit(gpt(**fields))) == {"accumulated": ("does not apply", None)}


@pytest.mark.parametrize(
    "settings",
    [
        {"data__batching": "packed"},
        {"data__batching": "packed", "model__dropout": 0.2},
        {"model__kind": "lstm", "model__dropout": 0.2, "model__layers": 2},
        {"train__batch": 2},
        {"data__tokenizer": "word", "data__vocab_size": 60},
    ],
    ids=["packed", "packed-dropout", "stream", "two-rows", "words"],
)
def test_every_kind_of_batch_adds_up(tales, settings):
    ready = trainer(tales, **settings)
    assert failures(ready.model, ready.task) == {}


def test_a_mixture_adds_up(tales, tmp_path):
    (tmp_path / "other.txt").write_text("\n\n".join(list(told(20))[12:]))
    mixed = {"data.mix": {str(tales): 0.5, str(tmp_path / "other.txt"): 0.5}, "model.d": 16, "model.context": 16}
    ready = prepare(resolve(("here", {**mixed, "model.layers": 1, "train.device": "cpu"})), silent)[1]
    assert failures(ready.model, ready.task) == {}


def test_longer_rows_may_be_asked_for():
    class Forgets(GPT):
        """Loses its mask in long rows."""

        def forward(self, tokens, **given):
            self.structure = CAUSAL if tokens.shape[1] <= 40 else FULL
            return super().forward(tokens, **given)

    model = gpt(Forgets, context=64)
    assert audit(model).passed
    assert not audit(model, length=64).passed


# --- the future -------------------------------------------------------------------------------------------------------


def test_a_mask_that_is_off_by_one_is_caught_and_the_first_attention_is_named():
    model = gpt()
    model.structure = Structure(lambda b, i, j: j <= i + 1, "off by one")
    found = failures(model)
    assert found["causal"] == found["gradient"] == "stack.blocks.0.look"


@pytest.mark.parametrize("block", [0, 1])
def test_an_attention_without_its_mask_is_named_among_others_that_have_it(block):
    model = gpt()
    look = model.stack.blocks[block].look
    masked = look.forward
    look.forward = lambda x, place, memory=None: masked(x, place=None if memory is None else place, memory=memory)
    found = failures(model)
    assert found["causal"] == found["gradient"] == f"stack.blocks.{block}.look"


class OverTheSequence(nn.LayerNorm):
    """Normalises over the words of a row too."""

    def forward(self, x):
        return F.layer_norm(x, x.shape[1:]) * self.weight + self.bias


def test_a_norm_over_the_sequence_is_named():
    model = gpt()
    model.stack.blocks[1].mlp_sub.norm = OverTheSequence(16)
    found = failures(model)
    assert found["causal"] == found["gradient"] == "stack.blocks.1.mlp_sub.norm"


def test_a_norm_that_leaks_only_while_learning_is_caught():
    class OverTheBatch(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    model = gpt()
    model.norm = OverTheBatch(16)
    assert failures(model) == {"causal": "norm", "gradient": "norm"}


class Peeks(nn.Module):
    """Adds something of the next word."""

    def __init__(self, peek):
        super().__init__()
        self.peek = peek

    def forward(self, x):
        return x + self.peek(x.roll(-1, 1))


def test_a_leak_without_a_gradient_is_caught_by_changing_words():
    model = gpt()
    model.lift = Peeks(lambda x: 0.01 * x.detach())
    found = failures(model)
    assert found["causal"] == "lift"
    assert "gradient" not in found


def test_a_leak_of_the_gradient_alone_is_caught_by_the_gradient():
    model = gpt()
    model.lift = Peeks(lambda x: x - x.detach())
    assert failures(model) == {"gradient": "lift"}


def test_a_leak_of_one_part_in_a_million_is_caught():
    model = gpt()
    model.lift = Peeks(lambda x: 1e-6 * x)
    assert failures(model)["causal"] == "lift"


def test_a_recurrent_model_that_reads_both_ways_is_caught():
    model = GRUShape(d=16, context=20).build(VOCAB)
    model.cell = nn.GRU(16, 8, batch_first=True, bidirectional=True)
    found = failures(model)
    assert found["causal"] == found["gradient"] == "cell"


def test_a_fault_between_two_modules_is_laid_on_the_one_that_holds_them():
    class Adds(GPT):
        def words(self, tokens):
            x = super().words(tokens)
            return x + 0.1 * x.mean(1, keepdim=True)

    (check,) = [check for check in audit(gpt(Adds)).checks if check.name == "causal"]
    assert (check.layer, check.why) == ("Adds", "first seen in lift")


# --- padding, packing, memory, batch ----------------------------------------------------------------------------------


def test_a_state_that_runs_on_through_the_padding_is_caught():
    class RunsOn(RNN):
        def forward(self, tokens, *, lengths=None, **given):
            return super().forward(tokens, **given)

    found = failures(RunsOn(GRUShape(d=16), VOCAB))
    assert found["padded"] == found["batched"] == "cell"
    assert {"causal", "gradient", "cached"}.isdisjoint(found)


def test_padding_that_is_counted_is_caught():
    class Counts(GPT):
        """Has another size in a wider row, whatever its real length is."""

        def forward(self, tokens, *, lengths=None, memory=None, **given):
            return super().forward(tokens, memory=memory, **given) * (1 if lengths is None else tokens.shape[1])

    assert failures(gpt(Counts))["padded"] == "Counts"


@pytest.mark.parametrize("kind", registry.names("model", " of pairs"))
def test_pairs_of_one_row_are_proved_apart_where_a_model_packs_them(kind, monkeypatch):
    def outcome() -> tuple[str, str | None] | None:
        small = {"d": 16, "layers": 1, **({"heads": 2} if kind == "transformer" else {})}
        return results(audit(registry.find("model", kind, " of pairs")(**small).build((VOCAB, VOCAB)))).get("packed")

    assert outcome() == (None if kind == "transformer" else ("does not apply", None))
    if kind == "transformer":
        monkeypatch.setattr("harken.models.seq2seq.same", lambda doc, source=None: FULL)
        assert outcome() == ("failed", "stack.blocks.0.cross")


def test_documents_that_see_each_other_are_caught():
    class SeesAll(GPT):
        def forward(self, tokens, *, structure=FULL, **given):
            return super().forward(tokens, **given)

    assert failures(gpt(SeesAll)) == {"packed": "stack.blocks.0.look"}


def test_documents_that_do_not_begin_at_0_are_caught():
    class CountsOn(GPT):
        def forward(self, tokens, *, pos=None, memory=None, **given):
            return super().forward(tokens, pos=None if memory is None else pos, memory=memory, **given)

    assert failures(gpt(CountsOn, positions="learned")) == {"packed": "CountsOn"}


class OneSlotOff(Memory):
    """Writes each pair but the first one slot too early."""

    def write(self, k, v, slots):
        return super().write(k, v, (slots - 1).clamp_min(0))


def test_a_memory_that_writes_into_the_wrong_slot_is_caught_and_its_layer_named():
    class Forgetful(GPT):
        def memory(self, B, capacity):
            first, second = super().memory(B, capacity)
            return [first, OneSlotOff(second.k, second.v)]

    found = failures(gpt(Forgetful))
    assert found["cached"] == "stack.blocks.1.look"
    assert {"causal", "gradient", "packed"}.isdisjoint(found)


def test_a_state_that_is_not_carried_on_is_caught():
    class Forgets(RNN):
        def _before(self, memory):
            return None

    assert failures(Forgets(GRUShape(d=16), VOCAB)) == {"cached": "cell"}


class ByTheRow(nn.Module):
    """Adds waves that begin elsewhere in each row of a batch."""

    def forward(self, x):
        return x + (torch.arange(len(x))[:, None, None] + torch.arange(x.shape[-1])).sin()


def test_positions_that_depend_on_the_batch_are_caught():
    model = gpt()
    model.lift = ByTheRow()
    assert failures(model) == {"batched": "lift"}


def test_dropout_that_was_left_on_is_caught():
    class LeftOn(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.1)

    model = gpt()
    model.stack.blocks[1].look_sub.dropout = LeftOn()
    assert failures(model)["batched"] == "stack.blocks.1.look_sub.dropout"


# --- parts of a batch -------------------------------------------------------------------------------------------------


class OwnCount(NextWord):
    """Gives the mean of the rows at hand for their sum."""

    def loss(self, model, batch, start=0):
        loss = super().loss(model, batch, start)
        return Loss(loss.total / batch.count, loss.parts)


def test_a_loss_over_the_micro_batchs_own_count_is_caught(tales):
    ready = trainer(tales)
    ready.task.__class__ = OwnCount
    assert failures(ready.model, ready.task) == {"accumulated": "OwnCount.loss"}


def test_a_step_that_divides_by_the_micro_batchs_own_count_is_caught(tales, monkeypatch):
    def gradients(self, batch):
        size = self.micro or len(batch.tokens)
        for start in range(0, len(batch.tokens), size):
            rows = batch.rows(start, start + size)
            loss = self.task.loss(self.call, rows, start)
            (loss.total / rows.count).backward()
        return loss.total.detach()

    monkeypatch.setattr(Step, "_gradients", gradients)
    ready = trainer(tales)
    assert failures(ready.model, ready.task) == {"accumulated": "training.step"}


def test_a_layer_in_which_the_rows_of_a_batch_meet_is_caught(tales):
    class Together(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    ready = trainer(tales)
    ready.model.norm = Together()
    found = failures(ready.model, ready.task)
    assert found["accumulated"] == found["batched"] == "norm"


def test_streams_whose_rows_are_taken_from_the_wrong_place_are_caught(tales):
    class FirstRows(NextWord):
        def loss(self, model, batch, start=0):
            return super().loss(model, batch, 0 if not batch.fresh else start)

    ready = trainer(tales, model__kind="gru")
    ready.task.__class__ = FirstRows
    assert failures(ready.model, ready.task) == {"accumulated": "FirstRows.loss"}


def test_a_batch_of_one_row_has_nothing_to_add_up(tales):
    ready = trainer(tales, train__batch=1)
    assert results(audit(ready.model, ready.task)) == {"accumulated": ("does not apply", None)}


# --- what does not apply, and what breaks -----------------------------------------------------------------------------


def test_a_model_of_another_kind_is_asked_only_what_it_can_answer(tales):
    class Counts(nn.Module):
        """A table of word pairs: no language model of harken's, but something that can be trained."""

        context = 16

        def __init__(self, vocab):
            super().__init__()
            self.table = nn.Embedding(vocab, vocab)

    class Learned(NextWord):
        def loss(self, model, batch, start=0):
            scores = model.table(batch.tokens).flatten(0, 1)
            return Loss(F.cross_entropy(scores, batch.targets.flatten(), reduction="sum"))

    ready = trainer(tales)
    ready.task.__class__ = Learned
    found = audit(Counts(ready.task.data.vocab), ready.task)
    assert {name for name, (outcome, _) in results(found).items() if outcome == "does not apply"} == {*CLAIMS} - {
        "accumulated",
        "permuted",
    }
    assert found.checks[0].why == "Counts is no language model"


class NoLengths(GPT):
    def forward(self, tokens, *, pos=None, structure=FULL, memory=None):
        return super().forward(tokens, pos=pos, structure=structure, memory=memory)


class NoMemory(GPT):
    def forward(self, tokens, *, pos=None, structure=FULL, lengths=None):
        return super().forward(tokens, pos=pos, structure=structure)


class NoStructure(GPT):
    def forward(self, tokens, *, pos=None, memory=None, lengths=None):
        return super().forward(tokens, pos=pos, memory=memory)


@pytest.mark.parametrize(
    ("make", "missing", "unfit"),
    [
        (NoLengths, "lengths", {"padded", "batched"}),
        (NoMemory, "memory", {"padded", "cached", "batched"}),
        (NoStructure, "structure", {"packed"}),
    ],
)
def test_what_a_forward_does_not_take_does_not_apply(make, missing, unfit):
    why = {check.name: check.why for check in audit(gpt(make)).checks if check.outcome != "passed"}
    assert why == {"accumulated": "no task is given", **dict.fromkeys(unfit, f"its forward takes no {missing}")}


def test_a_context_of_one_token_leaves_nothing_to_compare():
    assert {outcome for outcome, _ in results(audit(gpt(context=1))).values()} == {"does not apply"}


def test_a_model_that_breaks_fails_and_does_not_stop_the_audit():
    class Breaks(GPT):
        def memory(self, B, capacity):
            raise IndexError("no\nroom")

    found = audit(gpt(Breaks))
    assert failures(gpt(Breaks)) == {"padded": None, "cached": None, "batched": None}
    assert {check.why for check in found.checks if check.outcome == "failed"} == {"IndexError: no room"}


def test_weights_that_are_no_numbers_fail_where_they_are():
    model = gpt()
    with torch.no_grad():
        model.stack.blocks[1].mlp.W_2.weight[0, 0] = math.nan
    found = audit(model)
    assert set(failures(model).values()) == {"stack.blocks.1.mlp.W_2"}
    assert {check.why for check in found.checks if check.outcome == "failed"} == {"what it says is not a number"}
    json.dumps(found.facts(), allow_nan=False)


def test_a_model_that_takes_only_float32_is_asked_in_float32():
    class Single(nn.Module):
        def forward(self, x):
            return torch.matmul(x, torch.eye(16))

    model = gpt()
    model.lift = Single()
    found = audit(model)
    assert found.passed
    assert found.checks[0].tolerance == 1e-4


# --- nothing is changed -----------------------------------------------------------------------------------------------


def test_the_model_the_task_and_the_dice_stay_as_they_are(tales):
    ready = trainer(tales, model__kind="lstm", model__dropout=0.1)
    ready.update(9)
    model, task = ready.model, ready.task
    before, grads = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    state, dice = {n: t.clone() for n, t in task.state().items()}, torch.get_rng_state()
    audit(model, task)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(
        p.dtype == torch.float32 and torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True)
    )
    assert state.keys() == task.state().keys()
    assert all(torch.equal(task.state()[n], t) for n, t in state.items())
    assert torch.equal(torch.get_rng_state(), dice)
    assert not any(module._forward_hooks for module in model.modules())


def test_an_audit_leaves_determinism_as_it_was(tales):
    ready = trainer(tales)
    with as_before():
        torch.use_deterministic_algorithms(True)
        assert audit(ready.model, ready.task).passed
        assert torch.are_deterministic_algorithms_enabled()


def test_the_copy_takes_the_route_of_the_model():
    """A kernel's own flag stands for CAUSAL alone; a copy of it would be laid out as a mask."""
    assert room._copy(gpt()).structure is CAUSAL


def test_it_works_where_no_gradients_are_kept():
    with torch.inference_mode():
        assert audit(gpt()).passed


# --- what it says -----------------------------------------------------------------------------------------------------


def test_the_audit_is_one_line():
    good, bad = gpt(), gpt()
    bad.structure = FULL
    assert str(audit(good)) == (
        "6 checks passed (causal, gradient, padded, packed, cached, batched); accumulated does not apply"
    )
    several = [Check(name, "", "does not apply") for name in ("causal", "cached")]
    assert str(Audit((Check("padded", "", "passed"), *several))) == (
        "1 check passed (padded); causal, cached do not apply"
    )
    bad.norm = OverTheSequence(16)
    assert str(audit(bad)) == (
        "6 of 7 checks failed: causal, gradient, padded, cached, batched in stack.blocks.0.look; packed in norm"
    )


def test_the_facts_say_what_was_claimed_how_far_off_it_was_and_who_is_to_blame():
    model = gpt()
    model.structure = FULL
    facts = audit(model).facts()
    assert facts.keys() == {"passed", "summary", "checks"}
    assert facts["passed"] is False
    first = facts["checks"][0]
    assert first["difference"] > first["tolerance"] == 1e-8
    assert (first["name"], first["layer"], first["claim"]) == ("causal", "stack.blocks.0.look", CLAIMS["causal"])


# --- runs and recipes -------------------------------------------------------------------------------------------------

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.steps": 2, "train.batch": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tales):

    home = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
        (home / "my.txt").write_text(tales.read_text())
        return harken.train(home / "my.txt", out=home / "run", settings=TINY)


def test_a_run_is_audited_by_its_folder_or_as_it_is_in_the_hand(run):
    assert results(harken.audit(run.path)) == results(harken.audit(run)) == {}


def test_every_training_ends_with_its_audit(run):
    facts = json.loads((run.path / "harken.json").read_text())["audit"]
    assert facts["passed"] is True
    assert facts["summary"] == f"7 checks passed ({', '.join(OWN)})"
    assert [check["outcome"] for check in facts["checks"]] == ["passed"] * 7
    assert facts["summary"] in (run.path / "report.html").read_text()


def test_a_run_whose_data_is_gone_is_audited_without_it(run):
    text = run.path.parent / "my.txt"
    text.rename(text.with_name("elsewhere.txt"))
    try:
        found = harken.audit(run.path)
    finally:
        text.with_name("elsewhere.txt").rename(text)
    assert results(found) == {"accumulated": ("does not apply", None)}
    assert "my.txt" in found.checks[-1].why


def test_a_recipe_is_audited_with_its_first_weights(tales):
    assert results(harken.audit("char", settings={"data.path": str(tales), **TINY})) == {}


def test_data_is_audited_with_the_recipe_it_would_get(tales):
    found = harken.audit(tales, settings={"model.kind": "gru", "model.d": 16})
    assert results(found) == {"packed": ("does not apply", None)}


def test_settings_are_not_for_a_run(run):
    with pytest.raises(BadInput, match="a run is audited as it is"):
        harken.audit(run.path, settings={"model.layers": 2})


def test_what_is_not_there_is_refused():
    with pytest.raises(HarkenError, match="there is no such file"):
        harken.audit("runs/nowhere")
