"""Tag each word: entities, parts of speech. Loss in nats per word; entities count if label, begin and end are right."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import IGNORE, Tokens
from harken.data.labelled.batch import LabelBatch
from harken.data.labelled.conll import INSIDE, bio2, entities
from harken.settings import Part

from . import Loss, Score
from .head_task import HeadTask, word_scores

if TYPE_CHECKING:
    from harken.data.labelled.examples import ExampleData
    from harken.data.labelled.tags import Tagged

QUICK = 500  # sentences that a look during the training tags


class Task(Part):
    """The settings of tagging."""

    kind: Literal["tag"] = "tag"

    def bind(self, data: "ExampleData", model: Any, *, batch: int, seed: int) -> "Tag":
        return Tag(data, model, batch=batch, seed=seed)


class Tag(HeadTask):
    """Tagging of one set of sentences."""

    def loss(self, model: Any, batch: LabelBatch, start: int = 0) -> Loss:
        return Loss(nll(model.answers(model(batch.tokens, **batch.told())), batch.targets))

    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        """Strict F1 of entities, the share of words whose tag is right, and the loss; `quick` looks at fewer."""
        part: Tagged = self.data.splits[split]
        some = part.some(QUICK) if quick else part
        tags, _, loss = predicted(model, some, self.data.words.labels)
        gold = [sentence.tags for sentence in some.sentences]
        found = measured(gold, tags, self.data.words.labels) | {"loss": loss}
        protocol = {"sentences": len(gold), "words": sum(map(len, gold)), "judged_by": self._by}
        return Score(found, protocol, {} if quick else by_label(gold, tags), by=self._by)

    @property
    def _by(self) -> str:
        return "f1" if _marking(self.data.words.labels) else "accuracy"

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """What costs nothing: the tag that a word had most often, of an unknown word that of all words."""
        if not self.data.learned:
            return {}
        counts, every = dict[str, Counter[str]](), Counter[str]()
        for words, tags, _ in self.data.train.sentences:
            every.update(tags)
            for word, tag in zip(words, tags, strict=True):
                counts.setdefault(word, Counter())[tag] += 1
        best, other = {word: c.most_common(1)[0][0] for word, c in counts.items()}, every.most_common(1)[0][0]
        some = self.data.splits[split].sentences
        tags = [bio2([best.get(word, other) for word in sentence.words]) for sentence in some]
        gold = [sentence.tags for sentence in some]
        return {"most frequent tag of each word": measured(gold, tags, self.data.words.labels)}


def nll(y: Tensor, targets: Tensor) -> Tensor:  # B L C, B L
    """The summed -ln p of the tags that are asked."""
    return F.cross_entropy(y.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def predicted(model: Any, part: "Tagged", labels: Sequence[str]) -> tuple[list[list[str]], list[list[float]], float]:
    """The likeliest tags of each sentence, how sure each is, and the mean loss."""
    logs, total = list[Any]([None] * len(part.texts)), 0.0
    for n, batch, y in word_scores(model, part.texts):
        total += float(nll(y[None], batch.targets[batch.asked][None]))
        logs[n] = y.log_softmax(-1).numpy()
    whole = [list[Any]() for _ in part.sentences]
    for n, some in zip(part.of, logs, strict=True):
        whole[n].append(some)
    follows, tags, sure = may_follow(labels), list[list[str]](), list[list[float]]()
    for some in whole:
        p = np.concatenate([np.empty((0, len(labels)), np.float32), *some])  # words C
        path = likeliest(p, follows)
        tags.append(bio2([labels[i] for i in path]))
        sure.append(np.exp(p[np.arange(len(p)), path]).tolist())
    return tags, sure, total / max(1, sum(map(len, tags)))


def may_follow(labels: Sequence[str]) -> Tokens:  # C C
    """0 where the second tag may stand behind the first, -inf where not: an entity goes on with its own label alone."""
    inside = [tag[2:] if tag.startswith("I-") else None for tag in labels]
    return np.array([[0.0 if i is None or tag[1:] == f"-{i}" else -np.inf for i in inside] for tag in labels])


def likeliest(logs: Tokens, follows: Tokens) -> list[int]:  # words C, C C
    """The tags whose probabilities have the largest product of all that may follow each other (Viterbi)."""
    if not len(logs):
        return []
    starts = np.where((follows == 0).all(0), 0.0, -np.inf)  # what may follow anything begins a sentence
    best, back = starts + logs[0], list[Any]()
    for each in logs[1:]:
        sums = best[:, None] + follows
        back.append(sums.argmax(0))
        best = sums.max(0) + each
    path = [int(best.argmax())]
    for step in reversed(back):
        path.append(int(step[path[-1]]))
    return path[::-1]


def _marking(labels: Sequence[str]) -> bool:
    """Whether such tags mark entities."""
    return any(map(INSIDE.fullmatch, labels))


def measured(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]], labels: Sequence[str]) -> dict[str, float]:
    """Strict F1 of all entities together, where these labels mark any; and the share of tags that are right."""
    right = sum(a == b for one, other in zip(gold, found, strict=True) for a, b in zip(one, other, strict=True))
    accuracy = right / max(1, sum(map(len, gold)))
    if not _marking(labels):
        return {"accuracy": accuracy}
    wanted, written = (Counter(e for n, tags in enumerate(some) for e in _marked(n, tags)) for some in (gold, found))
    matched = (wanted & written).total()
    precision, recall = matched / max(1, written.total()), matched / max(1, wanted.total())
    f1 = 2 * matched / max(1, wanted.total() + written.total())
    return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}


def by_label(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """F1 of the entities of each label, and how many there are."""
    wanted, written = ([e for n, tags in enumerate(some) for e in _marked(n, tags)] for some in (gold, found))
    matched = Counter(label for _, (label, *_) in {*wanted} & {*written})
    counts = [Counter(label for _, (label, *_) in some) for some in (wanted, written)]
    return {
        label: {"f1": 2 * matched[label] / (counts[0][label] + counts[1][label]), "entities": counts[0][label]}
        for label in sorted(counts[0])
    }


def _marked(n: int, tags: Sequence[str]) -> list[tuple[int, Any]]:
    """The entities of the n-th sentence."""
    return [(n, entity) for entity in entities(tags)]
