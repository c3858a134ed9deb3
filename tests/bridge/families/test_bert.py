"""BERT, DistilBERT and RoBERTa: outputs equal those of transformers with the same random weights, also padded."""

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
from harken.bridge.families import find_mapping
from harken.bridge.folder import ModelFolder
from harken.bridge.importer import import_model
from harken.errors import BadInput
from harken.inference.run import build_model

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


def randomize(model):
    """Random weights with which every layer matters, biases and norms included."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape) * (0.15 if p.dim() > 1 else 0.3) + (p.dim() == 1 and "orm.weight" in name))
    return model.eval()


def import_weights(path):
    """The model of a folder, without its tokenizer."""
    source = ModelFolder(path)
    mapping = find_mapping(source)
    weight_map = weight_mapping.match_tensors(source, mapping)
    recipe = recipes.resolve(("test", mapping.settings()))
    with torch.device("meta"):
        empty = recipe.build(VOCAB)
    weight_mapping.check_shapes(source, weight_map, empty)
    return build_model(recipe, VOCAB, weight_mapping.read_weights(source, weight_map, empty)).eval()


@pytest.fixture(params=list(MODELS))
def models(request, tmp_path):
    model_class, config = MODELS[request.param]
    reference = randomize(model_class(config))
    reference.save_pretrained(tmp_path)
    return reference, import_weights(tmp_path)


def states(reference, tokens, mask=None, **inputs):
    return getattr(reference, reference.base_model_prefix, reference)(
        tokens, attention_mask=mask, **inputs
    ).last_hidden_state


@torch.no_grad()
def test_states_and_scores_are_those_of_transformers(models):
    reference, model = models
    tokens = torch.randint(5, VOCAB, (3, 40))
    assert (model(tokens) - states(reference, tokens)).abs().max() <= LIMIT
    outputs = reference(tokens)
    scores = (
        getattr(outputs, "logits", None) if hasattr(outputs, "logits") else getattr(outputs, "prediction_logits", None)
    )
    if scores is not None:
        assert scores.std() > 0.5
        assert (model.scores(tokens) - scores).abs().max() <= LIMIT


@torch.no_grad()
def test_padded_rows_are_those_of_transformers(models):
    reference, model = models
    lengths, pad = torch.tensor([12, 1, 7]), reference.config.pad_token_id
    mask = torch.arange(12) < lengths[:, None]
    tokens = torch.randint(5, VOCAB, (3, 12)).where(mask, pad)
    expected = states(reference, tokens, mask.long())
    assert (model(tokens, lengths=lengths) - expected)[mask].abs().max() <= LIMIT


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert-body", "bert-pretraining"])
def test_segments_pooler_and_next_sentence_logits_are_those_of_transformers(name, tmp_path):
    model_class, config = MODELS[name]
    reference = randomize(model_class(config))
    reference.save_pretrained(tmp_path)
    model = import_weights(tmp_path)
    tokens, segments = torch.randint(5, VOCAB, (2, 20)), (torch.arange(20) > 11).long().expand(2, 20)
    outputs = getattr(reference, "bert", reference)(tokens, token_type_ids=segments)
    h = model(tokens, segments=segments)
    assert (h - outputs.last_hidden_state).abs().max() <= LIMIT
    assert (model.pooled(h[:, 0]) - outputs.pooler_output).abs().max() <= LIMIT
    if name == "bert-pretraining":
        next_sentence = reference(tokens, token_type_ids=segments).seq_relationship_logits
        assert (model.next_sentence_scores(h[:, 0]) - next_sentence).abs().max() <= LIMIT


def test_a_body_without_mlm_head_refuses_to_compute_logits(tmp_path):
    BertModel(BERT).save_pretrained(tmp_path)
    model = import_weights(tmp_path)
    with pytest.raises(BadInput, match=r"^model\.mlm_head=false: "):
        model.logits(model(torch.zeros(1, 3, dtype=torch.long)))


@torch.no_grad()
def test_legacy_names_of_layer_norms_are_read(tmp_path):
    reference = randomize(BertForMaskedLM(BERT))
    reference.save_pretrained(tmp_path)
    new_names, old_names = ("LayerNorm.weight", "LayerNorm.bias"), ("LayerNorm.gamma", "LayerNorm.beta")
    renamed = load_file(tmp_path / "model.safetensors")
    for a, b in zip(new_names, old_names, strict=True):
        renamed = {name.replace(a, b): t for name, t in renamed.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    tokens = torch.randint(5, VOCAB, (1, 9))
    assert (import_weights(tmp_path).scores(tokens) - reference(tokens).logits).abs().max() <= LIMIT


# --- folders ----------------------------------------------------------------------------------------------------------


def train_wordpiece(text, vocab):
    """A WordPiece tokenizer as in BERT."""
    tokenizer = tokenizers.BertWordPieceTokenizer()
    tokenizer.train_from_iterator([text], vocab_size=vocab, show_progress=False)
    special_tokens = [(mark, tokenizer.token_to_id(mark)) for mark in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = tokenizers.processors.BertProcessing(*special_tokens)
    return tokenizer


def train_byte_level_bpe(text, vocab):
    """A byte-level BPE tokenizer as in RoBERTa: <mask> includes the space before it."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    special_tokens = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator([text], vocab_size=vocab, special_tokens=special_tokens, show_progress=False)
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


@pytest.mark.parametrize(
    ("name", "train"), [("bert", train_wordpiece), ("distilbert", train_wordpiece), ("roberta", train_byte_level_bpe)]
)
def test_a_folder_becomes_a_run_with_the_same_ids_states_and_vectors(name, train, tales, tmp_path):
    tokenizer = train(tales.read_text(), 400)
    model_class, config = MODELS[name]
    reference = randomize(model_class(type(config)(**{**config.to_dict(), "vocab_size": tokenizer.get_vocab_size()})))
    reference.save_pretrained(tmp_path / "theirs")
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    import_model(tmp_path / "theirs", tmp_path / "run")
    run = harken.load(tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert {"tokenizer", "states", "logits", "vectors"} <= certificate.keys()
    assert certificate["passed"]
    assert (
        json.loads((tmp_path / "run" / "tokenizer.json").read_text())["normalizer"]
        == json.loads(tokenizer.to_str())["normalizer"]
    )  # an imported tokenizer keeps its own rules
    assert run.recipe.data.lowercase == (name != "roberta")
    texts = ["Tom had a red hat.", "He ran", "a"]
    for text, vector in zip(texts, run.embed(texts), strict=True):
        with torch.no_grad():
            h = states(reference, torch.tensor([tokenizer.encode(text).ids]))[0].mean(0)
        assert vector == pytest.approx((h / h.norm()).numpy(), abs=LIMIT)
    mask = "<mask>" if name == "roberta" else "[MASK]"
    text = f"Tom had a {mask} hat."
    ids = tokenizer.encode(text).ids
    with torch.no_grad():
        scores = reference(torch.tensor([ids])).logits[0, ids.index(tokenizer.token_to_id(mask))]
    scores[run.tokenizer.special_ids] = -torch.inf
    ((best, *_),) = run.fill(text)
    assert best["word"] == run.tokenizer.token_texts([int(scores.argmax())])[0]
    assert best["probability"] == pytest.approx(float(scores.softmax(-1).max()), abs=LIMIT)
    with pytest.raises(BadInput, match=rf"has no {re.escape(mask)}"):
        run.fill("Tom had a hat.")
    run.tokenizer.mask_id = None
    with pytest.raises(BadInput, match="has no mask token"):
        run.fill(text)


@pytest.mark.parametrize("wrong", ["pooler.weight", "nsp_head.bias", "segments.weight"])
def test_the_certificate_covers_pooler_next_sentence_head_and_segments(wrong, tales, tmp_path, monkeypatch):
    train = train_wordpiece(tales.read_text(), 400)
    config = BertConfig(vocab_size=train.get_vocab_size(), max_position_embeddings=40, **BODY)
    randomize(BertForPreTraining(config)).save_pretrained(tmp_path / "theirs")
    train.save(str(tmp_path / "theirs" / "tokenizer.json"))
    import_model(tmp_path / "theirs", tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["not_checked"] == []
    assert all(certificate[name]["passed"] for name in ("segments", "pooled", "next_sentence"))
    real = weight_mapping.read_weights

    def read(*args):
        vector = real(*args)
        vector[wrong].view(-1)[-1] += 1
        return vector

    monkeypatch.setattr(weight_mapping, "read_weights", read)
    with pytest.raises(harken.HarkenError, match=r"(segments|pooled|next_sentence) differ"):
        import_model(tmp_path / "theirs", tmp_path / "other")


def test_an_unused_pooler_is_listed_as_not_checked(tales, tmp_path):
    train = train_byte_level_bpe(tales.read_text(), 400)
    config = RobertaConfig(**{**ROBERTA.to_dict(), "vocab_size": train.get_vocab_size()})
    randomize(RobertaModel(config)).save_pretrained(tmp_path / "theirs")
    train.save(str(tmp_path / "theirs" / "tokenizer.json"))
    import_model(tmp_path / "theirs", tmp_path / "run")
    (message,) = json.loads((tmp_path / "run" / "certificate.json").read_text())["not_checked"]
    assert message == "pooler output: RobertaForMaskedLM has no pooler"


def test_every_verb_of_an_embedding_model_names_embed_and_embed_works(tales, tmp_path):
    tokenizer = train_wordpiece(tales.read_text(), 200)
    BertModel(BertConfig(**{**BERT.to_dict(), "vocab_size": tokenizer.get_vocab_size()})).save_pretrained(
        tmp_path / "a"
    )
    tokenizer.save(str(tmp_path / "a" / "tokenizer.json"))
    run = import_model(tmp_path / "a", tmp_path / "run")
    assert run.verb == "embed"
    for ask in (lambda: run.generate("tom"), lambda: run.fill("tom [MASK]"), lambda: run.classify("tom")):
        with pytest.raises(BadInput, match=r"this run only embeds texts; use harken embed, in Python run\.embed$"):
            ask()
    assert run.embed("tom").shape == (BERT.hidden_size,)
