"""A ViT with a text decoder: causal, equal with and without a memory, and equal to the decoder of PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn

from harken.decode.beam import BeamSearch, SearchSettings
from harken.models.caption import CaptionerSettings
from harken.settings import CaptionInputs, ImageShape

VOCAB = 19
INPUTS = CaptionInputs(ImageShape(12, 3, 0), (0.3, 0.4, 0.5), (0.2, 0.2, 0.3), VOCAB)


def build(seed=0, **fields):
    torch.manual_seed(seed)
    return CaptionerSettings(**{"d": 16, "layers": 1, "heads": 2, "decoder_layers": 2, "patch": 4, **fields}).build(
        INPUTS
    )


def perturbed(**fields):
    model = build(**fields).double().eval()
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(n))
    return model


def random_batch(B=3, L=6, seed=1):
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (B, 3, 12, 12), generator=rng, dtype=torch.uint8)
    return images, torch.randint(VOCAB, (B, L), generator=rng)


def test_a_row_of_bytes_is_the_same_image():
    model, (images, tokens) = perturbed(), random_batch()
    rows = images.flatten(1).long()
    torch.testing.assert_close(model(tokens, source=rows), model(tokens, source=images))
    wide = F.pad(rows, (0, 9), value=256)  # padded as by beam search on a GPU
    lengths = torch.full((3,), rows.shape[1])
    torch.testing.assert_close(model(tokens, source=wide, source_lengths=lengths), model(tokens, source=images))


def test_a_caption_depends_on_its_own_image_only():
    model, (images, tokens) = perturbed(), random_batch()
    h = model(tokens, source=images)
    changed = images.clone()
    changed[1] = 255 - changed[1]
    h_changed = model(tokens, source=changed)
    torch.testing.assert_close(h_changed[[0, 2]], h[[0, 2]])
    assert (h_changed[1] - h[1]).abs().max() > 0.01


def test_the_decoder_is_causal_and_decoding_with_a_memory_equals_one_pass():
    model, (images, tokens) = perturbed(), random_batch()
    h = model(tokens, source=images)
    later = tokens.clone()
    later[:, 4:] = (later[:, 4:] + 1) % VOCAB
    torch.testing.assert_close(model(later, source=images)[:, :4], h[:, :4])
    memory = model.memory(3, 6, images)
    steps = [model(tokens[:, t : t + 1], pos=torch.tensor([t]), memory=memory) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), h)


def test_the_decoder_equals_the_decoder_of_pytorch():
    model, (images, tokens) = perturbed(), random_batch()
    layer = nn.TransformerDecoderLayer(16, 2, 64, 0.0, "gelu", 1e-6, True, True, dtype=torch.float64)
    reference = nn.TransformerDecoder(layer, 2).eval()
    with torch.no_grad():
        for block, layer in zip(model.stack.blocks, reference.layers, strict=True):
            for ours, torch_module in ((block.attention, layer.self_attn), (block.cross, layer.multihead_attn)):
                torch_module.in_proj_weight.copy_(torch.cat([w.weight for w in (ours.W_q, ours.W_k, ours.W_v)]))
                torch_module.in_proj_bias.copy_(torch.cat([w.bias for w in (ours.W_q, ours.W_k, ours.W_v)]))
                torch_module.out_proj.load_state_dict(ours.W_o.state_dict())
            pairs = [(layer.linear1, block.mlp.W_1), (layer.linear2, block.mlp.W_2)]
            pairs += [(layer.norm1, block.attention_sublayer.norm), (layer.norm2, block.cross_sublayer.norm)]
            pairs += [(layer.norm3, block.mlp_sublayer.norm)]
            for target, module in pairs:
                target.load_state_dict(module.state_dict())
        mean, std = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (INPUTS.mean, INPUTS.std))
        states = model.encoder((images.double() / 255 - mean) / std)
        x = model.stack.positions.add(model.embed(tokens) * 4.0, torch.arange(6))
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        expected = model.norm(reference(x, states, tgt_mask=mask))
    torch.testing.assert_close(model(tokens, source=images), expected, rtol=1e-5, atol=1e-6)  # mean and std are float32


def test_every_parameter_gets_a_gradient_and_the_initial_loss_is_uniform():
    model, (images, tokens) = build(), random_batch()
    loss = F.cross_entropy(model.scores(tokens, source=images).flatten(0, 1), tokens.flatten())
    assert abs(loss.item() - torch.tensor(VOCAB).log().item()) < 0.5
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_beam_search_returns_the_memorized_caption_of_each_image():
    model, (images, tokens) = build(d=32), random_batch(B=4, L=4)
    edge = VOCAB - 1
    tokens = tokens % (VOCAB - 1)
    decoder_inputs = torch.cat([torch.full((4, 1), edge), tokens], 1)
    targets = torch.cat([tokens, torch.full((4, 1), edge)], 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model.scores(decoder_inputs, source=images).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    captions = BeamSearch(model.eval()).search(images.flatten(1).tolist(), SearchSettings(beam=2, max_new_tokens=8))
    assert [best[0].tokens for best in captions] == tokens.tolist()


def test_word_dropout_is_active_in_training_only():
    (images, tokens), plain, with_dropout = random_batch(), build(), build(word_dropout=0.9)
    assert not torch.equal(plain(tokens, source=images), with_dropout(tokens, source=images))
    torch.testing.assert_close(plain.eval()(tokens, source=images), with_dropout.eval()(tokens, source=images))
