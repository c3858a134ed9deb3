"""harken.audit: every model passes, each error is detected by its check, and the responsible layer is located."""

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
from harken.data.synthetic.tales import tales as generate_tales
from harken.errors import BadInput, HarkenError
from harken.events import silent
from harken.experiments.audit import audit as audit_module
from harken.experiments.audit.audit import CLAIMS, Audit, Check, audit
from harken.experiments.train import prepare
from harken.models import bert
from harken.models.gpt import GPT, GPTSettings
from harken.models.rnn import RNN, GRUSettings
from harken.recipe import resolve
from harken.tasks import Loss
from harken.tasks.next_word import NextWordTask
from harken.training.loop import restore_torch_state
from harken.training.step import UpdateStep

CHECK_NAMES = [name for name in CLAIMS if name not in ("source_padding", "permutation")]  # of a language model

VOCAB = 29
SMALL = {"d": 16, "layers": 2, "heads": 2, "context": 20}


def gpt(make=GPT, **fields) -> GPT:
    return make(GPTSettings(**{**SMALL, **fields}), VOCAB)


def not_passed(audit: Audit) -> dict[str, tuple[str, str | None]]:
    """Outcome and layer of each check that did not pass."""
    return {check.name: (check.outcome, check.layer) for check in audit.checks if check.outcome != "passed"}


def failures(model, task=None) -> dict[str, str | None]:
    return {name: layer for name, (outcome, layer) in not_passed(audit(model, task)).items() if outcome == "failed"}


def trainer(text, **settings):
    """A trainer on a text; settings as model__d=16."""
    small = {"model.d": 16, "model.layers": 1, "model.context": 16, "train.batch": 7, "train.device": "cpu"}
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    return prepare(resolve(("here", {"data.path": str(text), **small, **overrides})), silent)[1]


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text("\n\n".join(generate_tales(12)) + "\n")
    return path


# --- correct models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", registry.kind_names("model"))
def test_every_model_passes_and_names_the_checks_that_do_not_apply(kind, tales):
    bidirectional = kind == "bert"
    data_settings = (
        {"data__tokenizer": "wordpiece", "data__vocab_size": 200, "data__batching": "sentences"}
        if bidirectional
        else {}
    )
    training = trainer(tales, model__kind=kind, **data_settings)
    for step in range(2):
        training.update(step + 2)
    report = audit(training.model, training.task)
    assert report.passed
    not_applicable = ["packing"] * (kind in ("rnn", "gru", "lstm")) + ["causal", "gradient", "cache"] * bidirectional
    assert not_passed(report) == dict.fromkeys(not_applicable, ("does not apply", None))
    assert [check.name for check in report.checks] == CHECK_NAMES
    assert all(check.difference <= 1e-12 for check in report.checks if check.outcome == "passed")


def test_a_bert_that_attends_to_padding_fails():
    class Careless(bert.BERT):
        def forward(self, tokens, *, lengths=None, **generate_tales):
            return super().forward(tokens, **generate_tales)

    report = failures(Careless(bert.BERTSettings(**SMALL), VOCAB))
    assert report == dict.fromkeys(["padding", "batching"], "stack.blocks.0.attention")


@pytest.mark.parametrize(
    "fields",
    [{"positions": p} for p in ("sinusoid-halves", "learned", "rotary", "rotary-interleaved", "alibi", "none")]
    + [{"similarity": s} for s in ("dot", "bilinear", "mahalanobis", "gaussian", "additive", "latent")]
    + [{"style": "llama", "kv_heads": 1}, {"style": "gpt2"}, {"window": 3}, {"norm": "post"}, {"residual": False}]
    + [
        {"dropout": 0.3, "word_dropout": 0.3},
        {"context": 2},
        {"context": 3},
        {"d_k": 5, "d_v": 3},
        {"input_projection": True},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_every_setting_of_a_gpt_passes(fields):
    assert not_passed(audit(gpt(**fields))) == {"accumulation": ("does not apply", None)}


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
def test_gradient_accumulation_is_exact_for_every_kind_of_batch(tales, settings):
    prepared = trainer(tales, **settings)
    assert failures(prepared.model, prepared.task) == {}


def test_gradient_accumulation_is_exact_for_mixed_data(tales, tmp_path):
    (tmp_path / "other.txt").write_text("\n\n".join(list(generate_tales(20))[12:]))
    mixed = {"data.mix": {str(tales): 0.5, str(tmp_path / "other.txt"): 0.5}, "model.d": 16, "model.context": 16}
    prepared = prepare(resolve(("here", {**mixed, "model.layers": 1, "train.device": "cpu"})), silent)[1]
    assert failures(prepared.model, prepared.task) == {}


def test_the_length_can_be_set():
    class Forgets(GPT):
        """Drops its mask in long rows."""

        def forward(self, tokens, **inputs):
            self.structure = CAUSAL if tokens.shape[1] <= 40 else FULL
            return super().forward(tokens, **inputs)

    model = gpt(Forgets, context=64)
    assert audit(model).passed
    assert not audit(model, length=64).passed


# --- causality --------------------------------------------------------------------------------------------------------


def test_a_mask_that_is_off_by_one_is_detected_in_the_first_attention():
    model = gpt()
    model.structure = Structure(lambda b, i, j: j <= i + 1, "off by one")
    report = failures(model)
    assert report["causal"] == report["gradient"] == "stack.blocks.0.attention"


@pytest.mark.parametrize("block", [0, 1])
def test_the_one_attention_without_a_mask_is_located(block):
    model = gpt()
    attention = model.stack.blocks[block].attention
    masked = attention.forward
    attention.forward = lambda x, context, memory=None: masked(
        x, context=None if memory is None else context, memory=memory
    )
    report = failures(model)
    assert report["causal"] == report["gradient"] == f"stack.blocks.{block}.attention"


class OverTheSequence(nn.LayerNorm):
    """Normalizes over the tokens of a row too."""

    def forward(self, x):
        return F.layer_norm(x, x.shape[1:]) * self.weight + self.bias


def test_a_norm_over_the_sequence_is_located():
    model = gpt()
    model.stack.blocks[1].mlp_sublayer.norm = OverTheSequence(16)
    report = failures(model)
    assert report["causal"] == report["gradient"] == "stack.blocks.1.mlp_sublayer.norm"


def test_a_norm_that_leaks_only_in_training_mode_is_detected():
    class OverTheBatch(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    model = gpt()
    model.norm = OverTheBatch(16)
    assert failures(model) == {"causal": "norm", "gradient": "norm"}


class Peeks(nn.Module):
    """Adds a function of the next token."""

    def __init__(self, peek):
        super().__init__()
        self.peek = peek

    def forward(self, x):
        return x + self.peek(x.roll(-1, 1))


def test_a_leak_without_gradient_is_detected_by_changed_tokens():
    model = gpt()
    model.input_projection = Peeks(lambda x: 0.01 * x.detach())
    report = failures(model)
    assert report["causal"] == "input_projection"
    assert "gradient" not in report


def test_a_leak_in_the_gradient_alone_is_detected():
    model = gpt()
    model.input_projection = Peeks(lambda x: x - x.detach())
    assert failures(model) == {"gradient": "input_projection"}


def test_a_leak_of_one_part_in_a_million_is_detected():
    model = gpt()
    model.input_projection = Peeks(lambda x: 1e-6 * x)
    assert failures(model)["causal"] == "input_projection"


def test_a_bidirectional_recurrence_is_detected():
    model = GRUSettings(d=16, context=20).build(VOCAB)
    model.cell = nn.GRU(16, 8, batch_first=True, bidirectional=True)
    report = failures(model)
    assert report["causal"] == report["gradient"] == "cell"


def test_an_error_between_two_modules_is_attributed_to_their_parent():
    class Adds(GPT):
        def embed_tokens(self, tokens):
            x = super().embed_tokens(tokens)
            return x + 0.1 * x.mean(1, keepdim=True)

    (check,) = [check for check in audit(gpt(Adds)).checks if check.name == "causal"]
    assert (check.layer, check.why) == ("Adds", "first difference in input_projection")


# --- padding, packing, cache, batch -----------------------------------------------------------------------------------


def test_a_state_updated_on_padding_is_detected():
    class RunsOn(RNN):
        def forward(self, tokens, *, lengths=None, **inputs):
            return super().forward(tokens, **inputs)

    report = failures(RunsOn(GRUSettings(d=16), VOCAB))
    assert report["padding"] == report["batching"] == "cell"
    assert {"causal", "gradient", "cache"}.isdisjoint(report)


def test_counted_padding_is_detected():
    class Counts(GPT):
        """Depends on the width of the row instead of its length."""

        def forward(self, tokens, *, lengths=None, memory=None, **inputs):
            return super().forward(tokens, memory=memory, **inputs) * (1 if lengths is None else tokens.shape[1])

    assert failures(gpt(Counts))["padding"] == "Counts"


@pytest.mark.parametrize("kind", registry.kind_names("model", "pairs"))
def test_packing_of_pairs_is_checked_for_models_that_support_it(kind, monkeypatch):
    def outcome() -> tuple[str, str | None] | None:
        small = {"d": 16, "layers": 1, **({"heads": 2} if kind == "transformer" else {})}
        return not_passed(audit(registry.find_kind("model", kind, "pairs")(**small).build((VOCAB, VOCAB)))).get(
            "packing"
        )

    assert outcome() == (None if kind == "transformer" else ("does not apply", None))
    if kind == "transformer":
        monkeypatch.setattr("harken.models.seq2seq.same", lambda doc, source=None: FULL)
        assert outcome() == ("failed", "stack.blocks.0.cross")


def test_attention_between_documents_is_detected():
    class SeesAll(GPT):
        def forward(self, tokens, *, structure=FULL, **inputs):
            return super().forward(tokens, **inputs)

    assert failures(gpt(SeesAll)) == {"packing": "stack.blocks.0.attention"}


def test_documents_that_do_not_start_at_position_0_are_detected():
    class CountsOn(GPT):
        def forward(self, tokens, *, pos=None, memory=None, **inputs):
            return super().forward(tokens, pos=None if memory is None else pos, memory=memory, **inputs)

    assert failures(gpt(CountsOn, positions="learned")) == {"packing": "CountsOn"}


class OneSlotOff(Memory):
    """Writes each key and value, except the first, one slot too early."""

    def write(self, k, v, slots):
        return super().write(k, v, (slots - 1).clamp_min(0))


def test_a_cache_that_writes_to_the_wrong_slot_is_detected_with_its_layer():
    class Forgetful(GPT):
        def memory(self, B, capacity):
            first, second = super().memory(B, capacity)
            return [first, OneSlotOff(second.k, second.v)]

    report = failures(gpt(Forgetful))
    assert report["cache"] == "stack.blocks.1.attention"
    assert {"causal", "gradient", "packing"}.isdisjoint(report)


def test_a_state_that_is_not_carried_over_is_detected():
    class Forgets(RNN):
        def _initial_state(self, memory):
            return None

    assert failures(Forgets(GRUSettings(d=16), VOCAB)) == {"cache": "cell"}


class ByTheRow(nn.Module):
    """Adds sines with a different phase in each row of a batch."""

    def forward(self, x):
        return x + (torch.arange(len(x))[:, None, None] + torch.arange(x.shape[-1])).sin()


def test_positions_that_depend_on_the_batch_are_detected():
    model = gpt()
    model.input_projection = ByTheRow()
    assert failures(model) == {"batching": "input_projection"}


def test_dropout_in_evaluation_mode_is_detected():
    class LeftOn(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.1)

    model = gpt()
    model.stack.blocks[1].attention_sublayer.dropout = LeftOn()
    assert failures(model)["batching"] == "stack.blocks.1.attention_sublayer.dropout"


# --- gradient accumulation --------------------------------------------------------------------------------------------


class OwnCount(NextWordTask):
    """Returns the mean over the rows instead of the sum."""

    def loss(self, model, batch, start=0):
        loss = super().loss(model, batch, start)
        return Loss(loss.total / batch.n_targets, loss.parts)


def test_a_loss_normalized_by_the_micro_batch_is_detected(tales):
    prepared = trainer(tales)
    prepared.task.__class__ = OwnCount
    assert failures(prepared.model, prepared.task) == {"accumulation": "OwnCount.loss"}


def test_a_step_normalized_by_the_micro_batch_is_detected(tales, monkeypatch):
    def gradients(self, batch):
        size = self.micro_batch or len(batch.tokens)
        for start in range(0, len(batch.tokens), size):
            rows = batch.slice_rows(start, start + size)
            loss = self.task.loss(self.forward_model, rows, start)
            (loss.total / rows.n_targets).backward()
        return loss.total.detach()

    monkeypatch.setattr(UpdateStep, "_backward", gradients)
    prepared = trainer(tales)
    assert failures(prepared.model, prepared.task) == {"accumulation": "training.step"}


def test_a_layer_that_mixes_the_rows_of_a_batch_is_detected(tales):
    class Together(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    prepared = trainer(tales)
    prepared.model.norm = Together()
    report = failures(prepared.model, prepared.task)
    assert report["accumulation"] == report["batching"] == "norm"


def test_streams_with_wrong_rows_are_detected(tales):
    class FirstRows(NextWordTask):
        def loss(self, model, batch, start=0):
            return super().loss(model, batch, 0 if not batch.reset_state else start)

    prepared = trainer(tales, model__kind="gru")
    prepared.task.__class__ = FirstRows
    assert failures(prepared.model, prepared.task) == {"accumulation": "FirstRows.loss"}


def test_accumulation_does_not_apply_to_batches_of_one_row(tales):
    prepared = trainer(tales, train__batch=1)
    assert not_passed(audit(prepared.model, prepared.task)) == {"accumulation": ("does not apply", None)}


# --- not applicable checks and exceptions -----------------------------------------------------------------------------


def test_a_model_of_another_kind_gets_only_the_applicable_checks(tales):
    class Counts(nn.Module):
        """A bigram table: not a language model of harken, but trainable."""

        context = 16

        def __init__(self, vocab):
            super().__init__()
            self.table = nn.Embedding(vocab, vocab)

    class Learned(NextWordTask):
        def loss(self, model, batch, start=0):
            scores = model.table(batch.tokens).flatten(0, 1)
            return Loss(F.cross_entropy(scores, batch.targets.flatten(), reduction="sum"))

    prepared = trainer(tales)
    prepared.task.__class__ = Learned
    report = audit(Counts(prepared.task.data.vocab), prepared.task)
    assert {name for name, (outcome, _) in not_passed(report).items() if outcome == "does not apply"} == {*CLAIMS} - {
        "accumulation",
        "permutation",
    }
    assert report.checks[0].why == "Counts is not a language model"


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
    ("make", "missing", "not_applicable"),
    [
        (NoLengths, "lengths", {"padding", "batching"}),
        (NoMemory, "memory", {"padding", "cache", "batching"}),
        (NoStructure, "structure", {"packing"}),
    ],
)
def test_a_missing_parameter_of_forward_makes_a_check_not_applicable(make, missing, not_applicable):
    why = {check.name: check.why for check in audit(gpt(make)).checks if check.outcome != "passed"}
    assert why == {
        "accumulation": "there is no task",
        **dict.fromkeys(not_applicable, f"its forward has no parameter {missing}"),
    }


def test_a_context_of_one_token_makes_the_checks_not_applicable():
    assert {outcome for outcome, _ in not_passed(audit(gpt(context=1))).values()} == {"does not apply"}


def test_an_exception_in_the_model_fails_the_check_and_not_the_audit():
    class Breaks(GPT):
        def memory(self, B, capacity):
            raise IndexError("no\nroom")

    report = audit(gpt(Breaks))
    assert failures(gpt(Breaks)) == {"padding": None, "cache": None, "batching": None}
    assert {check.why for check in report.checks if check.outcome == "failed"} == {"IndexError: no room"}


def test_non_finite_weights_fail_in_their_layer():
    model = gpt()
    with torch.no_grad():
        model.stack.blocks[1].mlp.W_2.weight[0, 0] = math.nan
    report = audit(model)
    assert set(failures(model).values()) == {"stack.blocks.1.mlp.W_2"}
    assert {check.why for check in report.checks if check.outcome == "failed"} == {"its output is not finite"}
    json.dumps(report.facts(), allow_nan=False)


def test_a_float32_only_model_is_audited_in_float32():
    class Single(nn.Module):
        def forward(self, x):
            return torch.matmul(x, torch.eye(16))

    model = gpt()
    model.input_projection = Single()
    report = audit(model)
    assert report.passed
    assert report.checks[0].tolerance == 1e-4


# --- no side effects --------------------------------------------------------------------------------------------------


def test_the_model_the_task_and_the_rng_state_are_not_changed(tales):
    prepared = trainer(tales, model__kind="lstm", model__dropout=0.1)
    prepared.update(9)
    model, task = prepared.model, prepared.task
    before, grads = copy.deepcopy(model.state_dict()), [p.grad.clone() for p in model.parameters()]
    state, rng_state = {n: t.clone() for n, t in task.state().items()}, torch.get_rng_state()
    audit(model, task)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(
        p.dtype == torch.float32 and torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True)
    )
    assert state.keys() == task.state().keys()
    assert all(torch.equal(task.state()[n], t) for n, t in state.items())
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert not any(module._forward_hooks for module in model.modules())


def test_an_audit_restores_determinism(tales):
    prepared = trainer(tales)
    with restore_torch_state():
        torch.use_deterministic_algorithms(True)
        assert audit(prepared.model, prepared.task).passed
        assert torch.are_deterministic_algorithms_enabled()


def test_the_copy_uses_the_attention_backend_of_the_model():
    """The fused kernel recognizes CAUSAL by identity; a copy of it would be computed as a mask."""
    assert audit_module._copy(gpt()).structure is CAUSAL


def test_an_audit_works_in_inference_mode():
    with torch.inference_mode():
        assert audit(gpt()).passed


# --- summary ----------------------------------------------------------------------------------------------------------


def test_the_summary_is_one_line():
    correct, broken = gpt(), gpt()
    broken.structure = FULL
    assert str(audit(correct)) == (
        "6 checks passed (causal, gradient, padding, packing, cache, batching); accumulation does not apply"
    )
    skipped = [Check(name, "", "does not apply") for name in ("causal", "cache")]
    assert str(Audit((Check("padding", "", "passed"), *skipped))) == (
        "1 check passed (padding); causal, cache do not apply"
    )
    broken.norm = OverTheSequence(16)
    assert str(audit(broken)) == (
        "6 of 7 checks failed: causal, gradient, padding, cache, batching in stack.blocks.0.attention; packing in norm"
    )


def test_the_facts_have_claim_difference_and_layer():
    model = gpt()
    model.structure = FULL
    facts = audit(model).facts()
    assert facts.keys() == {"passed", "summary", "checks"}
    assert facts["passed"] is False
    first = facts["checks"][0]
    assert first["difference"] > first["tolerance"] == 1e-8
    assert (first["name"], first["layer"], first["claim"]) == ("causal", "stack.blocks.0.attention", CLAIMS["causal"])


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


def test_a_run_is_audited_by_folder_or_as_an_object(run):
    assert not_passed(harken.audit(run.path)) == not_passed(harken.audit(run)) == {}


def test_every_training_ends_with_its_audit(run):
    facts = json.loads((run.path / "harken.json").read_text())["audit"]
    assert facts["passed"] is True
    assert facts["summary"] == f"7 checks passed ({', '.join(CHECK_NAMES)})"
    assert [check["outcome"] for check in facts["checks"]] == ["passed"] * 7
    assert facts["summary"] in (run.path / "report.html").read_text()


def test_a_run_with_missing_data_is_audited_without_it(run):
    text = run.path.parent / "my.txt"
    text.rename(text.with_name("elsewhere.txt"))
    try:
        report = harken.audit(run.path)
    finally:
        text.with_name("elsewhere.txt").rename(text)
    assert not_passed(report) == {"accumulation": ("does not apply", None)}
    assert "my.txt" in report.checks[-1].why


def test_a_recipe_is_audited_with_initial_weights(tales):
    assert not_passed(harken.audit("char", settings={"data.path": str(tales), **TINY})) == {}


def test_data_is_audited_with_its_default_recipe(tales):
    report = harken.audit(tales, settings={"model.kind": "gru", "model.d": 16})
    assert not_passed(report) == {"packing": ("does not apply", None)}


def test_settings_are_refused_for_a_run(run):
    with pytest.raises(BadInput, match="settings cannot be changed in the audit of a run"):
        harken.audit(run.path, settings={"model.layers": 2})


def test_a_missing_path_is_refused():
    with pytest.raises(HarkenError, match="no such file"):
        harken.audit("runs/nowhere")
