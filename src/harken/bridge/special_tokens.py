"""The tokenizer of a run in Hugging Face format: tokenizer.json with special tokens, and their ids for config.json.

A run on pairs has one token more than its tokenizer, the edge token. An imported tokenizer has a counterpart for it;
to ours it is added as a new token, followed by a padding token.
"""

import json
from collections.abc import Sequence
from typing import Any

from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.labelled.source import TextLabelProcessor
from harken.data.tokenizers.pairs import PairTokenizers
from harken.data.tokenizers.pretrained import template_processing
from harken.data.tokenizers.spec import ADDED_TOKEN_FLAGS
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.inference.answers.text_vectors import boundary_tokens
from harken.inference.run import Run

EDGE_TOKEN, PAD_TOKEN = "<|edge|>", "<pad>"
NOT_PORTABLE = "token ids: a tokenizer.json cannot express a word tokenizer with separate punctuation"


def base_tokenizer(run: Run) -> Tokenizer:
    """The tokenizer of a run without labels and edge token; for pairs, that of the source."""
    tokenizer: Tokenizer = run.tokenizer.source if run.is_encoder_decoder else run.text_tokenizer
    return tokenizer


def is_portable(run: Run) -> bool:
    """Whether a tokenizer.json gives the same ids as the run."""
    return base_tokenizer(run).kind != "word" or not isinstance(run.tokenizer, TextLabelProcessor | PairTokenizers)


def boundary_ids(processor: Tokenizer | TokenLabelProcessor) -> tuple[Sequence[int], Sequence[int]]:
    """The special tokens before and after a text."""
    if isinstance(processor, TokenLabelProcessor):
        return processor.start_ids or [processor.end_id] * isinstance(processor, TextLabelProcessor), [processor.end_id]
    return boundary_tokens(processor)


def config_ids(run: Run) -> dict[str, object]:
    """Vocabulary size and special token ids, as config.json has them."""
    tokenizer = base_tokenizer(run)
    if run.is_encoder_decoder:
        bos = next(iter(tokenizer.prefix_ids), None)
        ids = {"bos_token_id": bos, "forced_eos_token_id": None, **edge_token_ids(run)}
    else:
        bos = tokenizer.prefix_ids[0] if tokenizer.prefix_ids else tokenizer.cls_id
        end, pad = tokenizer.end_id, tokenizer.pad_id
        ids = {"vocab_size": tokenizer.vocab, "bos_token_id": bos, "eos_token_id": end, "pad_token_id": pad}
    return {**ids, "dtype": "float32", "transformers_version": "4.50.0"}


def edge_token_ids(run: Run) -> dict[str, int]:
    """The counterparts of our edge token: the end of source and target, and the start of a target."""
    model: Any = run.model
    template = json.loads(base_tokenizer(run).json)["post_processor"] or {"single": [{}]}
    last = template["single"][-1].get("SpecialToken")
    if last is None:
        edge = model.edge
        return {"vocab_size": edge + 2, "eos_token_id": edge, "decoder_start_token_id": edge, "pad_token_id": edge + 1}
    end: int = template["special_tokens"][last["id"]]["ids"][0]
    names = base_tokenizer(run).token_texts(range(model.edge))
    pad = names.index(PAD_TOKEN) if PAD_TOKEN in names else end
    start, rows = end, model.embed.weight
    if model.head.weight is not rows:  # the start token may differ: it has the same embedding as our edge token
        equal = (rows[: model.edge] == rows[model.edge]).all(-1).nonzero()[:, 0].tolist()
        start = pad if pad in equal else next(iter(equal), end)
    return {"vocab_size": model.edge, "eos_token_id": end, "decoder_start_token_id": start, "pad_token_id": pad}


def tokenizer_files(run: Run) -> dict[str, dict[str, object]]:
    """The JSON files beside the weights: tokenizers that are portable, and the generation config of pairs."""
    files = _tokenizer_json(run) if is_portable(run) else {}
    if run.is_encoder_decoder:
        ids = edge_token_ids(run)
        if (target := run.tokenizer.target) is not base_tokenizer(run):
            files["tokenizer.target.json"] = json.loads(target.json)
        names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        files["generation_config.json"] = {name: ids[name] for name in names} | {"max_length": run.model.context}
    return files


def _tokenizer_json(run: Run) -> dict[str, dict[str, object]]:
    """tokenizer.json with its post-processor, and tokenizer_config.json with the special tokens."""
    tokenizer, pairs = base_tokenizer(run), run.is_encoder_decoder
    spec = json.loads(tokenizer.json)
    special = {
        "bos_token": tokenizer.prefix_ids[0] if tokenizer.prefix_ids else None,
        "eos_token": tokenizer.end_id,
        "unk_token": tokenizer.unk_id,
        "cls_token": tokenizer.cls_id,
        "sep_token": tokenizer.sep_id,
        "pad_token": tokenizer.pad_id,
        "mask_token": tokenizer.mask_id,
    }
    names = {name: tokenizer.token_texts([i])[0] for name, i in special.items() if i is not None}
    if spec["post_processor"] is None:
        if pairs:
            names |= {"eos_token": EDGE_TOKEN, "pad_token": PAD_TOKEN}
            added = {EDGE_TOKEN: tokenizer.vocab, PAD_TOKEN: tokenizer.vocab + 1}
            flags = {**ADDED_TOKEN_FLAGS, "special": True}
            spec["added_tokens"] += [{"id": i, "content": name, **flags} for name, i in added.items()]
            prefix, suffix = dict[str, int](), {EDGE_TOKEN: tokenizer.vocab}
        else:
            prefix, suffix = ({tokenizer.token_texts([i])[0]: i for i in ids} for ids in boundary_ids(run.tokenizer))
        template = template_processing([*prefix], [*suffix], prefix | suffix, segments=2) if suffix else None
        spec["post_processor"] = template
    elif pairs:  # the end and padding tokens of an imported tokenizer
        ids = edge_token_ids(run)
        names |= {f"{name}_token": tokenizer.token_texts([ids[f"{name}_token_id"]])[0] for name in ("eos", "pad")}
    inputs = ["input_ids", *(["token_type_ids"] if run.backbone.n_segments else []), "attention_mask"]
    sizes = {"model_max_length": run.model.context, "clean_up_tokenization_spaces": False, "model_input_names": inputs}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **sizes, **names}
    return {"tokenizer.json": spec, "tokenizer_config.json": config}
