"""Marian and BART: with the same random weights ours and transformers' give the same scores and write the same."""

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
from harken.bridge.export import export
from harken.bridge.folder import Folder
from harken.bridge.importer import bring
from harken.decode.beam import Finder, Search
from harken.errors import BadInput
from harken.inference.run import fitted

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
    "marian-quiet": (MarianMTModel, MarianConfig(**{**MARIAN, "activation_function": "relu"})),
    "bart": (BartForConditionalGeneration, BartConfig(**BODY, bos_token_id=0, decoder_start_token_id=EOS)),
}


def loud(model):
    """Random weights that let every layer matter; places that are computed stay as they are."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in [*model.named_parameters(), ("bias", model.final_logits_bias)]:
            if p.requires_grad or name == "bias":
                size = 0.1 if p.dim() == 1 or name == "bias" else 0.3 if "shared" in name else 0.15
                p.copy_(torch.randn(p.shape) * size + ("norm.weight" in name))
    return model.eval()


def ours(path):
    source = Folder(path)
    config = weight_mapping.find(source)
    names = weight_mapping.matched(source, config)
    recipe = recipes.resolve(("test", config.settings()))
    with torch.device("meta"):
        empty = recipe.build((VOCAB + 1, VOCAB + 1))
    weight_mapping.fitted(source, names, empty)
    return fitted(recipe, (VOCAB + 1, VOCAB + 1), weight_mapping.read(source, names, empty)).eval()


@pytest.fixture(params=list(MODELS))
def both(request, tmp_path):
    make, config = MODELS[request.param]
    theirs = loud(make(config))
    theirs.save_pretrained(tmp_path)
    return theirs, ours(tmp_path)


def sources(*lengths):
    """Some sources as they write them and as we do: behind the words stands the end, or our edge."""
    words = [torch.randint(5, VOCAB - 1, (n,)).tolist() for n in lengths]
    theirs = torch.full((len(words), max(lengths) + 1), PAD)
    for row, some in zip(theirs, words, strict=True):
        row[: len(some) + 1] = torch.tensor([*some, EOS])
    return theirs, (theirs != PAD).long(), [[*some, VOCAB] for some in words]


@torch.no_grad()
def test_scores_are_those_of_transformers(both):
    theirs, own = both
    asked, mask, read = sources(9, 4)
    target = torch.randint(5, VOCAB - 1, (2, 12))
    start = torch.full((2, 1), theirs.config.decoder_start_token_id)
    expected = theirs(asked, attention_mask=mask, decoder_input_ids=torch.cat([start, target], 1)).logits.log_softmax(
        -1
    )
    lengths = torch.tensor(list(map(len, read)))
    source = asked.where(asked != EOS, VOCAB)
    found = own.scores(torch.cat([start * 0 + VOCAB, target], 1), source=source, source_lengths=lengths).log_softmax(-1)
    assert expected.exp().max() > 0.1
    kept = [i for i in range(VOCAB) if i != EOS]
    assert (found[..., kept] - expected[..., kept]).abs().max() <= LIMIT
    assert (found[..., VOCAB] - expected[..., EOS]).abs().max() <= LIMIT
    assert found[..., EOS].exp().max() == 0


@torch.no_grad()
@pytest.mark.parametrize(("beam", "no_repeat"), [(1, 0), (4, 2)])
def test_what_is_written_is_what_transformers_writes(both, beam, no_repeat):
    theirs, own = both
    asked, mask, read = sources(9, 20, 1)
    given = {"num_beams": beam, "no_repeat_ngram_size": no_repeat, "bad_words_ids": [[PAD]]}
    written = theirs.generate(asked, attention_mask=mask, do_sample=False, max_new_tokens=40, **given)
    found = Finder(own).search(read, Search(beam=beam, longest=40, no_repeat=no_repeat), never=[PAD])
    for row, answers in zip(written.tolist(), found, strict=True):
        assert answers[0].tokens == (row[1:][: row[1:].index(EOS)] if EOS in row[1:] else row[1:])
    if no_repeat:  # else random weights soon say one word for ever
        assert len({i for row in written.tolist() for i in row}) >= 12


@pytest.mark.parametrize("name", ["marian", "bart"])
def test_a_folder_becomes_a_run_that_translates(name, tales, tmp_path):
    words = tokenizers.ByteLevelBPETokenizer()
    words.train_from_iterator([tales.read_text()], 380, special_tokens=["<s>", "<pad>", "</s>"], show_progress=False)
    marks = "$A </s>" if name == "marian" else "<s> $A </s>"
    ids = [(mark, words.token_to_id(mark)) for mark in ("<s>", "</s>")]
    words.post_processor = tokenizers.processors.TemplateProcessing(single=marks, special_tokens=ids)
    make, config = MODELS[name]
    given = {**config.to_dict(), "vocab_size": words.get_vocab_size(), "decoder_vocab_size": words.get_vocab_size()}
    given |= {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1 if name == "marian" else 2}
    theirs = loud(make(type(config)(**given)))
    theirs.save_pretrained(tmp_path / "theirs")
    words.save(str(tmp_path / "theirs" / "tokenizer.json"))
    bring(tmp_path / "theirs", tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["tokenizer"]["passed"]
    assert certificate["logits"]["passed"]
    assert certificate["greedy"]["passed"]
    asked = torch.tensor([words.encode("Tom had a hat").ids])
    marks = [[i] for i in (1, words.token_to_id("Ċ"), *([0] if name == "marian" else []))]
    with torch.no_grad():
        written = theirs.generate(asked, num_beams=4, do_sample=False, max_new_tokens=20, bad_words_ids=marks)
    run = harken.load(tmp_path / "run", device="cpu")
    assert run.translate("Tom had a hat", longest=20) == words.decode(written[0].tolist(), skip_special_tokens=True)
    assert export(run, tmp_path / "back")["passed"]
    there, back = (runs.read_tensors(tmp_path / folder / "model.safetensors") for folder in ("theirs", "back"))
    same = {key for key, tensor in back.items() if key in there and tensor[2:].equal(there[key][2:])}  # 2 are no places
    assert same == back.keys()
    assert not [key for key in there.keys() - back.keys() if "embed_" not in key and key != "lm_head.weight"]
    said = json.loads((tmp_path / "back" / "config.json").read_text())
    asked = ("vocab_size", "eos_token_id", "pad_token_id", "decoder_start_token_id", "scale_embedding")
    assert {key: said[key] for key in asked} == {key: getattr(theirs.config, key) for key in asked}
    with torch.no_grad():
        run.model.embed.weight[5] += 1
    if name == "marian":  # there the words have three tables, which may come apart in training
        with pytest.raises(BadInput, match="vectors of their own, and theirs have one table"):
            export(run, tmp_path / "apart")


def test_different_heads_on_both_sides_are_refused(tmp_path):
    MarianMTModel(MarianConfig(**{**MARIAN, "decoder_attention_heads": 2})).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="4 heads in the encoder and 2 in the decoder"):
        ours(tmp_path)
