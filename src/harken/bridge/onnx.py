"""Our models as ONNX graphs: a language model gives the scores of the next word, an encoder the states of a text, a
head what it says of the text or of each token, an encoder-decoder the scores of a target's next word.

Batch and lengths are left open. The graph is run by onnxruntime on some of them, and has to say what the model says.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harken import run_folder as runs
from harken.core import keep
from harken.errors import BadInput, HarkenError, MissingExtra
from harken.events import Listener, silent
from harken.inference.run import Run
from harken.models import Source
from harken.models.bert import BERT
from harken.models.gpt import GPT
from harken.models.heads import Headed
from harken.models.seq2seq import Remembered, Seq2Seq

from . import special_tokens
from .certificate import answered, failure, near, versions
from .export import placed
from .families import heads

APART = 1 << 30  # bytes of weights beyond which they lie in a file of their own: a graph has at most 2 GB
SHAPES = ((1, 1), (1, 7), (3, 16))  # batch, length: on which the graph is tried


class Graph(nn.Module):
    """What is written. `ours`: what the run itself says, where the graph has a way of its own to it."""

    each_token = False  # whether what comes out is of each token that goes in, padding with it

    def ours(self, *given: Tensor) -> Any:
        return self(*given)


class Scores(Graph):
    """input_ids -> logits"""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        return (self.model.scores(input_ids),)


class States(Graph):
    """input_ids, attention_mask (, token_type_ids) -> last_hidden_state (, logits)"""

    each_token = True

    def __init__(self, model: BERT) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        h = self.model(input_ids, segments=token_type_ids, structure=keep(attention_mask > 0))
        return (h,) if self.model.transform is None else (h, self.model.logits(h))


class Answers(Graph):
    """input_ids, attention_mask (, token_type_ids) -> logits, of each text or of each token"""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model: Headed = run.model  # type: ignore[assignment]
        words: Any = run.tokenizer
        self.run, self.each_token = run, self.model.asked.each_token
        self.number = (words.spread, words.mean) if getattr(words, "target_type", "") == "number" else (1.0, 0.0)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        h = self.model(input_ids, segments=token_type_ids, structure=keep(attention_mask > 0))
        if self.each_token:
            return (self.model.answers(h),)
        spread, mean = self.number
        return (self.model.answers(self._text(h, attention_mask)) * spread + mean,)

    def ours(self, *given: Tensor) -> Any:
        tokens, real, *segments = given
        return (answered(self.run, tokens, lengths=real.sum(1), segments=next(iter(segments), None)),)

    def _text(self, h: Tensor, real: Tensor) -> Tensor:  # B L d, B L -> B d
        """What stands for the text: the model gathers it for many in a row, here is one."""
        if self.model.pool == "mean":
            return (h * real[..., None]).sum(1) / real.sum(1)[:, None]
        if self.model.pool == "last":
            return h.gather(1, (real.sum(1) - 1)[:, None, None].expand(-1, 1, h.shape[-1]))[:, 0]
        pooled = getattr(self.model.body, "pooled", None)
        return h[:, 0] if pooled is None else pooled(h[:, 0])


class Targets(Graph):
    """input_ids, attention_mask, decoder_input_ids -> logits. Ids are those of tokenizer.json: our edge is a mark."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model: Seq2Seq = run.model  # type: ignore[assignment]
        edge, found = self.model.edge, special_tokens.ids(run)
        self.start, self.end = found["decoder_start_token_id"], found["eos_token_id"]
        self.columns = [*range(max(edge, self.end + 1))]
        self.columns[self.end] = edge
        words: Any = run.tokenizer
        self.last = self.end if words.source is words.target else words.source.vocab  # a source's

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> tuple[Tensor, ...]:
        real = attention_mask > 0
        read = self.model.read(self._source(input_ids), real)
        own: Any = None  # nothing is remembered of the target: it is read whole
        tokens, told = self._target(decoder_input_ids), Remembered(own, Source(read, real))
        return (self.model.scores(tokens, memory=told)[..., self.columns],)

    def ours(self, *given: Tensor) -> Any:
        source, real, tokens = given
        told = {"source": self._source(source), "source_lengths": real.sum(1)}
        return (self.model.scores(self._target(tokens), **told)[..., self.columns],)

    def _source(self, ids: Tensor) -> Tensor:
        return _edged(ids, self.last, self.model.source_vocab - 1)

    def _target(self, ids: Tensor) -> Tensor:
        return _edged(ids, self.start, self.model.edge)


def _edged(ids: Tensor, mark: int, edge: int) -> Tensor:
    """With our edge for their mark; padding may have an id beyond it."""
    return torch.where(ids == mark, edge, ids).clamp_max(edge)


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
        for name, content in special_tokens.files(run).items():
            runs.write_json(folder / name, content)
        listen("certify")
        session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        certificate = {"source": str(run.path), "family": "onnx", **_compare(graph, session, inputs, outputs, run)}
        if isinstance(run.model, Headed):
            runs.write_json(folder / "labels.json", heads.written(run))
        passed = all(certificate[name]["passed"] for name in outputs)
        missing = [] if special_tokens.carried(run) else [special_tokens.LOST]
        certificate |= {"passed": passed, "not_checked": missing, "versions": versions()}
        if not passed:
            raise HarkenError(f"{run.path}: {failure(certificate)}; nothing was written")
        runs.write_json(folder / "certificate.json", certificate)
    return certificate


def _graph(run: Run) -> tuple[Graph, list[str], list[str]]:
    """What is written, and the names of what goes in and comes out."""
    model: nn.Module = run.model
    if getattr(run.recipe.model, "structure", "full") != "full":
        raise BadInput(f"{run.path}: model.structure=bigbird is not exported to ONNX; models with full attention are")
    body = model.body if isinstance(model, Headed) else model
    inputs = ["input_ids", "attention_mask", *([] if getattr(body, "segments", None) is None else ["token_type_ids"])]
    if isinstance(model, GPT):
        return Scores(model), ["input_ids"], ["logits"]
    if isinstance(model, BERT):
        return States(model), inputs, ["last_hidden_state", *([] if model.transform is None else ["logits"])]
    if isinstance(model, Seq2Seq):
        return Targets(run), ["input_ids", "attention_mask", "decoder_input_ids"], ["logits"]
    if isinstance(body, BERT | GPT):
        return Answers(run), inputs, ["logits"]
    raise BadInput(f"{run.path}: a {run.recipe.model.kind} is not exported to ONNX; gpt, bert and transformer are")


def _drawn(inputs: list[str], B: int, L: int, run: Run) -> tuple[Tensor, ...]:
    """Random tokens, a mask that hides the end of the first row, two segments, and a target of another length."""
    real = torch.ones(B, L, dtype=torch.long)
    real[0, (L + 1) // 2 :] = 0
    dice = torch.Generator().manual_seed(B * L)
    most = min(run.tokenizer.vocab) - 1 if run.pairs else special_tokens.plain(run).vocab
    target = torch.randint(most, (B, L // 2 + 1), generator=dice)
    target[:, 0] = special_tokens.ids(run).get("decoder_start_token_id", 0)
    drawn = {
        "input_ids": torch.randint(most, (B, L), generator=dice),
        "attention_mask": real,
        "token_type_ids": (torch.arange(L) >= L // 2).long().expand(B, L).contiguous(),
        "decoder_input_ids": target,
    }
    return tuple(drawn[name] for name in inputs)


@torch.inference_mode()
def _compare(graph: Graph, session: Any, inputs: list[str], outputs: list[str], run: Run) -> dict[str, Any]:
    """How far what onnxruntime says is from what we say."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in outputs}
    most = run.model.context or 16
    for B, L in ((B, min(L, most)) for B, L in SHAPES):
        given = _drawn(inputs, B, L, run)
        said = session.run(outputs, {name: x.numpy() for name, x in zip(inputs, given, strict=True)})
        for name, ours, theirs in zip(outputs, graph.ours(*given), said, strict=True):
            real = given[1] > 0 if graph.each_token else torch.ones(ours.shape[:-1], dtype=torch.bool)
            found[name].append((ours[real], torch.from_numpy(theirs)[real]))
    return {name: near(*(torch.cat(side) for side in zip(*some, strict=True))) for name, some in found.items()}


def _write(graph: nn.Module, path: Path, inputs: list[str], outputs: list[str], run: Run) -> None:
    batch, longest = torch.export.Dim("batch"), run.model.context or 1 << 20
    length, target = (torch.export.Dim(name, max=longest) for name in ("length", "target"))
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            graph,
            _drawn(inputs, 2, 5, run),
            path,
            dynamo=True,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=tuple({0: batch, 1: target if "decoder" in name else length} for name in inputs),
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
