"""Whether the targets of pairs copy words of their sources, so that the model should copy, too."""

from collections import Counter
from itertools import islice

from harken.data.pairs.source import PairSource
from harken.data.tokenizers.pairs import detach_punctuation
from harken.events import Listener, silent
from harken.recipe import DEFAULTS, Recipe, SettingsDict

N_PAIRS = 5000  # training pairs that are read
MIN_COPIED = 0.1  # fraction of the target words from which on the model copies
MAX_FREQUENCY = 0.05  # of the targets that contain a word; a more frequent one is a word of the vocabulary
UNKNOWN_WORDS = 64  # temporary ids
WORDS = ("word", "symbol")  # tokenizers without pieces of words


def copy_layer(chosen: Recipe, listen: Listener = silent) -> tuple[str, SettingsDict] | None:
    """The settings of copying and their origin: where they are set, or many target words occur in their source only."""
    data, copies, origin = chosen.data, dict(chosen.model).get("copy"), "model.copy=true"
    if copies is None or not isinstance(data, PairSource):
        return None
    tokenizer = data.tokenizer
    if "model.copy" not in chosen.origins and _can_share(chosen):
        fraction = copied_fraction(data)
        copies = fraction >= MIN_COPIED
        origin = f"{fraction:.0%} of the target words are copied"
        if copies and chosen.origins.get("data.tokenizer") == DEFAULTS and data.target_tokenizer is None:
            tokenizer = "word"  # a model copies unseen names as words, hardly as pieces of words
        if copies:
            reason = f"{fraction:.0%} of the target words are in the source of every target that has them"
            listen("notice", text=f"model.copy=true, data.tokenizer={tokenizer}: {reason} (model.copy=false: off)")
    if not copies:
        return None
    settings: SettingsDict = {"model.copy": True}
    if tokenizer != data.tokenizer:
        settings["data.tokenizer"] = tokenizer
    if tokenizer in WORDS and _can_share(chosen):
        count = data.unknown_words if "data.unknown_words" in chosen.origins else UNKNOWN_WORDS  # of the run in `from`
        settings |= {"data.unknown_words": count, "task.packed": False}
    return origin, settings


def _can_share(chosen: Recipe) -> bool:
    """Whether both sides have one tokenizer, or can have one: the encoder of another run sets that of the source."""
    data = chosen.data
    same = data.target_tokenizer in (None, data.tokenizer) and data.shared_vocab
    is_default = str(chosen.origins.get("data.target_tokenizer", "")).startswith("from ")
    return bool(same or (is_default and chosen.start.transfer != "frozen"))


def copied_fraction(data: PairSource) -> float:
    """The fraction of the words of the first targets that each target with the word copies from its source.

    Words of many targets do not count, such as the letters of a sequence that is reversed.
    """
    n_targets, n_copies, words = Counter[str](), Counter[str](), Counter[str]()
    pairs = [*islice(data.train_pairs(), N_PAIRS)]
    for source, target in pairs:
        in_source, in_target = (detach_punctuation(text).split() for text in (source, target))
        words.update(in_target)
        n_targets.update({*in_target})
        n_copies.update({*in_target} & {*in_source})
    limit = max(1.0, MAX_FREQUENCY * len(pairs))
    copied = sum(n for word, n in words.items() if n_copies[word] == n_targets[word] <= limit)
    return copied / max(1, words.total())
