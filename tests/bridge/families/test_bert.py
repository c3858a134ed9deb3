"""BERT, DistilBERT and RoBERTa: with the same random weights ours and transformers' say the same, padded ones too."""

import json
import re

import pytest
import tokenizers
import torch

pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
)

import harken
from harken import recipe as recipes
from harken.bridge import weight_mapping
from harken.bridge.folder import Folder
from harken.bridge.importer import bring
from harken.errors import BadInput
from harken.inference.run import fitted

pytestmark = pytest.mark.oracle
VOCAB, LIMIT = 130, 1e-5
SAME = {"vocab_size": VOCAB, "max_position_embeddings": 40}
BODY = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
BERT = BertConfig(**SAME, **BODY)
ROBERTA = RobertaConfig(**{**SAME, "max_position_embeddings": 42}, **BODY, type_vocab_size=1, layer_norm_eps=1e-5)
DISTIL = DistilBertConfig(**SAME, dim=32, n_layers=3, n_heads=4, hidden_dim=48)
MODELS = {
    "bert": (BertForMaskedLM, BERT),
    "bert-pretraining": (BertForPreTraining, BERT),
    "bert-body": (BertModel, BERT),
    "bert-relu": (BertModel, BertConfig(**SAME, **BODY, hidden_act="relu", layer_norm_eps=1e-3)),
    "roberta": (RobertaForMaskedLM, ROBERTA),
    "roberta-body": (RobertaModel, ROBERTA),
    "distilbert": (DistilBertForMaskedLM, DISTIL),
    "distilbert-body": (DistilBertModel, DISTIL),
}


def loud(model):
    """Random weights of a size that lets every layer matter, biases and norms too."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape) * (0.15 if p.dim() > 1 else 0.3) + (p.dim() == 1 and "orm.weight" in name))
    return model.eval()


def ours(path):
    """The model of a folder, without its words."""
    source = Folder(path)
    config = weight_mapping.find(source)
    names = weight_mapping.matched(source, config)
    recipe = recipes.resolve(("test", config.settings()))
    with torch.device("meta"):
        empty = recipe.build(VOCAB)
    weight_mapping.fitted(source, names, empty)
    return fitted(recipe, VOCAB, weight_mapping.read(source, names, empty)).eval()


@pytest.fixture(params=list(MODELS))
def both(request, tmp_path):
    make, config = MODELS[request.param]
    theirs = loud(make(config))
    theirs.save_pretrained(tmp_path)
    return theirs, ours(tmp_path)


def states(theirs, tokens, mask=None, **told):
    return getattr(theirs, theirs.base_model_prefix, theirs)(tokens, attention_mask=mask, **told).last_hidden_state


@torch.no_grad()
def test_states_and_scores_are_those_of_transformers(both):
    theirs, own = both
    tokens = torch.randint(5, VOCAB, (3, 40))
    assert (own(tokens) - states(theirs, tokens)).abs().max() <= LIMIT
    said = theirs(tokens)
    scores = getattr(said, "logits", None) if hasattr(said, "logits") else getattr(said, "prediction_logits", None)
    if scores is not None:
        assert scores.std() > 0.5
        assert (own.scores(tokens) - scores).abs().max() <= LIMIT


@torch.no_grad()
def test_padded_rows_are_those_of_transformers(both):
    theirs, own = both
    lengths, pad = torch.tensor([12, 1, 7]), theirs.config.pad_token_id
    mask = torch.arange(12) < lengths[:, None]
    tokens = torch.randint(5, VOCAB, (3, 12)).where(mask, pad)
    expected = states(theirs, tokens, mask.long())
    assert (own(tokens, lengths=lengths) - expected)[mask].abs().max() <= LIMIT


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert-body", "bert-pretraining"])
def test_segments_the_pooler_and_what_follows_are_those_of_transformers(name, tmp_path):
    make, config = MODELS[name]
    theirs = loud(make(config))
    theirs.save_pretrained(tmp_path)
    own = ours(tmp_path)
    tokens, segments = torch.randint(5, VOCAB, (2, 20)), (torch.arange(20) > 11).long().expand(2, 20)
    said = getattr(theirs, "bert", theirs)(tokens, token_type_ids=segments)
    h = own(tokens, segments=segments)
    assert (h - said.last_hidden_state).abs().max() <= LIMIT
    assert (own.pooled(h[:, 0]) - said.pooler_output).abs().max() <= LIMIT
    if name == "bert-pretraining":
        follows = theirs(tokens, token_type_ids=segments).seq_relationship_logits
        assert (own.next_sentence_scores(h[:, 0]) - follows).abs().max() <= LIMIT


def test_a_body_alone_gives_states_and_refuses_to_fill_in(tmp_path):
    BertModel(BERT).save_pretrained(tmp_path)
    own = ours(tmp_path)
    with pytest.raises(BadInput, match=r"model.mlm_head = false"):
        own.logits(own(torch.zeros(1, 3, dtype=torch.long)))


@torch.no_grad()
def test_norms_under_their_old_names_are_found(tmp_path):
    theirs = loud(BertForMaskedLM(BERT))
    theirs.save_pretrained(tmp_path)
    now, old = ("LayerNorm.weight", "LayerNorm.bias"), ("LayerNorm.gamma", "LayerNorm.beta")
    renamed = load_file(tmp_path / "model.safetensors")
    for a, b in zip(now, old, strict=True):
        renamed = {name.replace(a, b): t for name, t in renamed.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    tokens = torch.randint(5, VOCAB, (1, 9))
    assert (ours(tmp_path).scores(tokens) - theirs(tokens).logits).abs().max() <= LIMIT


# --- whole folders ----------------------------------------------------------------------------------------------------


def pieces(text, vocab):
    """A tokenizer as BERT's makers would have trained it."""
    made = tokenizers.BertWordPieceTokenizer()
    made.train_from_iterator([text], vocab_size=vocab, show_progress=False)
    marks = [(mark, made.token_to_id(mark)) for mark in ("[SEP]", "[CLS]")]
    made.post_processor = tokenizers.processors.BertProcessing(*marks)
    return made


def pairs(text, vocab):
    """A tokenizer as RoBERTa's makers would have trained it: <mask> takes the space before it."""
    made = tokenizers.ByteLevelBPETokenizer()
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    made.train_from_iterator([text], vocab_size=vocab, special_tokens=marks, show_progress=False)
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


@pytest.mark.parametrize(("name", "words"), [("bert", pieces), ("distilbert", pieces), ("roberta", pairs)])
def test_a_folder_becomes_a_run_with_the_same_ids_states_and_vectors(name, words, tales, tmp_path):
    made = words(tales.read_text(), 400)
    make, config = MODELS[name]
    theirs = loud(make(type(config)(**{**config.to_dict(), "vocab_size": made.get_vocab_size()})))
    theirs.save_pretrained(tmp_path / "theirs")
    made.save(str(tmp_path / "theirs" / "tokenizer.json"))
    bring(tmp_path / "theirs", tmp_path / "run")
    run = harken.load(tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert {"tokenizer", "states", "logits", "vectors"} <= certificate.keys()
    assert certificate["passed"]
    texts = ["Tom had a red hat.", "He ran", ""]
    for text, found in zip(texts, run.embed(texts), strict=True):
        with torch.no_grad():
            h = states(theirs, torch.tensor([made.encode(text).ids]))[0].mean(0)
        assert found == pytest.approx((h / h.norm()).numpy(), abs=LIMIT)
    mask = "<mask>" if name == "roberta" else "[MASK]"
    text = f"Tom had a {mask} hat."
    ids = made.encode(text).ids
    with torch.no_grad():
        scores = theirs(torch.tensor([ids])).logits[0, ids.index(made.token_to_id(mask))]
    scores[run.tokenizer.marks] = -torch.inf
    ((best, *_),) = run.fill(text)
    assert best["word"] == run.tokenizer.words([int(scores.argmax())])[0]
    assert best["probability"] == pytest.approx(float(scores.softmax(-1).max()), abs=LIMIT)
    with pytest.raises(BadInput, match=rf"there is no {re.escape(mask)} in it"):
        run.fill("Tom had a hat.")
    run.tokenizer.mask = None
    with pytest.raises(BadInput, match="have none that stands for a hidden word"):
        run.fill(text)


@pytest.mark.parametrize("wrong", ["pooler.weight", "W_follows.bias", "segments.weight"])
def test_what_only_two_sentences_ask_for_is_in_the_certificate(wrong, tales, tmp_path, monkeypatch):
    words = pieces(tales.read_text(), 400)
    config = BertConfig(vocab_size=words.get_vocab_size(), max_position_embeddings=40, **BODY)
    loud(BertForPreTraining(config)).save_pretrained(tmp_path / "theirs")
    words.save(str(tmp_path / "theirs" / "tokenizer.json"))
    bring(tmp_path / "theirs", tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["not_checked"] == []
    assert all(certificate[name]["passed"] for name in ("segments", "pooled", "follows"))
    real = weight_mapping.read

    def read(*given):
        found = real(*given)
        found[wrong].view(-1)[-1] += 1
        return found

    monkeypatch.setattr(weight_mapping, "read", read)
    with pytest.raises(harken.HarkenError, match=r"(segments|pooled|follows) differ"):
        bring(tmp_path / "theirs", tmp_path / "other")


def test_a_pooler_that_nobody_asks_is_said_not_to_be_checked(tales, tmp_path):
    words = pairs(tales.read_text(), 400)
    config = RobertaConfig(**{**ROBERTA.to_dict(), "vocab_size": words.get_vocab_size()})
    loud(RobertaModel(config)).save_pretrained(tmp_path / "theirs")
    words.save(str(tmp_path / "theirs" / "tokenizer.json"))
    bring(tmp_path / "theirs", tmp_path / "run")
    (told,) = json.loads((tmp_path / "run" / "certificate.json").read_text())["not_checked"]
    assert told == "what stands for a whole text: RobertaForMaskedLM has no pooler"
