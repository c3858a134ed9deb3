"""The peers of a bench: other implementations of GPT-2. A new one is a value of `PEERS`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor

from harken.data.batch import Batch
from harken.models.gpt import GPT
from harken.training.settings import Train

from . import ctranslate2_gpt2, plain_gpt2, transformers_gpt2
from .plan import BenchPlan

TrainStep = Callable[[BenchPlan, Callable[[int, int], Batch], Train], Callable[[], None]]
Generation = Callable[[GPT, BenchPlan, str, Tensor], Callable[[], Tensor]]  # model, plan, precision, prompt


@dataclass(frozen=True)
class Peer:
    """Another implementation, which trains, or generates with the weights of a GPT in some precisions, or both."""

    name: str
    extra: str = ""  # of harken, which installs the package `name`; "": only torch is needed
    train_step: TrainStep | None = None
    generation: Generation | None = None
    decode_precisions: Callable[[BenchPlan], Sequence[str]] = lambda plan: []

    @property
    def is_installed(self) -> bool:
        return not self.extra or find_spec(self.name) is not None


PEERS = (
    Peer("plain PyTorch", train_step=plain_gpt2.train_step),
    Peer(
        transformers_gpt2.NAME,
        "hf",
        transformers_gpt2.train_step,
        transformers_gpt2.generation,
        transformers_gpt2.decode_precisions,
    ),
    Peer(
        ctranslate2_gpt2.NAME,
        "ct2",
        generation=ctranslate2_gpt2.generation,
        decode_precisions=ctranslate2_gpt2.decode_precisions,
    ),
)


def missing_notice(benches: Sequence[str]) -> str | None:
    """The peers of these benches that are not installed, with the pip commands."""
    kinds = {
        "train": [peer for peer in PEERS if peer.train_step],
        "decode": [peer for peer in PEERS if peer.generation],
    }
    absent = dict.fromkeys(peer for bench in benches for peer in kinds[bench] if not peer.is_installed)
    listed = ", ".join(f'{peer.name} (pip install "harken[{peer.extra}]")' for peer in absent)
    return f"not installed, so not measured: {listed}" if absent else None
