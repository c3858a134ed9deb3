"""The words of a run as others read them: tokenizer.json with the marks around a text, and the marks' numbers.

Our pairs have one mark more than their tokens, the edge. Words that came from elsewhere have a mark of their own for
it; to ours it is added as a word of its own, and behind it one that stands for no word.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from harken.data.labelled.examples import LabelWords
from harken.data.labelled.source import TextLabels
from harken.data.tokenizers.pairs import Tokenizers
from harken.data.tokenizers.pretrained import framed
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.inference.answers import embed
from harken.inference.run import Run

EDGE, PAD = "<|edge|>", "<pad>"
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
LOST = "ids of texts: signs that are words of their own are not known to a tokenizer.json"


def plain(run: Run) -> Tokenizer:
    """The tokens of a run, without labels and edges; of pairs, the source's."""
    words: Any = run.tokenizer
    found: Tokenizer = words.source if run.pairs else getattr(words, "tokenizer", words)
    return found


def carried(run: Run) -> bool:
    """Whether a tokenizer.json gives the ids that the run gives."""
    return plain(run).kind != "word" or not isinstance(run.tokenizer, TextLabels | Tokenizers)


def around(words: Any) -> tuple[Sequence[int], Sequence[int]]:
    """The marks before and behind a text."""
    if isinstance(words, LabelWords):
        return words.begin or [words.edge] * isinstance(words, TextLabels), [words.edge]
    return embed.around(words)


def ids(run: Run) -> dict[str, Any]:
    """How many words there are and the marks' numbers, as a config has them."""
    words = plain(run)
    if run.pairs:
        found = {"bos_token_id": next(iter(words.begin), None), "forced_eos_token_id": None, **_edges(run)}
    else:
        begin = words.begin[0] if words.begin else words.cls
        found = {"vocab_size": words.vocab, "bos_token_id": begin, "eos_token_id": words.end, "pad_token_id": words.pad}
    return {**found, "dtype": "float32", "transformers_version": "4.50.0"}


def _edges(run: Run) -> dict[str, int]:
    """What our edge is to them: the end of a source and a target, and the beginning of a target."""
    model: Any = run.model
    around = json.loads(plain(run).json)["post_processor"] or {"single": [{}]}
    mark = around["single"][-1].get("SpecialToken")
    if mark is None:
        edge = model.edge
        return {"vocab_size": edge + 2, "eos_token_id": edge, "decoder_start_token_id": edge, "pad_token_id": edge + 1}
    end: int = around["special_tokens"][mark["id"]]["ids"][0]
    names = plain(run).words(range(model.edge))
    pad = names.index(PAD) if PAD in names else end
    start, rows = end, model.embed.weight
    if model.head.weight is not rows:  # then a target may begin with another mark: with one whose row our edge has
        same = (rows[: model.edge] == rows[model.edge]).all(-1).nonzero()[:, 0].tolist()
        start = pad if pad in same else next(iter(same), end)
    return {"vocab_size": model.edge, "eos_token_id": end, "decoder_start_token_id": start, "pad_token_id": pad}


def files(run: Run) -> dict[str, Any]:
    """What lies beside the weights: the tokens where they can be carried along, and with which marks a target is."""
    found = _tokens(run) if carried(run) else {}
    if run.pairs:
        said = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        edges = _edges(run)
        if (target := run.tokenizer.target) is not plain(run):
            found["tokenizer.target.json"] = json.loads(target.json)
        found["generation_config.json"] = {name: edges[name] for name in said} | {"max_length": run.model.context}
    return found


def _tokens(run: Run) -> dict[str, Any]:
    """tokenizer.json, with the marks around a text, and which word is which mark."""
    words, own = plain(run), cast(Any, run.tokenizer)
    spec = json.loads(words.json)
    marks = {"bos_token": words.begin[0] if words.begin else None, "eos_token": words.end, "unk_token": words.unknown}
    marks |= {f"{name}_token": getattr(words, name) for name in ("cls", "sep", "pad", "mask")}
    named = {name: words.words([i])[0] for name, i in marks.items() if i is not None}
    if run.pairs:
        named |= {"eos_token": EDGE, "pad_token": PAD} if spec["post_processor"] is None else _theirs(run)
    if spec["post_processor"] is None:
        before, behind = ({}, {EDGE: words.vocab}) if run.pairs else (_named(words, some) for some in around(own))
        if run.pairs:
            added = {EDGE: words.vocab, PAD: words.vocab + 1}.items()
            spec["added_tokens"] += [{"id": i, "content": name, **_FLAGS, "special": True} for name, i in added]
        spec["post_processor"] = framed([*before], [*behind], before | behind, segments=2) if behind else None
    body = getattr(run.model, "body", run.model)
    told = ["input_ids", *(["token_type_ids"] if getattr(body, "segments", None) else []), "attention_mask"]
    how = {"model_max_length": run.model.context, "clean_up_tokenization_spaces": False, "model_input_names": told}
    return {
        "tokenizer.json": spec,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **how, **named},
    }


def _theirs(run: Run) -> dict[str, str]:
    """The names of the marks that came with the words."""
    found = _edges(run)
    return {f"{name}_token": plain(run).words([found[f"{name}_token_id"]])[0] for name in ("eos", "pad")}


def _named(words: Tokenizer, some: Iterable[int]) -> dict[str, int]:
    return {words.words([i])[0]: i for i in some}
