"""Marian and BART: scores and beam search equal transformers with the same random weights."""

import json

import pytest
import tokenizers
import torch

pytest.importorskip("transformers")
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

import harken
from harken import recipe as recipes
from harken import run_folder as runs
from harken.bridge import weight_mapping
from harken.bridge.ctranslate2 import export as export_ctranslate2
from harken.bridge.export import export
from harken.bridge.families import find_mapping
from harken.bridge.folder import ModelFolder
from harken.bridge.importer import import_model
from harken.decode.beam import BeamSearch, SearchSettings
from harken.errors import BadInput
from harken.inference.run import build_model

pytestmark = pytest.mark.oracle
VOCAB, EOS, PAD, LIMIT = 90, 3, 89, 1e-5
BODY = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "forced_eos_token_id": None,
}
MARIAN = {**BODY, "decoder_vocab_size": VOCAB, "decoder_start_token_id": PAD, "activation_function": "swish"}
MODELS = {
    "marian": (MarianMTModel, MarianConfig(**MARIAN, scale_embedding=True)),
    "marian-unscaled": (MarianMTModel, MarianConfig(**{**MARIAN, "activation_function": "relu"})),
    "bart": (BartForConditionalGeneration, BartConfig(**BODY, bos_token_id=0, decoder_start_token_id=EOS)),
}


def randomize(model):
    """Random weights with which every layer matters; sinusoidal positions are unchanged."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), ("bias", model.final_logits_bias)]:
            if p.requires_grad or name == "bias":
                size = 0.1 if p.dim() == 1 or name == "bias" else 0.3 if "shared" in name else 0.15
                p.copy_(torch.randn(p.shape) * size + ("norm.weight" in name))
    return model.eval()


def import_weights(path):
    source = ModelFolder(path)
    mapping = find_mapping(source)
    weight_map = weight_mapping.match_tensors(source, mapping)
    recipe = recipes.resolve(("test", mapping.settings()))
    with torch.device("meta"):
        empty = recipe.build((VOCAB + 1, VOCAB + 1))
    weight_mapping.check_shapes(source, weight_map, empty)
    return build_model(recipe, (VOCAB + 1, VOCAB + 1), weight_mapping.read_weights(source, weight_map, empty)).eval()


@pytest.fixture(params=list(MODELS))
def models(request, tmp_path):
    model_class, config = MODELS[request.param]
    reference = randomize(model_class(config))
    reference.save_pretrained(tmp_path)
    return reference, import_weights(tmp_path)


def sources(*lengths):
    """Sources with their end token and padding, and with our edge token."""
    sentences = [torch.randint(5, VOCAB - 1, (n,)).tolist() for n in lengths]
    padded = torch.full((len(sentences), max(lengths) + 1), PAD)
    for row, ids in zip(padded, sentences, strict=True):
        row[: len(ids) + 1] = torch.tensor([*ids, EOS])
    return padded, (padded != PAD).long(), [[*ids, VOCAB] for ids in sentences]


@torch.no_grad()
def test_scores_are_those_of_transformers(models):
    reference, model = models
    input_ids, mask, sources_ = sources(9, 4)
    target = torch.randint(5, VOCAB - 1, (2, 12))
    start = torch.full((2, 1), reference.config.decoder_start_token_id)
    expected = reference(
        input_ids, attention_mask=mask, decoder_input_ids=torch.cat([start, target], 1)
    ).logits.log_softmax(-1)
    lengths = torch.tensor(list(map(len, sources_)))
    source = input_ids.where(input_ids != EOS, VOCAB)
    log_p = model.scores(torch.cat([start * 0 + VOCAB, target], 1), source=source, source_lengths=lengths).log_softmax(
        -1
    )
    assert expected.exp().max() > 0.1
    columns = [i for i in range(VOCAB) if i != EOS]
    assert (log_p[..., columns] - expected[..., columns]).abs().max() <= LIMIT
    assert (log_p[..., VOCAB] - expected[..., EOS]).abs().max() <= LIMIT
    assert log_p[..., EOS].exp().max() == 0


@torch.no_grad()
@pytest.mark.parametrize(("beam", "no_repeat"), [(1, 0), (4, 2)])
def test_beam_search_gives_the_targets_of_transformers(models, beam, no_repeat):
    reference, model = models
    input_ids, mask, sources_ = sources(9, 20, 1)
    options = {"num_beams": beam, "no_repeat_ngram_size": no_repeat, "bad_words_ids": [[PAD]]}
    output_ids = reference.generate(input_ids, attention_mask=mask, do_sample=False, max_new_tokens=40, **options)
    answers_by_row = BeamSearch(model).search(
        sources_, SearchSettings(beam=beam, max_new_tokens=40, no_repeat=no_repeat), banned_ids=[PAD]
    )
    for row, answers in zip(output_ids.tolist(), answers_by_row, strict=True):
        assert answers[0].tokens == (row[1:][: row[1:].index(EOS)] if EOS in row[1:] else row[1:])
    if no_repeat:  # otherwise random weights soon repeat one token
        assert len({i for row in output_ids.tolist() for i in row}) >= 12


@pytest.mark.parametrize("name", ["marian", "bart"])
def test_a_folder_becomes_a_run_that_translates(name, tales, tmp_path):
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        [tales.read_text()], 380, special_tokens=["<s>", "<pad>", "</s>"], show_progress=False
    )
    template = "$A </s>" if name == "marian" else "<s> $A </s>"
    special_ids = [(mark, tokenizer.token_to_id(mark)) for mark in ("<s>", "</s>")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=special_ids)
    model_class, config = MODELS[name]
    fields = {
        **config.to_dict(),
        "vocab_size": tokenizer.get_vocab_size(),
        "decoder_vocab_size": tokenizer.get_vocab_size(),
    }
    fields |= {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1 if name == "marian" else 2}
    reference = randomize(model_class(type(config)(**fields)))
    reference.save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    import_model(tmp_path / "theirs", tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["tokenizer"]["passed"]
    assert certificate["logits"]["passed"]
    assert certificate["greedy"]["passed"]
    names = torch.tensor([tokenizer.encode("Tom had a hat").ids])
    template = [[i] for i in (1, tokenizer.token_to_id("Ċ"), *([0] if name == "marian" else []))]
    with torch.no_grad():
        output_ids = reference.generate(names, num_beams=4, do_sample=False, max_new_tokens=20, bad_words_ids=template)
    run = harken.load(tmp_path / "run", device="cpu")
    assert run.translate("Tom had a hat", max_new_tokens=20) == tokenizer.decode(
        output_ids[0].tolist(), skip_special_tokens=True
    )
    assert export(run, tmp_path / "back")["passed"]
    original, exported = (runs.read_tensors(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    equal = {
        key for key, tensor in exported.items() if key in original and tensor[2:].equal(original[key][2:])
    }  # the first 2 rows are not positions
    assert equal == exported.keys()
    assert not [key for key in original.keys() - exported.keys() if "embed_" not in key and key != "lm_head.weight"]
    exported_config = json.loads((tmp_path / "back" / "config.json").read_text())
    names = ("vocab_size", "eos_token_id", "pad_token_id", "decoder_start_token_id", "scale_embedding")
    assert {key: exported_config[key] for key in names} == {key: getattr(reference.config, key) for key in names}
    certificate = export_ctranslate2(run, tmp_path / "engine")  # its source, target and output tables are separate
    assert all(certificate[part]["passed"] for part in ("log_probabilities", "greedy", "tokenizer"))
    config = json.loads((tmp_path / "engine" / "config.json").read_text())
    start = "<pad>" if name == "marian" else "</s>"
    assert (config["decoder_start_token"], config["eos_token"]) == (start, "</s>")
    with torch.no_grad():
        run.model.embed.weight[5] += 1
    if name == "marian":  # its three embedding tables may differ after training
        with pytest.raises(BadInput, match="embeddings differ; transformers has one table for all"):
            export(run, tmp_path / "apart")


def test_different_heads_on_both_sides_are_refused(tmp_path):
    MarianMTModel(MarianConfig(**{**MARIAN, "decoder_attention_heads": 2})).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="4 heads in the encoder and 2 in the decoder"):
        import_weights(tmp_path)
