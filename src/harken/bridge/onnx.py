"""Export to ONNX. Outputs: next-token logits of a language model, hidden states of an encoder, logits of a head per
text or token, target logits of an encoder-decoder.

Batch size and lengths are dynamic. onnxruntime runs the graph on several shapes and must reproduce our outputs.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harken import run_folder
from harken.core import keep
from harken.data.labelled.source import TextLabelProcessor
from harken.errors import BadInput, HarkenError, MissingExtra
from harken.events import Listener, silent
from harken.inference.run import Run
from harken.models import EncodedSource
from harken.models.bert import BERT
from harken.models.gpt import GPT
from harken.models.heads import ModelWithHead
from harken.models.seq2seq import DecoderMemory, Seq2Seq

from . import special_tokens
from .certificate import Comparison, compare_tensors, failure_message, head_logits, versions
from .export import staged_folder
from .families import heads

EXTERNAL_DATA_BYTES = 1 << 30  # weights above this size go to a separate file: a graph has at most 2 GB
CHECKED_SHAPES = ((1, 1), (1, 7), (3, 16))  # batch, length
Tensors = tuple[Tensor, ...]


class ONNXGraph(nn.Module):
    """The exported module. `expected` is the output of the run itself, if the graph computes it differently."""

    model: nn.Module
    per_token = False  # whether the output has one row per input token, padding included

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model = run.model

    def expected(self, *inputs: Tensor) -> Tensors:
        return self(*inputs)


class LanguageModelGraph(ONNXGraph):
    """input_ids -> logits"""

    model: GPT

    def forward(self, input_ids: Tensor) -> Tensors:
        return (self.model.scores(input_ids),)


class EncoderGraph(ONNXGraph):
    """input_ids, attention_mask (, token_type_ids) -> last_hidden_state (, logits)"""

    model: BERT
    per_token = True

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensors:
        h = self.model(input_ids, segments=token_type_ids, structure=keep(attention_mask > 0))
        return (h,) if self.model.transform is None else (h, self.model.logits(h))


class HeadGraph(ONNXGraph):
    """input_ids, attention_mask (, token_type_ids) -> logits, per text or per token"""

    model: ModelWithHead

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.run, self.per_token, processor = run, self.model.outputs.per_token, run.tokenizer
        is_number = isinstance(processor, TextLabelProcessor) and processor.target_type == "number"
        self.scale: float = processor.std if is_number else 1.0
        self.mean: float = processor.mean if is_number else 0.0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensors:
        h = self.model(input_ids, segments=token_type_ids, structure=keep(attention_mask > 0))
        if self.per_token:
            return (self.model.predict(h),)
        return (self.model.predict(self._pool(h, attention_mask)) * self.scale + self.mean,)

    def expected(self, *inputs: Tensor) -> Tensors:
        tokens, real, *segments = inputs
        return (head_logits(self.run, tokens, lengths=real.sum(1), segments=next(iter(segments), None)),)

    def _pool(self, h: Tensor, real: Tensor) -> Tensor:  # B L d, B L -> B d
        """The state of each text. The model pools packed texts; here each row is one text."""
        if self.model.pool == "mean":
            return (h * real[..., None]).sum(1) / real.sum(1)[:, None]
        if self.model.pool == "last":
            return h.gather(1, (real.sum(1) - 1)[:, None, None].expand(-1, 1, h.shape[-1]))[:, 0]
        return self.model.body.pooled(h[:, 0])


class EncoderDecoderGraph(ONNXGraph):
    """input_ids, attention_mask, decoder_input_ids -> logits. Ids are those of tokenizer.json."""

    model: Seq2Seq

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        edge, ids, tokenizers = self.model.edge, special_tokens.edge_token_ids(run), run.tokenizer
        self.start, end = ids["decoder_start_token_id"], ids["eos_token_id"]
        self.columns = [*range(max(edge, end + 1))]
        self.columns[end] = edge
        self.source_end = end if tokenizers.source is tokenizers.target else tokenizers.source.vocab

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensors:
        real = attention_mask > 0
        source = EncodedSource(self.model.encode(self._source(input_ids), real), real)
        no_memory: Any = None  # the target is processed as a whole
        memory = DecoderMemory(no_memory, source)
        return (self.model.scores(self._target(decoder_input_ids), memory=memory)[..., self.columns],)

    def expected(self, *inputs: Tensor) -> Tensors:
        source, real, tokens = inputs
        logits = self.model.scores(self._target(tokens), source=self._source(source), source_lengths=real.sum(1))
        return (logits[..., self.columns],)

    def _source(self, ids: Tensor) -> Tensor:
        """With our edge token instead of their end; padding ids beyond it are clamped."""
        edge = self.model.source_vocab - 1
        return torch.where(ids == self.source_end, edge, ids).clamp_max(edge)

    def _target(self, ids: Tensor) -> Tensor:
        return torch.where(ids == self.start, self.model.edge, ids).clamp_max(self.model.edge)


def export(run: Run, out: str | Path, *, listen: Listener = silent) -> dict[str, object]:
    """Write model.onnx, the tokenizer and the certificate into a folder."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtra("export --to onnx", "onnx") from None
    graph, inputs, outputs = _build_graph(run)
    with staged_folder(Path(out)) as folder:
        _write(graph.eval(), folder / "model.onnx", inputs, outputs, run)
        for name, content in special_tokens.tokenizer_files(run).items():
            run_folder.write_json(folder / name, content)
        listen("certify")
        session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        parts = _compare(graph, session, inputs, outputs, run)
        if isinstance(run.model, ModelWithHead):
            run_folder.write_json(folder / "labels.json", heads.label_config(run))
        passed = all(part["passed"] for part in parts.values())
        missing = [] if special_tokens.is_portable(run) else [special_tokens.NOT_PORTABLE]
        certificate: dict[str, object] = {"source": str(run.path), "family": "onnx", **parts}
        certificate |= {"passed": passed, "not_checked": missing, "versions": versions()}
        if not passed:
            raise HarkenError(f"{run.path}: {failure_message(certificate)}; nothing was written")
        run_folder.write_json(folder / "certificate.json", certificate)
    return certificate


def _build_graph(run: Run) -> tuple[ONNXGraph, list[str], list[str]]:
    """The module to export, and the names of its inputs and outputs."""
    model: nn.Module = run.model
    if dict(run.recipe.model).get("structure") == "bigbird":
        raise BadInput(f"{run.path}: model.structure=bigbird has no ONNX export; only full attention is exported")
    if dict(run.recipe.model).get("copy"):
        raise BadInput(f"{run.path}: model.copy=true has no ONNX export; train with model.copy=false")
    body = model.body if isinstance(model, ModelWithHead) else model
    segments = ["token_type_ids"] if isinstance(body, BERT) and body.n_segments else []
    inputs = ["input_ids", "attention_mask", *segments]
    if isinstance(model, GPT):
        return LanguageModelGraph(run), ["input_ids"], ["logits"]
    if isinstance(model, BERT):
        return EncoderGraph(run), inputs, ["last_hidden_state", *([] if model.transform is None else ["logits"])]
    if isinstance(model, Seq2Seq):
        return EncoderDecoderGraph(run), ["input_ids", "attention_mask", "decoder_input_ids"], ["logits"]
    if isinstance(body, BERT | GPT):
        return HeadGraph(run), inputs, ["logits"]
    raise BadInput(f"{run.path}: {run.recipe.model.kind} has no ONNX export; accepted: gpt, bert, transformer")


def _random_inputs(inputs: list[str], B: int, L: int, run: Run) -> Tensors:
    """Random tokens, padding at the end of the first row, two segments, and a target of another length."""
    real = torch.ones(B, L, dtype=torch.long)
    real[0, (L + 1) // 2 :] = 0
    generator = torch.Generator().manual_seed(B * L)
    n_ids = min(run.tokenizer.vocab) - 1 if run.is_encoder_decoder else special_tokens.base_tokenizer(run).vocab
    target = torch.randint(n_ids, (B, L // 2 + 1), generator=generator)
    target[:, 0] = special_tokens.edge_token_ids(run)["decoder_start_token_id"] if run.is_encoder_decoder else 0
    tensors = {
        "input_ids": torch.randint(n_ids, (B, L), generator=generator),
        "attention_mask": real,
        "token_type_ids": (torch.arange(L) >= L // 2).long().expand(B, L).contiguous(),
        "decoder_input_ids": target,
    }
    return tuple(tensors[name] for name in inputs)


@torch.inference_mode()
def _compare(graph: ONNXGraph, session: Any, inputs: list[str], outputs: list[str], run: Run) -> dict[str, Comparison]:
    """The differences between the outputs of onnxruntime and ours."""
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in outputs}
    limit = run.model.context or 16
    for B, L in ((B, min(L, limit)) for B, L in CHECKED_SHAPES):
        tensors = _random_inputs(inputs, B, L, run)
        actual = session.run(outputs, {name: x.numpy() for name, x in zip(inputs, tensors, strict=True)})
        for name, expected, array in zip(outputs, graph.expected(*tensors), actual, strict=True):
            real = tensors[1] > 0 if graph.per_token else torch.ones(expected.shape[:-1], dtype=torch.bool)
            pairs[name].append((expected[real], torch.from_numpy(array)[real]))
    return {name: compare_tensors(*(torch.cat(x) for x in zip(*rows, strict=True))) for name, rows in pairs.items()}


def _write(graph: nn.Module, path: Path, inputs: list[str], outputs: list[str], run: Run) -> None:
    batch, max_length = torch.export.Dim("batch"), run.model.context or 1 << 20
    length, target = (torch.export.Dim(name, max=max_length) for name in ("length", "target"))
    with _silence_exporter(), torch.no_grad():
        torch.onnx.export(
            graph,
            _random_inputs(inputs, 2, 5, run),
            path,
            dynamo=True,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=tuple({0: batch, 1: target if "decoder" in name else length} for name in inputs),
            external_data=4 * run.parameters > EXTERNAL_DATA_BYTES,
            verbose=False,
        )


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Without the exporter's warnings about optional libraries and deprecations."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
