"""What a model owes, proved: each proof goes two ways to the same numbers and gives their largest difference, and who
is to blame for it. A family that cannot do what is asked says so by a HarkenError, and the proof does not apply."""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harken.core import same
from harken.data.batch import IGNORE, Batch
from harken.errors import HarkenError
from harken.events import silent
from harken.models import EncoderDecoder, LanguageModel
from harken.models.sets import SetEncoder
from harken.tasks import Learning
from harken.training.settings import Train
from harken.training.step import Step

from .divergence import Blamed, Excerpt, blame, differ, gap, noting

LENGTH, SOURCE = 32, 8  # tokens in a row, and in the source that an encoder-decoder is told
ROWS, MICRO = 5, 2  # rows of a batch whose gradients are added up, and how many at a time: 2 + 2 + 1
Found = tuple[float, Blamed]
Pair = tuple[Excerpt, Excerpt]


class Probe:
    """A model to be asked, with the same words and dice every time; with notes of what each module does, if wanted."""

    def __init__(self, model: LanguageModel, L: int, *, notes: bool = False) -> None:
        if L < 2 or model.vocab < 2:
            raise HarkenError("a single token, or a single word, leaves nothing to compare")
        self.model, self.L, self.notes = model.eval(), L, notes
        self.dice = torch.Generator().manual_seed(0)
        self.source: Tensor | None = None  # what an encoder-decoder is told: the same in every row
        if isinstance(model, EncoderDecoder):
            self.source = torch.randint(model.source_vocab, (1, SOURCE), generator=self.dice)

    def told(self, B: int) -> dict[str, Any]:
        return {} if self.source is None else {"source": self.source.expand(B, -1)}

    def memory(self, B: int) -> Any:
        return self.model.memory(B, self.L, **self.told(B))

    def __call__(self, tokens: Tensor, *, grad: bool = False, **given: Any) -> Excerpt:
        """One call. What a dropout drops in training is the same in each call of the same shape."""
        torch.default_generator.manual_seed(0)
        given = given if "memory" in given else self.told(len(tokens)) | given
        with torch.set_grad_enabled(grad or self.model.training), noting(self.model, wanted=self.notes) as notes:
            return Excerpt(self.model(tokens, **given), notes)

    def words(self, B: int, L: int) -> Tensor:
        return torch.randint(self.model.vocab, (B, L), generator=self.dice)

    def others(self, tokens: Tensor) -> Tensor:
        """Another word at each place."""
        return (tokens + torch.randint(1, self.model.vocab, tokens.shape, generator=self.dice)) % self.model.vocab

    def needs(self, *names: str) -> None:
        takes = inspect.signature(self.model.forward).parameters
        if any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            return
        if missing := [name for name in names if name not in takes]:
            raise HarkenError(f"its forward takes no {missing[0]}")

    def places(self) -> list[int]:
        """Where a text is cut: at both ends and between."""
        return sorted({0, self.L // 3, self.L - 2})


def _largest(gaps: Iterable[float]) -> float:
    return max(gaps, key=lambda x: math.inf if math.isnan(x) else x)


# --- the same numbers -------------------------------------------------------------------------------------------------


def compared(pairs: Callable[[Probe], Iterator[Pair]], model: LanguageModel, L: int, limit: float) -> Found:
    """The largest difference of any pair; if it is too large, all are made again with notes."""
    worst = _largest(gap(a.h[a.where], b.h[b.where]) for a, b in pairs(Probe(model, L)))
    if worst <= limit:
        return worst, None
    return worst, next(filter(None, (differ(a, b, limit) for a, b in pairs(Probe(model, L, notes=True)))), None)


def causal(probe: Probe) -> Iterator[Pair]:
    """Other words after a place: what stands up to it, while judging and while learning."""
    tokens = probe.words(2, probe.L)
    for learning in (False, True):
        probe.model.train(learning)
        before = probe(tokens)
        for t in probe.places():
            past, changed = slice(t + 1), torch.cat([tokens[:, : t + 1], probe.others(tokens[:, t + 1 :])], 1)
            yield before.at(places=past), probe(changed).at(places=past)


def padded(probe: Probe) -> Iterator[Pair]:
    """Texts alone and with words behind their end, these or others; then what follows them, from the memory."""
    probe.needs("lengths", *(("memory", "pos") if probe.model.causal else ()))
    tokens, n = probe.words(2, probe.L), probe.L // 2
    other, ends = torch.cat([tokens[:, :n], probe.others(tokens[:, n:])], 1), torch.tensor([n, n])
    alone = probe(tokens[:, :n])
    for row in (tokens, other):
        yield alone, probe(row, lengths=ends).at(places=slice(n))
    if not probe.model.causal:
        return
    mine, theirs = probe.memory(2), probe.memory(2)
    probe(tokens[:, :n], pos=torch.arange(n), memory=mine)
    probe(other, pos=torch.arange(probe.L), memory=theirs, lengths=ends)
    for t in range(n, min(n + 3, probe.L)):
        token, pos = tokens[:, t : t + 1], torch.tensor([[t], [t]])
        yield probe(token, pos=pos, memory=mine), probe(token, pos=pos, memory=theirs)


def packed(probe: Probe) -> Iterator[Pair]:
    """Three documents in a row, one of them a single word; then each alone. Of pairs each has a source of its own."""
    probe.needs(*(("pos", "structure") if probe.source is None else ("packed",)))
    tokens, third = probe.words(2, probe.L), probe.L // 3
    lengths = [n for n in (third, 1, probe.L - third - 1) if n]
    pos, doc = _in_a_row(lengths)
    given: dict[str, Any] = {"pos": pos, "structure": same(doc)}
    alone, start = [dict[str, Any]()] * 3, 0
    if probe.source is not None:
        alone = [{"source": part.expand(2, -1)} for part in probe.source.split([3, 1, SOURCE - 4], 1)]
        sources = [told["source"] for told in alone[: len(lengths)]]
        packing = *_in_a_row(lengths), *_in_a_row([source.shape[1] for source in sources])
        given = {"source": torch.cat(sources, 1), "packed": packing}
    together = probe(tokens, **given)
    for n, told in zip(lengths, alone, strict=False):
        here = slice(start, start + n)
        yield together.at(places=here), probe(tokens[:, here], **told)
        start += n


def _in_a_row(lengths: list[int]) -> tuple[Tensor, Tensor]:  # 2 L twice
    """The place of each word in its document, and which document it is."""
    pos, doc = torch.cat([torch.arange(n) for n in lengths]), torch.repeat_interleave(torch.tensor(lengths))
    return pos.expand(2, -1), doc.expand(2, -1)


def cached(probe: Probe) -> Iterator[Pair]:
    """The whole text at once; then a prompt, and what follows word by word, with a memory."""
    probe.needs("memory", "pos")
    tokens, n = probe.words(2, probe.L), probe.L // 2
    whole, memory = probe(tokens), probe.memory(2)
    for here in (slice(n), *(slice(t, t + 1) for t in range(n, probe.L))):
        yield whole.at(places=here), probe(tokens[:, here], pos=torch.arange(probe.L)[here], memory=memory)


def batched(probe: Probe) -> Iterator[Pair]:
    """Rows of different lengths in a batch, and the word after each; then each row alone."""
    probe.needs("lengths", *(("memory", "pos") if probe.model.causal else ()))
    long, next_ = probe.L - 1, probe.words(4, 1)
    tokens, ends = probe.words(4, long), torch.tensor([long, max(1, long // 2), 1, max(1, long - 1)])
    together = probe(tokens, lengths=ends)
    for r, n in enumerate(ends.tolist()):
        yield together.at(rows=slice(r, r + 1), places=slice(n)), probe(tokens[r : r + 1, :n])
    if not probe.model.causal:
        return
    memory = probe.memory(4)
    probe(tokens, pos=torch.arange(long), memory=memory, lengths=ends)
    after = probe(next_, pos=ends[:, None], memory=memory)
    for r, n in enumerate(ends.tolist()):
        row, own = slice(r, r + 1), probe.memory(1)
        probe(tokens[row, :n], pos=torch.arange(n), memory=own)
        yield after.at(rows=row), probe(next_[row], pos=torch.tensor([n]), memory=own)


def told(probe: Probe) -> Iterator[Pair]:
    """A source alone; then with words behind its end, these or others, in the whole pass and from the memory."""
    if probe.source is None:
        raise HarkenError("it is told no source")
    tokens, n = probe.words(2, probe.L), SOURCE // 2
    short, ends = probe.source[:, :n].expand(2, -1), torch.tensor([n, n])
    alone = probe(tokens, source=short)
    for shift in (0, 1):
        behind = (probe.source[:, n:] + shift) % probe.model.source_vocab  # type: ignore[operator]
        padded = torch.cat([short, behind.expand(2, -1)], 1)
        yield alone, probe(tokens, source=padded, source_lengths=ends)
        memory = probe.model.memory(2, probe.L, padded, ends)
        yield alone.at(places=slice(1)), probe(tokens[:, :1], pos=torch.arange(1), memory=memory)


# --- no gradient from the future --------------------------------------------------------------------------------------


def gradient(model: LanguageModel, L: int, limit: float) -> Found:
    """The largest gradient of a place's vector that goes to a later word, as a share of the largest that goes back."""
    worst = _largest(leak(part.h) for part, leak in _leaks(Probe(model, L)))
    if worst <= limit:
        return worst, None
    for part, leak in _leaks(Probe(model, L, notes=True)):
        calls = ((note.name, note.given.values(), note.said.values()) for note in part.notes)
        if found := blame(calls, lambda y, leak=leak: not leak(y) <= limit):  # type: ignore[misc]
            return worst, found
    return worst, None


def _leaks(probe: Probe) -> Iterator[tuple[Excerpt, Callable[[Tensor], float]]]:
    """A pass, and a measure of what in a tensor's vector at a place comes from later words; for some places."""
    words: list[Tensor] = []

    def cut(module: nn.Module, given: Any, x: Tensor) -> Tensor:
        words.append(x.detach().requires_grad_())
        return words[-1]

    for learning in (False, True):
        probe.model.train(learning)
        handle = probe.model.embed.register_forward_hook(cut)
        try:
            part = probe(probe.words(1, probe.L), grad=True)
        finally:
            handle.remove()
        if not words:
            raise HarkenError("its words do not come through its embedding")
        for t in probe.places():
            yield part, partial(_leak, words[-1], t)


def _leak(x: Tensor, t: int, y: Tensor) -> float:
    if y.shape[:2] != x.shape[:2] or not y.requires_grad:
        return 0.0
    # drawn weights: the plain sum of a normalised vector is always 0, and so is its gradient
    asked = torch.randn(y[:, t].shape, generator=torch.Generator().manual_seed(t), dtype=y.dtype)
    (dx,) = torch.autograd.grad((y[:, t] * asked).sum(), x, retain_graph=True, allow_unused=True)
    return 0.0 if dx is None else gap(dx, dx * (torch.arange(x.shape[1]) <= t)[:, None])


PROOFS: dict[str, Callable[[LanguageModel, int, float], Found]] = {
    "causal": partial(compared, causal),
    "gradient": gradient,
    "padded": partial(compared, padded),
    "packed": partial(compared, packed),
    "told": partial(compared, told),
    "cached": partial(compared, cached),
    "batched": partial(compared, batched),
}


# --- sets -------------------------------------------------------------------------------------------------------------


def of_sets(name: str, model: SetEncoder, L: int) -> Found:
    """Sets of several sizes: in another order, with other rows behind their ends, each alone."""
    dice, model = torch.Generator().manual_seed(0), model.eval()
    sizes = torch.tensor([L, L // 2, 1, L - 1])
    x = torch.randn(len(sizes), L, model.embed.in_features, generator=dice).to(model.embed.weight.dtype)
    keys = torch.rand(x.shape[:2], generator=dice) + (torch.arange(L) >= sizes[:, None])  # what lies behind stays there
    with torch.no_grad():
        said = model(x, sizes)
        if name == "permuted":
            other = model(x.take_along_dim(keys.argsort(1)[..., None], 1), sizes)
        elif name == "padded":
            other = model(torch.where((torch.arange(L) < sizes[:, None])[..., None], x, x + 1), sizes)
        elif name == "batched":
            other = torch.cat([model(x[n : n + 1, :size]) for n, size in enumerate(sizes.tolist())])
        else:
            raise HarkenError("the rows of a set have no order, and none is written")
    return gap(said, other), None


# --- parts of a batch -------------------------------------------------------------------------------------------------


def accumulated(model: nn.Module, task: Learning, L: int, limit: float) -> Found:
    """The gradients of two steps as the training itself makes them: of whole batches, and in micro-batches."""
    here = torch.device("cpu")  # where the model that is asked is; examples may be drawn elsewhere
    batches = [_few(task.batch(0, n).to(here), L) for n in range(min(2, task.steps))]
    if len(batches[0].tokens) < 2:
        raise HarkenError("a batch is a single row, so there is nothing to add up")
    steps = [_step(model, task, micro) for micro in (None, MICRO)]
    worst = _largest(gap(*(_left(step, batch) for step in steps)) for batch in batches)
    return worst, None if worst <= limit else _added(model, task, batches, limit)


def _few(batch: Batch, L: int) -> Batch:
    """A corner of a batch, in which each row asks less than the row above."""
    few = batch.rows(0, ROWS)
    if few.targets.shape != few.tokens.shape:  # its answers are not asked token by token: they cannot be cut like these
        return few
    L = min(L, few.tokens.shape[1])
    names = ("tokens", "targets", "pos", "doc", "segments")
    cut: dict[str, Any] = {k: x[:, :L] for k in names if (x := vars(few).get(k)) is not None}
    if "segments" in cut and (ends := vars(few)["lengths"]) is not None:
        cut["lengths"] = ends.clamp_max(L)
    asked = L - torch.arange(len(few.tokens)) * L // (ROWS + 1)
    cut["targets"] = cut["targets"].masked_fill(torch.arange(L) >= asked[:, None], IGNORE)
    return replace(few, **cut)


def _step(model: nn.Module, task: Learning, micro: int | None) -> Step:
    """The training's own step, which clips nothing."""
    plain = Train(
        device="cpu", precision="float32", compile="no", optimizer="sgd", momentum=0, grad_clip=0, micro_batch=micro
    )
    return Step(model.eval(), _afresh(task), plain, listen=silent)


def _left(step: Step, batch: Batch) -> Tensor:
    """The gradients a step leaves when its rate is 0."""
    step(batch, 0.0)
    return _gradients(step.model)


def _gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _afresh(task: Learning) -> Learning:
    """The task with nothing remembered; the caller's own keeps what it has."""
    mine = copy.copy(task)
    mine.load_state({})
    return mine


def _added(model: nn.Module, task: Learning, batches: list[Batch], limit: float) -> tuple[str, str]:
    """Who is to blame: a module that says something else in a micro-batch, or the loss, or the step that adds up."""

    def by_hand(micro: int) -> tuple[list[Excerpt], Tensor]:
        mine, seen = _afresh(task), []
        model.zero_grad()
        for batch in batches:
            for start in range(0, len(batch.tokens), micro):
                rows = batch.rows(start, start + micro)
                with noting(model, wanted=batch is batches[0]) as notes:  # what a task remembers of it is its own
                    mine.loss(model, rows, start).total.backward()
                seen.append(Excerpt(rows.tokens, notes))
        return seen, _gradients(model)

    (whole, *_), total = by_hand(ROWS)
    parts, added = by_hand(MICRO)
    for n, part in enumerate(parts[: -(-len(whole.h) // MICRO)]):
        if found := differ(whole.at(rows=slice(n * MICRO, (n + 1) * MICRO)), part, limit):
            return found
    guilty = "training.step" if gap(total, added) <= limit else f"{type(task).__name__}.loss"
    return guilty, guilty
