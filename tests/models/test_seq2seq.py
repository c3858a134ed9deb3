"""Contract of encoder-decoders: single or in a batch, in one pass or step by step, one or several texts per source."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.pairs.batch import PairBatch
from harken.decode.beam import BeamSearch, SearchSettings
from harken.models import EncoderDecoder
from harken.models.conv_seq2seq import ConvSeq2SeqSettings
from harken.models.rnn_seq2seq import RNNAttentionSettings, RNNSeq2SeqSettings
from harken.models.seq2seq import TransformerSettings
from harken.tasks.next_word import nll

VOCAB, L, LS = (13, 11), 6, 7
CASES = {
    "transformer": (TransformerSettings, {"heads": 2, "d_ff": 16}),
    "transformer-additive": (TransformerSettings, {"heads": 2, "d_ff": 16, "similarity": "additive"}),
    "transformer-projection": (TransformerSettings, {"heads": 2, "d_ff": 16, "input_projection": True}),
    "rnn-start": (RNNSeq2SeqSettings, {"context": "start", "bidirectional": False}),
    "rnn-each": (RNNSeq2SeqSettings, {"context": "each", "cell": "lstm"}),
    "rnn-attention": (RNNAttentionSettings, {}),
    "rnn-attention-lstm": (RNNAttentionSettings, {"cell": "lstm", "similarity": "bilinear", "layers": 3}),
    "rnn-attention-dot": (RNNAttentionSettings, {"cell": "rnn", "similarity": "dot", "layers": 1}),
    "rnn-attention-forwards": (RNNAttentionSettings, {"similarity": "scaled-dot", "bidirectional": False}),
    "conv": (ConvSeq2SeqSettings, {}),
    "conv-sinusoid": (ConvSeq2SeqSettings, {"positions": "sinusoid", "kernel_size": 4, "encoder_layers": 3}),
    "conv-narrow": (ConvSeq2SeqSettings, {"kernel_size": 1}),
}
every_family = pytest.mark.parametrize("family", CASES)
SOURCE_LENGTHS = torch.tensor([LS, 2, 5])


def build(family: str, **fields) -> EncoderDecoder:
    """A tiny model in float64 with large weights."""
    settings, fields_of_case = CASES[family]
    tiny = {"d": 8, "layers": 2, "share_embeddings": False, **fields_of_case, **fields}
    model = settings(**{name: value for name, value in tiny.items() if name in settings.model_fields}).build(VOCAB)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape)
    return model.double().eval()


def sources(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB[0], shape, generator=torch.Generator().manual_seed(seed))


def targets(*shape: int, seed: int = 2) -> Tensor:
    return torch.randint(VOCAB[1], shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def scores(model: EncoderDecoder, tokens: Tensor, **inputs) -> Tensor:
    return model.scores(tokens, **inputs)


def step_by_step(model: EncoderDecoder, tokens: Tensor, memory, start: int = 0) -> Tensor:
    steps = range(start, start + tokens.shape[1])
    outputs = [scores(model, tokens[:, n : n + 1], pos=torch.tensor([t]), memory=memory) for n, t in enumerate(steps)]
    return torch.cat(outputs, 1)


@every_family
def test_every_position_has_a_score_for_each_token_of_the_vocabulary(family):
    assert scores(build(family), targets(3, L), source=sources(3, LS)).shape == (3, L, VOCAB[1])


@every_family
def test_padded_rows_equal_single_rows(family):
    model, tokens, source = build(family), targets(3, L), sources(3, LS)
    batch_scores = scores(model, tokens, source=source, source_lengths=SOURCE_LENGTHS)
    for row, (n, source_length) in enumerate(zip([L, 2, 4], SOURCE_LENGTHS.tolist(), strict=True)):
        single = scores(model, tokens[row : row + 1, :n], source=source[row : row + 1, :source_length])
        torch.testing.assert_close(batch_scores[row, :n], single[0])


@every_family
def test_decoding_step_by_step_equals_one_pass(family):
    model, tokens, source = build(family), targets(3, L), sources(3, LS)
    with torch.no_grad():
        memory = model.memory(3, L, source, SOURCE_LENGTHS)
    one_pass = scores(model, tokens, source=source, source_lengths=SOURCE_LENGTHS)
    torch.testing.assert_close(step_by_step(model, tokens, memory), one_pass)


@every_family
def test_decoding_in_uneven_pieces_equals_one_pass(family):
    model, tokens, source = build(family), targets(2, L), sources(2, LS)
    with torch.no_grad():
        memory = model.memory(2, L, source)
    pieces = [(0, 4), (4, 5), (5, L)]
    outputs = [scores(model, tokens[:, a:b], pos=torch.arange(a, b), memory=memory) for a, b in pieces]
    torch.testing.assert_close(torch.cat(outputs, 1), scores(model, tokens, source=source))


@every_family
def test_padding_is_not_stored_in_the_memory(family):
    """Rows of different lengths are read in one batch; then each continues like a single row."""
    model, tokens, source, ends = build(family), targets(3, L), sources(3, LS), torch.tensor([L - 1, 1, 3])
    with torch.no_grad():
        memory = model.memory(3, L, source)
    scores(model, tokens[:, :-1], pos=torch.arange(L - 1), memory=memory, lengths=ends)
    after = scores(model, tokens[:, -1:], pos=ends[:, None], memory=memory)
    for row, n in enumerate(ends.tolist()):
        single = torch.cat([tokens[row : row + 1, :n], tokens[row : row + 1, -1:]], 1)
        torch.testing.assert_close(after[row, 0], scores(model, single, source=source[row : row + 1])[0, -1])


@every_family
@pytest.mark.parametrize("lengths", [None, SOURCE_LENGTHS], ids=["full", "padded"])
def test_several_texts_of_a_source_equal_a_repeated_source(family, lengths):
    """Nine texts per source: more than a source has tokens."""
    model, tokens, source, K = build(family), targets(27, L), sources(3, LS), 9
    with torch.no_grad():
        memory = model.memory(3 * K, L, source, lengths)
    repeated_lengths = None if lengths is None else lengths.repeat_interleave(K)
    repeated = scores(model, tokens, source=source.repeat_interleave(K, 0), source_lengths=repeated_lengths)
    torch.testing.assert_close(step_by_step(model, tokens, memory), repeated)


@every_family
def test_a_target_may_be_longer_than_its_source(family):
    model, tokens, source = build(family), targets(1, L), sources(1, 2)
    padded = F.pad(source, (0, L))
    expected = scores(model, tokens, source=padded, source_lengths=torch.tensor([2]))
    torch.testing.assert_close(scores(model, tokens, source=source), expected)


@every_family
def test_reorder_selects_the_texts_of_the_memory(family):
    model, tokens, source, rows = build(family), targets(4, L), sources(2, LS), torch.tensor([1, 1, 2, 2])
    with torch.no_grad():
        memory = model.memory(4, L, source, SOURCE_LENGTHS[:2])
    step_by_step(model, tokens[:, :3], memory)
    memory.reorder(rows, 3)
    mixed = torch.cat([tokens[rows, :3], tokens[:, 3:]], 1)
    lengths = SOURCE_LENGTHS[:2].repeat_interleave(2)
    one_pass = scores(model, mixed, source=source.repeat_interleave(2, 0), source_lengths=lengths)
    torch.testing.assert_close(step_by_step(model, mixed[:, 3:], memory, 3), one_pass[:, 3:])


@every_family
@pytest.mark.parametrize("lengths", [None, SOURCE_LENGTHS], ids=["full", "padded"])
def test_select_continues_with_a_subset_of_the_sources(family, lengths):
    model, tokens, source = build(family), targets(6, L), sources(3, LS)
    with torch.no_grad():
        memory = model.memory(6, L, source, lengths)
    step_by_step(model, tokens[:, :2], memory)
    selected = memory.select(torch.tensor([0, 2]))
    outputs = step_by_step(model, tokens[[0, 1, 4, 5], 2:], selected, 2)
    torch.testing.assert_close(outputs, step_by_step(model, tokens[:, 2:], memory, 2)[[0, 1, 4, 5]])


@every_family
def test_a_later_target_token_has_no_effect_on_earlier_scores(family):
    model, tokens, source = build(family), targets(2, L), sources(2, LS)
    before = scores(model, tokens, source=source)
    for n in range(1, L):
        changed = tokens.clone()
        changed[:, n] = (changed[:, n] + 1) % VOCAB[1]
        after = scores(model, changed, source=source)
        assert torch.equal(after[:, :n], before[:, :n])
        assert not torch.equal(after[:, n:], before[:, n:])


@every_family
def test_every_target_position_depends_on_all_source_tokens_and_no_padding(family):
    model, tokens, source = build(family), targets(3, L), sources(3, LS)
    embedded = []
    model.source_embed.register_forward_hook(lambda *call: embedded.append(call[-1]))
    h = model(tokens, source=source, source_lengths=SOURCE_LENGTHS)
    for n in range(L):
        (grad,) = torch.autograd.grad(h[:, n].square().sum(), embedded[0], retain_graph=True)
        assert torch.equal(grad.abs().sum(-1) > 0, torch.arange(LS) < SOURCE_LENGTHS[:, None])


@every_family
def test_every_parameter_gets_a_gradient(family):
    model = build(family)
    F.cross_entropy(model.scores(targets(3, L), source=sources(3, LS)).flatten(0, 1), targets(3 * L)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@every_family
@pytest.mark.parametrize("setting", ["dropout", "word_dropout"])
def test_dropout_is_active_in_training_only(family, setting):
    model, inputs = build(family, **{setting: 0.5}), {"source": sources(2, LS)}
    assert torch.equal(scores(model, targets(2, L), **inputs), scores(model, targets(2, L), **inputs))
    model.train()
    assert not torch.equal(scores(model, targets(2, L), **inputs), scores(model, targets(2, L), **inputs))


@every_family
def test_loaded_weights_give_the_same_scores(family):
    model, copy, inputs = build(family), build(family), {"source": sources(2, LS)}
    assert not torch.equal(scores(copy, targets(2, L), **inputs), scores(model, targets(2, L), **inputs))
    copy.load_state_dict(model.state_dict())
    assert torch.equal(scores(copy, targets(2, L), **inputs), scores(model, targets(2, L), **inputs))


@every_family
def test_shared_embeddings_need_one_vocabulary(family):
    with pytest.raises(ValueError, match=r"set data\.shared_vocab=true or model\.share_embeddings=false"):
        build(family, share_embeddings=True)


@every_family
def test_a_missing_source_is_reported(family):
    with pytest.raises(ValueError, match=r"^an encoder-decoder needs a source, or a memory that contains"):
        build(family)(targets(1, L))


@every_family
def test_a_beam_of_one_equals_greedy_decoding_without_a_memory(family):
    model = build(family)
    source_ids = [[1, 2, 3, 12], [4, 12], [5, 6, 7, 8, 9, 12], [12]]
    for source, answers in zip(source_ids, BeamSearch(model).search(source_ids, SearchSettings(beam=1)), strict=True):
        text: list[int] = []
        while len(text) < 2 * len(source) + 10:
            logits = scores(model, torch.tensor([[model.edge, *text]]), source=torch.tensor([source]))
            if (token := int(logits[0, -1].argmax())) == model.edge:
                break
            text.append(token)
        assert answers[0].tokens == text


@every_family
def test_beam_search_of_a_batch_equals_single_searches(family):
    model, search_settings = build(family), SearchSettings(beam=4, alternatives=4, max_new_tokens=6)
    source_ids = [[1, 2, 3, 12], [4, 12], [5, 6, 7, 8, 9, 12], [12]]
    batch_answers = BeamSearch(model).search(source_ids, search_settings)
    for source, answers in zip(source_ids, batch_answers, strict=True):
        (single,) = BeamSearch(model).search([source], search_settings)
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in single]


@every_family
def test_the_loss_includes_the_head_bias(family):
    model, source, tokens, answers = build(family), sources(3, LS), targets(3, L), targets(3, L, seed=3)
    model.head_bias = torch.nn.Parameter(torch.linspace(-2, 2, VOCAB[1]).double())
    batch = PairBatch(tokens, answers, source=source, lengths=SOURCE_LENGTHS, index=torch.arange(3))
    total, _ = nll(model, batch)
    logits = model.scores(tokens, source=source, source_lengths=SOURCE_LENGTHS)
    expected = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum")
    torch.testing.assert_close(total, expected)
    grads, expected_grads = (torch.autograd.grad(loss, list(model.parameters())) for loss in (total, expected))
    torch.testing.assert_close(grads, expected_grads)


# --- learning ---------------------------------------------------------------------------------------------------------

LEARNERS = {
    "transformer": (TransformerSettings(size="tiny", positions="rotary"), 3e-3),
    "rnn": (RNNSeq2SeqSettings(size="tiny"), 1e-2),
    "rnn-attention": (RNNAttentionSettings(size="tiny"), 1e-2),
    "conv": (ConvSeq2SeqSettings(size="tiny"), 5e-3),
}


@pytest.mark.parametrize("family", LEARNERS)
def test_copying_five_letters_is_learned_in_200_steps(family):
    settings, lr = LEARNERS[family]
    model = settings.build((9, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)
    loss = torch.tensor(0.0)
    for _ in range(200):
        letters, edge = torch.randint(8, (64, 5)), torch.full((64, 1), 8)
        tokens, answers = torch.cat([edge, letters], 1), torch.cat([letters, edge], 1)
        loss = F.cross_entropy(model.scores(tokens, source=answers).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.25  # uniform: 1.7


def test_the_input_projection_is_a_linear_layer_on_each_side():
    plain, projected = build("transformer"), build("transformer", input_projection=True)
    names = {f"{side}.{part}" for side in ("input_projection", "source_projection") for part in ("weight", "bias")}
    assert projected.state_dict().keys() - plain.state_dict().keys() == names
    inputs = {"source": sources(2, LS)}
    plain.load_state_dict(projected.state_dict(), strict=False)
    with torch.no_grad():
        for layer in (projected.input_projection, projected.source_projection):
            assert not torch.allclose(
                scores(projected, targets(2, L), **inputs), scores(plain, targets(2, L), **inputs)
            )
            layer.weight.copy_(torch.eye(8))
            layer.bias.zero_()
    torch.testing.assert_close(scores(projected, targets(2, L), **inputs), scores(plain, targets(2, L), **inputs))
