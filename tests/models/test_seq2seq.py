"""What every encoder-decoder owes, whatever its family: alone or in a batch, whole or step by step, one or several."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.pairs.batch import PairBatch
from harken.decode.beam import Finder, Search
from harken.models import EncoderDecoder
from harken.models.conv_seq2seq import ConvShape
from harken.models.rnn_seq2seq import RNNAttentionShape, RNNSeq2SeqShape
from harken.models.seq2seq import TransformerShape
from harken.tasks.next_word import nll

VOCAB, L, LS = (13, 11), 6, 7
SHAPES = {
    "transformer": (TransformerShape, {"heads": 2, "hidden": 16}),
    "transformer-additive": (TransformerShape, {"heads": 2, "hidden": 16, "similarity": "additive"}),
    "transformer-lift": (TransformerShape, {"heads": 2, "hidden": 16, "lift": True}),
    "rnn-start": (RNNSeq2SeqShape, {"context": "start", "bidirectional": False}),
    "rnn-each": (RNNSeq2SeqShape, {"context": "each", "cell": "lstm"}),
    "rnn-attention": (RNNAttentionShape, {}),
    "rnn-attention-lstm": (RNNAttentionShape, {"cell": "lstm", "similarity": "bilinear", "layers": 3}),
    "rnn-attention-dot": (RNNAttentionShape, {"cell": "rnn", "similarity": "dot", "layers": 1}),
    "rnn-attention-forwards": (RNNAttentionShape, {"similarity": "scaled-dot", "bidirectional": False}),
    "conv": (ConvShape, {}),
    "conv-sinusoid": (ConvShape, {"positions": "sinusoid", "filter": 4, "encoder_layers": 3}),
    "conv-narrow": (ConvShape, {"filter": 1}),
}
every_family = pytest.mark.parametrize("family", SHAPES)
SOURCE_LENGTHS = torch.tensor([LS, 2, 5])


def build(family: str, **fields) -> EncoderDecoder:
    """A tiny model in double precision whose scores differ clearly."""
    shape, chosen = SHAPES[family]
    tiny = {"d": 8, "layers": 2, "shared": False, **chosen, **fields}
    model = shape(**{name: value for name, value in tiny.items() if name in shape.model_fields}).build(VOCAB)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape)
    return model.double().eval()


def sources(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB[0], shape, generator=torch.Generator().manual_seed(seed))


def targets(*shape: int, seed: int = 2) -> Tensor:
    return torch.randint(VOCAB[1], shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def scores(model: EncoderDecoder, tokens: Tensor, **told) -> Tensor:
    return model.scores(tokens, **told)


def step_by_step(model: EncoderDecoder, tokens: Tensor, memory, start: int = 0) -> Tensor:
    steps = range(start, start + tokens.shape[1])
    told = [scores(model, tokens[:, n : n + 1], pos=torch.tensor([t]), memory=memory) for n, t in enumerate(steps)]
    return torch.cat(told, 1)


@every_family
def test_there_is_a_score_for_each_word_after_each_token(family):
    assert scores(build(family), targets(3, L), source=sources(3, LS)).shape == (3, L, VOCAB[1])


@every_family
def test_a_row_alone_is_the_row_in_a_batch(family):
    model, tokens, source = build(family), targets(3, L), sources(3, LS)
    together = scores(model, tokens, source=source, source_lengths=SOURCE_LENGTHS)
    for row, (n, own) in enumerate(zip([L, 2, 4], SOURCE_LENGTHS.tolist(), strict=True)):
        alone = scores(model, tokens[row : row + 1, :n], source=source[row : row + 1, :own])
        torch.testing.assert_close(together[row, :n], alone[0])


@every_family
def test_step_by_step_equals_the_whole_pass(family):
    model, tokens, source = build(family), targets(3, L), sources(3, LS)
    with torch.no_grad():
        memory = model.memory(3, L, source, SOURCE_LENGTHS)
    whole = scores(model, tokens, source=source, source_lengths=SOURCE_LENGTHS)
    torch.testing.assert_close(step_by_step(model, tokens, memory), whole)


@every_family
def test_uneven_pieces_equal_the_whole_pass(family):
    model, tokens, source = build(family), targets(2, L), sources(2, LS)
    with torch.no_grad():
        memory = model.memory(2, L, source)
    pieces = [(0, 4), (4, 5), (5, L)]
    told = [scores(model, tokens[:, a:b], pos=torch.arange(a, b), memory=memory) for a, b in pieces]
    torch.testing.assert_close(torch.cat(told, 1), scores(model, tokens, source=source))


@every_family
def test_what_stands_behind_a_rows_end_is_not_remembered(family):
    """Rows of different lengths are read at once; then each goes on as if it had been alone."""
    model, tokens, source, ends = build(family), targets(3, L), sources(3, LS), torch.tensor([L - 1, 1, 3])
    with torch.no_grad():
        memory = model.memory(3, L, source)
    scores(model, tokens[:, :-1], pos=torch.arange(L - 1), memory=memory, lengths=ends)
    after = scores(model, tokens[:, -1:], pos=ends[:, None], memory=memory)
    for row, n in enumerate(ends.tolist()):
        alone = torch.cat([tokens[row : row + 1, :n], tokens[row : row + 1, -1:]], 1)
        torch.testing.assert_close(after[row, 0], scores(model, alone, source=source[row : row + 1])[0, -1])


@every_family
@pytest.mark.parametrize("lengths", [None, SOURCE_LENGTHS], ids=["full", "padded"])
def test_several_texts_of_a_source_are_as_the_source_said_again_for_each(family, lengths):
    """Nine of each: more texts than the source has words."""
    model, tokens, source, K = build(family), targets(27, L), sources(3, LS), 9
    with torch.no_grad():
        memory = model.memory(3 * K, L, source, lengths)
    again = None if lengths is None else lengths.repeat_interleave(K)
    apart = scores(model, tokens, source=source.repeat_interleave(K, 0), source_lengths=again)
    torch.testing.assert_close(step_by_step(model, tokens, memory), apart)


@every_family
def test_a_target_may_be_longer_than_its_source(family):
    model, tokens, source = build(family), targets(1, L), sources(1, 2)
    padded = F.pad(source, (0, L))
    told = scores(model, tokens, source=padded, source_lengths=torch.tensor([2]))
    torch.testing.assert_close(scores(model, tokens, source=source), told)


@every_family
def test_the_memory_follows_the_texts_that_are_kept(family):
    model, tokens, source, rows = build(family), targets(4, L), sources(2, LS), torch.tensor([1, 1, 2, 2])
    with torch.no_grad():
        memory = model.memory(4, L, source, SOURCE_LENGTHS[:2])
    step_by_step(model, tokens[:, :3], memory)
    memory.reorder(rows, 3)
    mixed = torch.cat([tokens[rows, :3], tokens[:, 3:]], 1)
    lengths = SOURCE_LENGTHS[:2].repeat_interleave(2)
    whole = scores(model, mixed, source=source.repeat_interleave(2, 0), source_lengths=lengths)
    torch.testing.assert_close(step_by_step(model, mixed[:, 3:], memory, 3), whole[:, 3:])


@every_family
@pytest.mark.parametrize("lengths", [None, SOURCE_LENGTHS], ids=["full", "padded"])
def test_some_sources_go_on_alone_with_all_their_texts(family, lengths):
    model, tokens, source = build(family), targets(6, L), sources(3, LS)
    with torch.no_grad():
        memory = model.memory(6, L, source, lengths)
    step_by_step(model, tokens[:, :2], memory)
    fewer = memory.select(torch.tensor([0, 2]))
    told = step_by_step(model, tokens[[0, 1, 4, 5], 2:], fewer, 2)
    torch.testing.assert_close(told, step_by_step(model, tokens[:, 2:], memory, 2)[[0, 1, 4, 5]])


@every_family
def test_a_later_target_word_changes_nothing_before_it(family):
    model, tokens, source = build(family), targets(2, L), sources(2, LS)
    before = scores(model, tokens, source=source)
    for place in range(1, L):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % VOCAB[1]
        after = scores(model, changed, source=source)
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.equal(after[:, place:], before[:, place:])


@every_family
def test_every_source_word_reaches_every_target_place_and_padding_reaches_none(family):
    model, tokens, source = build(family), targets(3, L), sources(3, LS)
    read = []
    model.source_embed.register_forward_hook(lambda *call: read.append(call[-1]))
    h = model(tokens, source=source, source_lengths=SOURCE_LENGTHS)
    for place in range(L):
        (reached,) = torch.autograd.grad(h[:, place].square().sum(), read[0], retain_graph=True)
        assert torch.equal(reached.abs().sum(-1) > 0, torch.arange(LS) < SOURCE_LENGTHS[:, None])


@every_family
def test_every_parameter_gets_a_gradient(family):
    model = build(family)
    F.cross_entropy(model.scores(targets(3, L), source=sources(3, LS)).flatten(0, 1), targets(3 * L)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@every_family
@pytest.mark.parametrize("hidden", ["dropout", "word_dropout"])
def test_dropout_is_of_the_training_alone(family, hidden):
    model, told = build(family, **{hidden: 0.5}), {"source": sources(2, LS)}
    assert torch.equal(scores(model, targets(2, L), **told), scores(model, targets(2, L), **told))
    model.train()
    assert not torch.equal(scores(model, targets(2, L), **told), scores(model, targets(2, L), **told))


@every_family
def test_other_weights_of_the_same_names_give_the_same_numbers(family):
    model, other, told = build(family), build(family), {"source": sources(2, LS)}
    assert not torch.equal(scores(other, targets(2, L), **told), scores(model, targets(2, L), **told))
    other.load_state_dict(model.state_dict())
    assert torch.equal(scores(other, targets(2, L), **told), scores(model, targets(2, L), **told))


@every_family
def test_shared_words_need_one_vocabulary(family):
    with pytest.raises(ValueError, match=r"set data\.joint=true, or model\.shared=false"):
        build(family, shared=True)


@every_family
def test_a_decoder_without_a_source_is_refused(family):
    with pytest.raises(ValueError, match="is told a source, or a memory that has read one"):
        build(family)(targets(1, L))


@every_family
def test_a_beam_of_one_is_greedy_without_a_memory(family):
    model = build(family)
    asked = [[1, 2, 3, 12], [4, 12], [5, 6, 7, 8, 9, 12], [12]]
    for source, found in zip(asked, Finder(model).search(asked, Search(beam=1)), strict=True):
        text: list[int] = []
        while len(text) < 2 * len(source) + 10:
            told = scores(model, torch.tensor([[model.edge, *text]]), source=torch.tensor([source]))
            if (chosen := int(told[0, -1].argmax())) == model.edge:
                break
            text.append(chosen)
        assert found[0].tokens == text


@every_family
def test_a_beam_finds_for_each_source_what_it_finds_for_it_alone(family):
    model, how = build(family), Search(beam=4, alternatives=4, longest=6)
    asked = [[1, 2, 3, 12], [4, 12], [5, 6, 7, 8, 9, 12], [12]]
    together = Finder(model).search(asked, how)
    for source, found in zip(asked, together, strict=True):
        (alone,) = Finder(model).search([source], how)
        assert [answer.tokens for answer in found] == [answer.tokens for answer in alone]


@every_family
def test_the_loss_is_that_of_the_scores_with_a_bias_too(family):
    model, source, tokens, answers = build(family), sources(3, LS), targets(3, L), targets(3, L, seed=3)
    model.head_bias = torch.nn.Parameter(torch.linspace(-2, 2, VOCAB[1]).double())
    batch = PairBatch(tokens, answers, source=source, lengths=SOURCE_LENGTHS, index=torch.arange(3))
    total, _ = nll(model, batch)
    told = model.scores(tokens, source=source, source_lengths=SOURCE_LENGTHS)
    wanted = F.cross_entropy(told.flatten(0, 1), answers.flatten(), reduction="sum")
    torch.testing.assert_close(total, wanted)
    mine, theirs = (torch.autograd.grad(loss, list(model.parameters())) for loss in (total, wanted))
    torch.testing.assert_close(mine, theirs)


# --- learning ---------------------------------------------------------------------------------------------------------

LEARNERS = {
    "transformer": (TransformerShape(size="tiny", positions="rotary"), 3e-3),
    "rnn": (RNNSeq2SeqShape(size="tiny"), 1e-2),
    "rnn-attention": (RNNAttentionShape(size="tiny"), 1e-2),
    "conv": (ConvShape(size="tiny"), 5e-3),
}


@pytest.mark.parametrize("family", LEARNERS)
def test_five_letters_are_copied_after_seconds_of_training(family):
    shape, lr = LEARNERS[family]
    model = shape.build((9, 9))
    rule = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)
    loss = torch.tensor(0.0)
    for _ in range(200):
        letters, edge = torch.randint(8, (64, 5)), torch.full((64, 1), 8)
        tokens, answers = torch.cat([edge, letters], 1), torch.cat([letters, edge], 1)
        loss = F.cross_entropy(model.scores(tokens, source=answers).flatten(0, 1), answers.flatten())
        rule.zero_grad()
        loss.backward()
        rule.step()
    assert float(loss.detach()) < 0.25  # drawn at random: 1.7


def test_a_lift_is_one_linear_layer_for_each_side_after_embedding_and_positions():
    plain, lifted = build("transformer"), build("transformer", input_projection=True)
    new = {f"{side}.{part}" for side in ("lift", "source_lift") for part in ("weight", "bias")}
    assert lifted.state_dict().keys() - plain.state_dict().keys() == new
    same = {"source": sources(2, LS)}
    plain.load_state_dict(lifted.state_dict(), strict=False)
    with torch.no_grad():
        for lift in (lifted.lift, lifted.source_lift):
            assert not torch.allclose(scores(lifted, targets(2, L), **same), scores(plain, targets(2, L), **same))
            lift.weight.copy_(torch.eye(8))
            lift.bias.zero_()
    torch.testing.assert_close(scores(lifted, targets(2, L), **same), scores(plain, targets(2, L), **same))
