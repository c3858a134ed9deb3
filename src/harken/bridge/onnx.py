"""Our models as ONNX graphs: a language model gives the scores of the next word, an encoder the states of a text.

Batch and length are left open. The graph is run by onnxruntime on some of them, and has to say what the model says.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harken import run as runs
from harken.core import keep
from harken.errors import BadInput, HarkenError, MissingExtra
from harken.events import Listener, silent
from harken.models.bert import BERT
from harken.models.gpt import GPT
from harken.use.model import Run

from . import marks
from .certificate import failure, near, versions
from .export import placed

APART = 1 << 30  # bytes of weights beyond which they lie in a file of their own: a graph has at most 2 GB
SHAPES = ((1, 1), (1, 7), (3, 16))  # batch, length: on which the graph is tried


class Scores(nn.Module):
    """input_ids -> logits"""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        return (self.model.scores(input_ids),)


class States(nn.Module):
    """input_ids, attention_mask (, token_type_ids) -> last_hidden_state (, logits)"""

    def __init__(self, model: BERT) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        h = self.model(input_ids, segments=token_type_ids, structure=keep(attention_mask > 0))
        return (h,) if self.model.transform is None else (h, self.model.logits(h))


def export(run: Run, out: str | Path, *, listen: Listener = silent) -> dict[str, Any]:
    """Write model.onnx, its words and the certificate into a folder."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtra("export --to onnx", "onnx") from None
    graph, inputs, outputs = _graph(run)
    with placed(Path(out)) as folder:
        _write(graph.eval(), folder / "model.onnx", inputs, outputs, run)
        for name, content in marks.files(run).items():
            runs.write_json(folder / name, content)
        listen("certify")
        session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        certificate = {"source": str(run.path), "family": "onnx", **_compare(graph, session, inputs, outputs, run)}
        passed = all(certificate[name]["passed"] for name in outputs)
        certificate |= {"passed": passed, "not_checked": [], "versions": versions()}
        if not passed:
            raise HarkenError(f"{run.path}: {failure(certificate)}; nothing was written")
        runs.write_json(folder / "certificate.json", certificate)
    return certificate


def _graph(run: Run) -> tuple[nn.Module, list[str], list[str]]:
    """What is written, and the names of what goes in and comes out."""
    model = run.model
    if isinstance(model, GPT):
        return Scores(model), ["input_ids"], ["logits"]
    if not isinstance(model, BERT):
        raise BadInput(f"{run.path}: a {run.recipe.model.kind} is not exported to ONNX; gpt and bert are")
    segments = [] if model.segments is None else ["token_type_ids"]
    scores = [] if model.transform is None else ["logits"]
    return States(model), ["input_ids", "attention_mask", *segments], ["last_hidden_state", *scores]


def _drawn(inputs: list[str], B: int, L: int, run: Run) -> tuple[Tensor, ...]:
    """Random tokens, a mask that hides the end of the first row, and two segments."""
    real = torch.ones(B, L, dtype=torch.long)
    real[0, (L + 1) // 2 :] = 0
    drawn = {
        "input_ids": torch.randint(run.tokenizer.vocab, (B, L), generator=torch.Generator().manual_seed(B * L)),
        "attention_mask": real,
        "token_type_ids": (torch.arange(L) >= L // 2).long().expand(B, L).contiguous(),
    }
    return tuple(drawn[name] for name in inputs)


@torch.inference_mode()
def _compare(graph: nn.Module, session: Any, inputs: list[str], outputs: list[str], run: Run) -> dict[str, Any]:
    """How far what onnxruntime says is from what we say."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in outputs}
    most = run.model.context or 16
    for B, L in ((B, min(L, most)) for B, L in SHAPES):
        given = _drawn(inputs, B, L, run)
        said = session.run(outputs, {name: x.numpy() for name, x in zip(inputs, given, strict=True)})
        real = given[1] > 0 if len(given) > 1 else torch.ones(B, L, dtype=torch.bool)
        for name, ours, theirs in zip(outputs, graph(*given), said, strict=True):
            found[name].append((ours[real], torch.from_numpy(theirs)[real]))
    return {name: near(*(torch.cat(side) for side in zip(*some, strict=True))) for name, some in found.items()}


def _write(graph: nn.Module, path: Path, inputs: list[str], outputs: list[str], run: Run) -> None:
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=run.model.context or 1 << 20)
    with _quiet():
        torch.onnx.export(
            graph,
            _drawn(inputs, 2, 5, run),
            path,
            dynamo=True,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=tuple({0: batch, 1: length} for _ in inputs),
            external_data=4 * run.parameters > APART,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of libraries that it does not need, and of its own future."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
