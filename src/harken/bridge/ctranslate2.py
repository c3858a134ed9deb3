"""Export to CTranslate2: model.bin, config.json, the vocabulary, tokenizer.json and a certificate.

CTranslate2 must reproduce our outputs: the logits and greedy text of a language model, the hidden states of an encoder,
the log-probabilities and greedy targets of an encoder-decoder. The weights are compared in float32, before they are
rounded to a lower precision; the effect of rounding is measured with the same inputs.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import tokenizers
import torch
from torch import Tensor

from harken import run_folder
from harken.data.tokenizers.pairs import PairTokenizers
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.decode.beam import SearchSettings
from harken.decode.sampling import SamplingSettings
from harken.errors import BadInput, HarkenError, MissingExtra
from harken.events import Listener, silent
from harken.inference.run import Run
from harken.models.bert import BERT
from harken.models.gpt import GPT
from harken.models.seq2seq import Seq2Seq

from . import special_tokens
from .certificate import (
    GREEDY_TOKENS,
    RANDOM_TOKENS,
    TEXTS,
    Comparison,
    compare_tensors,
    compare_token_ids,
    failure_message,
    sample_rows,
    versions,
)
from .ctranslate2_spec import (
    Spec,
    Vocabulary,
    encoder_decoder_spec,
    encoder_spec,
    language_model_spec,
    unsupported_setting,
    write_model,
)
from .export import staged_folder

TOLERANCE = 1e-4  # absolute, or relative to the largest score if that exceeds 1
ROUNDING_TOLERANCE = 0.5  # of a lower precision: root mean square of the difference / standard deviation of our scores
Outputs = dict[str, Tensor | list[int]]  # scores, which may differ slightly; tokens, which must be equal


class CTranslate2Export:
    """A run as a CTranslate2 model, and the outputs of both for the same inputs."""

    not_exported: Sequence[str] = ()
    source_end: int | None = None  # id of the end token of a source

    def __init__(self, run: Run) -> None:
        self.run, self.limit = run, min(RANDOM_TOKENS, run.model.context or RANDOM_TOKENS)
        self.tokenizer = special_tokens.base_tokenizer(run)
        self.source = self.vocabulary = Vocabulary(token_names(self.tokenizer))

    def spec(self) -> Spec:
        """The specification with its weights, vocabulary and special tokens."""
        raise NotImplementedError

    def expected(self) -> Outputs:
        """The outputs of our model."""
        raise NotImplementedError

    def actual(self, folder: str) -> Outputs:
        """The outputs of CTranslate2."""
        raise NotImplementedError

    def _set_special_tokens(self, config: Any, **token_ids: int | None) -> None:
        """Set the special tokens of a config. Missing ones keep a default name, which is not one of our tokens."""
        for name, token_id in token_ids.items():
            if token_id is not None:
                setattr(config, f"{name}_token", self.vocabulary.tokens[token_id])


class LanguageModelExport(CTranslate2Export):
    """A GPT: ctranslate2.Generator."""

    def spec(self) -> Spec:
        model: Any = self.run.model
        spec, tokenizer = language_model_spec(model, self.run.recipe.model, self.vocabulary), self.tokenizer
        bos = tokenizer.prefix_ids[0] if tokenizer.prefix_ids else tokenizer.end_id
        self._set_special_tokens(spec.config, unk=tokenizer.unk_id, bos=bos, eos=tokenizer.end_id)
        return spec

    def inputs(self) -> tuple[list[list[int]], list[int]]:
        """Random tokens and a text, and the start of the text."""
        rows = sample_rows(self.tokenizer, self.limit)
        return rows, rows[1][: self.limit // 2]

    def expected(self) -> Outputs:
        rows, start = self.inputs()
        logits = [self.run.model.scores(torch.tensor([row]))[0] for row in rows]
        greedy = self.run.text_generator.generate(
            [start], self._n_greedy(start), SamplingSettings(temperature=0), seed=0
        )
        return {"logits": torch.cat(logits), "greedy": [int(token) for token in greedy]}

    def actual(self, folder: str) -> Outputs:
        from ctranslate2 import Generator

        generator, (rows, start) = Generator(folder, intra_threads=torch.get_num_threads()), self.inputs()
        logits = np.array(generator.forward_batch(rows))  # B L V
        real = [torch.from_numpy(y[: len(row)]) for y, row in zip(logits, rows, strict=True)]
        names = [self.vocabulary.tokens[i] for i in start]
        options: Any = {"max_length": self._n_greedy(start), "end_token": [], "include_prompt_in_result": False}
        return {"logits": torch.cat(real), "greedy": generator.generate_batch([names], **options)[0].sequences_ids[0]}

    def _n_greedy(self, start: list[int]) -> int:
        return min(GREEDY_TOKENS, self.limit - len(start))


class EncoderExport(CTranslate2Export):
    """A BERT: ctranslate2.Encoder."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        heads = {"masked tokens": run.recipe.model.mlm_head, "the next sentence": run.recipe.model.nsp_head}
        problem = "a CTranslate2 encoder has hidden states only"
        self.not_exported = [f"scores of {name}: {problem}" for name, exists in heads.items() if exists]

    def spec(self) -> Spec:
        model: Any = self.run.model
        spec, tokenizer = encoder_spec(model, self.run.recipe.model, self.vocabulary), self.tokenizer
        self._set_special_tokens(spec.config, unk=tokenizer.unk_id, bos=tokenizer.cls_id, eos=tokenizer.sep_id)
        return spec

    def inputs(self) -> tuple[list[list[int]], list[list[int]]]:
        """Rows of different lengths, and the segment of each token."""
        rows, last = sample_rows(self.tokenizer, self.limit), max(0, self.run.model.n_segments - 1)
        return rows, [[last * (n > len(row) // 2) for n in range(len(row))] for row in rows]

    def expected(self) -> Outputs:
        model: Any = self.run.model
        states = [model(torch.tensor([a]), segments=torch.tensor([b]))[0] for a, b in zip(*self.inputs(), strict=True)]
        pooled = {"pooled": torch.stack([model.pooled(h[0]) for h in states])} if model.pooler is not None else {}
        return {"states": torch.cat(states), **pooled}

    def actual(self, folder: str) -> Outputs:
        from ctranslate2 import Encoder

        rows, segments = self.inputs()
        options: Any = {"token_type_ids": segments} if self.run.model.n_segments else {}
        outputs = Encoder(folder, intra_threads=torch.get_num_threads()).forward_batch(rows, **options)
        padded = np.array(outputs.last_hidden_state)  # B L d
        real = [torch.from_numpy(h[: len(row)]) for h, row in zip(padded, rows, strict=True)]
        pooled = outputs.pooler_output
        states = {"states": torch.cat(real)}
        return {**states, **({} if pooled is None else {"pooled": torch.from_numpy(np.array(pooled))})}


class EncoderDecoderExport(CTranslate2Export):
    """An encoder-decoder Transformer: ctranslate2.Translator. Our edge token is the start and end token."""

    source_end: int

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        model: Any = run.model
        sides: PairTokenizers = run.tokenizer
        self.edge = model.edge
        self.end = self.start = self.edge  # an added token, unless the tokenizer is an imported one with an end token
        if sides.source is sides.target and sides.source.kind != "wordpiece":
            ids = special_tokens.edge_token_ids(run)
            self.end, self.start = ids["eos_token_id"], ids["decoder_start_token_id"]
        added = [special_tokens.EDGE_TOKEN] if self.end == self.edge else []
        self.source_end = self.end if sides.source is sides.target else sides.source.vocab
        source, target = ([*token_names(tokenizer), *added] for tokenizer in sides.sides)
        self.source = Vocabulary(source, {self.source_end: model.source_vocab - 1})
        self.vocabulary = Vocabulary(target, {self.start: self.edge})
        self.outputs = Vocabulary(target, {self.end: self.edge})

    def spec(self) -> Spec:
        model: Any = self.run.model
        spec = encoder_decoder_spec(model, self.run.recipe.model, self.source, self.vocabulary, self.outputs)
        self._set_special_tokens(
            spec.config, unk=self.run.tokenizer.target.unk_id, bos=self.start, eos=self.end, decoder_start=self.start
        )
        return spec

    def inputs(self) -> tuple[list[list[int]], list[list[int]]]:
        """Random sources and targets of different lengths, without end tokens."""
        generator, (n_source, n_target) = np.random.default_rng(0), map(len, (self.source.tokens, self.outputs.tokens))
        lengths = (self.limit - 1, self.limit // 3)
        special = {self.start, self.end, self.source_end}

        def rows(n_ids: int) -> list[list[int]]:
            return [[i for i in generator.integers(0, n_ids, n).tolist() if i not in special] for n in lengths]

        return rows(n_source), rows(n_target)

    def expected(self) -> Outputs:
        model: Any = self.run.model
        sources, targets = self.inputs()
        sources = [[*row, model.source_vocab - 1] for row in sources]
        log_p = []
        for source, target in zip(sources, targets, strict=True):
            scores = model.scores(torch.tensor([[self.edge, *target]]), source=torch.tensor([source]))[0]
            log_p.append(scores.log_softmax(-1).gather(-1, torch.tensor([*target, self.edge])[:, None])[:, 0])
        search = SearchSettings(beam=1, max_new_tokens=self.limit - 1)
        best = [output[0].tokens for output in self.run.beam_search.search(sources, search)]
        return {"log_probabilities": torch.cat(log_p), "greedy": [token for tokens in best for token in tokens]}

    def actual(self, folder: str) -> Outputs:
        from ctranslate2 import Translator

        sources, targets = self.inputs()
        translator = Translator(folder, intra_threads=torch.get_num_threads())
        source = [[self.source.tokens[i] for i in [*row, self.source_end]] for row in sources]
        target = [[self.vocabulary.tokens[i] for i in row] for row in targets]
        scored = translator.score_batch(source, target, max_input_length=0)
        options: Any = {"beam_size": 1, "max_decoding_length": self.limit - 1, "min_decoding_length": 0}
        best = translator.translate_batch(source, max_input_length=0, **options)
        index = {name: i for i, name in enumerate(self.vocabulary.tokens)}
        greedy = [index[name] for output in best for name in output.hypotheses[0]]
        return {"log_probabilities": torch.tensor([p for row in scored for p in row.log_probs]), "greedy": greedy}


def export(run: Run, out: str | Path, *, precision: str = "float32", listen: Listener = silent) -> dict[str, object]:
    """Write a folder that CTranslate2 loads. precision: of the weights (float32, bfloat16, int8)."""
    try:
        import ctranslate2
    except ImportError:
        raise MissingExtra("export --to ctranslate2", "ct2") from None
    ctranslate2.set_log_level(logging.ERROR)  # it warns if the machine computes bfloat16 in float32
    exported = find_export(run)
    with staged_folder(Path(out)) as folder, torch.inference_mode():
        for name, content in special_tokens.tokenizer_files(run).items():
            if name.startswith("tokenizer"):
                run_folder.write_json(folder / name, content)
        write_model(exported.spec(), folder)
        listen("certify")
        expected, missing = exported.expected(), list(exported.not_exported)
        parts = _compare(expected, exported.actual(str(folder)))
        if special_tokens.is_portable(run):
            parts["tokenizer"] = compare_token_ids(run, _encode_texts(exported, folder), exported.source_end)
        else:
            missing.append(special_tokens.NOT_PORTABLE)
        if precision != "float32":
            write_model(exported.spec(), folder, precision)
            parts[precision] = _measure_rounding(expected, exported.actual(str(folder)))
        passed = all(part["passed"] for part in parts.values())
        certificate: dict[str, object] = {"source": str(run.path), "family": "ctranslate2", "precision": precision}
        certificate |= {**parts, "passed": passed, "not_checked": missing, "versions": versions()}
        if not passed:
            raise HarkenError(f"{run.path}: {failure_message(certificate)}; nothing was written")
        run_folder.write_json(folder / "certificate.json", certificate)
    return certificate


def find_export(run: Run) -> CTranslate2Export:
    """The export of this run; a model that CTranslate2 cannot express is refused."""
    kinds: dict[type, type[CTranslate2Export]] = {
        GPT: LanguageModelExport,
        BERT: EncoderExport,
        Seq2Seq: EncoderDecoderExport,
    }
    settings: Any = run.recipe.model
    if type(run.model) not in kinds:
        what = f"model.kind={settings.kind} for data.kind={run.recipe.data.kind}"
        accepted = "accepted: gpt, bert and transformer without a head; choose another --to"
        raise BadInput(f"{run.path}: {what} has no counterpart in CTranslate2; {accepted}")
    if problem := unsupported_setting(settings):
        raise BadInput(f"{run.path}: CTranslate2 cannot express {problem}; choose another --to")
    return kinds[type(run.model)](run)


def token_names(tokenizer: Tokenizer) -> list[str]:
    """The tokens of tokenizer.json in the order of their ids."""
    library = tokenizers.Tokenizer.from_buffer(tokenizer.json)
    return [library.id_to_token(i) or f"<unused {i}>" for i in range(tokenizer.vocab)]


def _compare(expected: Outputs, actual: Outputs) -> dict[str, Comparison]:
    """Scores within the tolerance, and equal tokens."""
    parts = dict[str, Comparison]()
    for name, output in expected.items():
        if isinstance(output, Tensor):
            parts[name] = compare_tensors(cast(Tensor, actual[name]), output, tolerance=TOLERANCE)
        else:
            parts[name] = {"passed": actual[name] == output, "tokens": len(output)}
    return parts


def _measure_rounding(expected: Outputs, actual: Outputs) -> Comparison:
    """How far a lower precision moves the scores, and the number of equal tokens."""
    name, scores = next((name, output) for name, output in expected.items() if isinstance(output, Tensor))
    difference = cast(Tensor, actual[name]) - scores
    relative = float(difference.square().mean().sqrt() / scores.std())
    part: Comparison = {"passed": relative <= ROUNDING_TOLERANCE, "max_difference": float(difference.abs().max())}
    part |= {"relative_difference": relative, "tolerance": ROUNDING_TOLERANCE}
    if tokens := expected.get("greedy", []):
        n_equal = sum(a == b for a, b in zip(tokens, actual["greedy"], strict=False))
        part |= {"tokens": len(tokens), "equal": n_equal}
    return part


def _encode_texts(exported: CTranslate2Export, folder: Path) -> list[list[int]]:
    """The ids of sample texts: the tokens of tokenizer.json in the vocabulary of the model."""
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    index = {name: i for i, name in enumerate(exported.source.tokens)}
    return [[index[name] for name in library.encode(text).tokens] for text in TEXTS]
