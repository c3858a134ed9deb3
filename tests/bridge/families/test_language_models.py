"""Language models with random weights: logits and 100 greedy tokens equal those of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harken.bridge.certificate import reference_greedy
from harken.bridge.importer import import_model
from harken.data.synthetic.tales import tales
from harken.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from harken.decode.sampling import SamplingSettings

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
transformers = pytest.importorskip("transformers")

GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256}
LLAMA = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
LLAMA |= {"max_position_embeddings": 256, "attn_implementation": "eager"}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_ROPE |= {"original_max_position_embeddings": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 with a narrow MLP": ("GPT2", {**GPT2, "n_head": 3, "n_inner": 40, "activation_function": "relu"}),
    "llama": ("Llama", LLAMA),
    "llama with one wide key": ("Llama", {**LLAMA, "num_key_value_heads": 1, "head_dim": 32, "rope_theta": 5e5}),
    "llama 3": ("Llama", {**LLAMA, "num_key_value_heads": 2, "rope_scaling": LLAMA3_ROPE}),
    "llama with tied embeddings and linear rope scaling": (
        "Llama",
        {**LLAMA, "tie_word_embeddings": True, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "mistral": ("Mistral", {**LLAMA, "num_key_value_heads": 2, "sliding_window": 20}),
    "qwen 2": ("Qwen2", {**LLAMA, "num_key_value_heads": 2}),
    "gemma": ("Gemma", {**LLAMA, "num_key_value_heads": 1, "head_dim": 16}),
    "gemma with untied embeddings": (
        "Gemma",
        {**LLAMA, "num_key_value_heads": 4, "head_dim": 24, "tie_word_embeddings": False},
    ),
}


@pytest.fixture(scope="module")
def tokens() -> Tokenizer:
    return train_tokenizer("bpe", lambda: ["\n".join(tales(50))], 400)


def save_reference(name: str, tokens: Tokenizer, folder: Path, **save: Any) -> Any:
    """A transformers model with weights large enough that it does not repeat one token."""
    kind, settings = MODELS[name]
    torch.manual_seed(7)
    special_ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(vocab_size=tokens.vocab, **special_ids, **settings)
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name_, parameter in model.named_parameters():
            is_norm = parameter.ndim == 1 and "bias" not in name_
            is_embedding = any(part in name_ for part in ("embed", "wte", "lm_head"))
            parameter.normal_(std=0.1 if is_norm or "bias" in name_ else 0.05 if is_embedding else 0.3)
            if is_norm and kind != "Gemma":
                parameter.add_(1)
    model.save_pretrained(folder, **save)
    (folder / "tokenizer.json").write_bytes(tokens.json)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_scores_and_100_greedy_tokens_are_those_of_transformers(name: str, tokens: Tokenizer, tmp_path: Path) -> None:
    reference = save_reference(name, tokens, tmp_path / "theirs")
    run = import_model(tmp_path / "theirs", tmp_path / "run")
    random_tokens = torch.randint(0, tokens.vocab, (2, 200))
    with torch.inference_mode():
        difference = (run.model.scores(random_tokens) - reference(random_tokens).logits).abs().max()
    start = tokens.encode("Once upon a time").tolist()
    continuation = [
        int(t) for t in run.text_generator.generate([start], 100, SamplingSettings(temperature=0.0), seed=0)
    ]
    with torch.inference_mode():
        expected = reference_greedy(reference, start, 100, tokens.vocab)
    assert difference <= 1e-5
    assert continuation == expected
    assert len(set(continuation)) >= 20
