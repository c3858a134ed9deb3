"""Copying: an answer takes each word from the vocabulary or from its source (See et al. 2017, arXiv 1704.04368).

a = softmax(sim(W_q h, W_k H_enc)), g = sigmoid(w . h + b),
p(y) = g p_vocab(y) + (1 - g) (sum of a_j over the source positions j that hold y).

The temporary ids of a pair, which stand for words of its source outside the vocabulary, have p_vocab = 0. All is
computed from logarithms in float32 or higher, also under autocast.
"""

import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import Editor, FixedMemory, ScaledDot, Structure, Watchable
from harken.core.similarity import TINY, precise, score
from harken.settings import PairVocab, Settings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", 'Field name "copy"')  # a deprecated method of pydantic, which nothing calls

    class CopySettings(Settings):
        """Settings of an encoder-decoder that can copy."""

        copy: bool = Field(  # type: ignore[assignment]
            False,
            description="pointer attention: the target can copy words of its source; needs one tokenizer for both",
        )


class CopyStates(NamedTuple):
    """The decoder states, and how each copies from its source."""

    h: Tensor  # B L d
    log_generate: Tensor  # B L 1: ln g
    log_copy: Tensor  # B L Ls: ln (1 - g) a
    words: Tensor  # B Ls: token ids of the source


class Pointer(Watchable):
    """Pointer attention of a decoder to its source, and the mixture of both distributions."""

    def __init__(self, d: int, vocab: tuple[int, int]) -> None:
        super().__init__()
        self.W_q, self.W_k, self.gate = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 1)
        self.similarity = ScaledDot(d)
        n_temporary = vocab.temporary if isinstance(vocab, PairVocab) else 0
        self.temporary = slice(vocab[1] - 1 - n_temporary, vocab[1] - 1)  # ids; the last one is the edge token
        self.n_generated = vocab[1] - n_temporary

    def memory(self, H: Tensor, words: Tensor) -> FixedMemory:  # B Ls d, B Ls
        """The keys of a source; the values are its words."""
        return FixedMemory(self.W_k(H)[:, None], words)

    def forward(self, h: Tensor, source: FixedMemory, structure: Structure) -> CopyStates:  # B*K L d: K texts a source
        k, words = source.k, source.v
        rows = k.shape[0]
        q = self.W_q(h).reshape(rows, 1, -1, h.shape[-1])
        layout = structure.layout(rows, q.shape[2], k.shape[2], h.device)
        if self.watch is not None and not isinstance(self.watch, Editor):
            self.watch(q, k, self.similarity, layout)
        scores, forbidden = score(self.similarity.all_pairs, q, k), ~layout.mask_rows()  # B 1 K*L Ls
        lowest = torch.finfo(scores.dtype).min  # finite, as are its gradients
        log_a = scores.masked_fill(forbidden, lowest).log_softmax(-1).masked_fill(forbidden, lowest)
        if isinstance(self.watch, Editor):
            log_a = self.watch.f(log_a.exp()).clamp_min(TINY).log()
        gate = precise(self.gate(h))
        log_copy = log_a.reshape(*h.shape[:2], -1) + F.logsigmoid(-gate)
        return CopyStates(h, F.logsigmoid(gate), log_copy, words.repeat_interleave(len(h) // rows, 0))

    def log_probabilities(self, states: CopyStates, logits: Tensor) -> Tensor:  # B L V -> B L V
        """ln p of every word; -inf for temporary ids that are not in the source."""
        log_copy, words = states.log_copy, states.words
        same = words[:, :, None] == words[:, None]  # B Ls Ls
        largest = log_copy.amax(-1, keepdim=True)
        with torch.autocast(log_copy.device.type, enabled=False):
            total = ((log_copy - largest).exp() @ same.to(log_copy.dtype)).clamp_min(TINY).log() + largest
        repeated = same.tril(-1).any(-1)[:, None]  # all positions of a word have its total; one has the gradient
        total = torch.where(repeated, total.detach(), total)
        copied = total.new_full(logits.shape, -torch.inf).scatter(-1, words[:, None].expand_as(total), total)
        mixture = torch.logaddexp(states.log_generate + self._log_generated(logits), copied)
        return mixture.masked_fill(mixture < torch.finfo(mixture.dtype).min / 2, -torch.inf)

    def losses(self, states: CopyStates, logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """-ln p of each target, and the same with label smoothing, which smooths p_vocab: B L each."""
        logs = self._log_generated(logits)
        generated = states.log_generate + logs.gather(-1, targets[..., None])
        holds = states.words[:, None] == targets[..., None]  # B L Ls
        copied = states.log_copy.masked_fill(~holds, torch.finfo(logs.dtype).min).logsumexp(-1)
        plain = -torch.cat([generated, copied[..., None]], -1).logsumexp(-1)  # logaddexp: its second derivative is NaN
        if not smoothing:
            return plain, plain
        uniform = -self._without_temporary(logs, 0).sum(-1) / self.n_generated
        return plain, (1 - smoothing) * plain + smoothing * uniform

    def _log_generated(self, logits: Tensor) -> Tensor:
        """ln p_vocab; the lowest finite number for temporary ids."""
        logits = precise(logits)
        return self._without_temporary(logits, torch.finfo(logits.dtype).min).log_softmax(-1)

    def _without_temporary(self, x: Tensor, fill: float) -> Tensor:  # ... V
        """The values with those of temporary ids replaced."""
        ids = torch.arange(x.shape[-1], device=x.device)
        return x.masked_fill((ids >= self.temporary.start) & (ids < self.temporary.stop), fill)
