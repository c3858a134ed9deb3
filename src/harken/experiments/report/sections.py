"""Sections of a report beside the facts: samples, training log, attention map, recipe, and commands for the run."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from harken import registry, run_folder
from harken.data.images.files import encode_png
from harken.data.labelled.batch import evenly_spaced
from harken.data.labelled.examples import marked_texts
from harken.data.tokenizers.spec import MASK
from harken.events import silent
from harken.inference.answers import StoryAnswer
from harken.inference.answers.classify import format_labels
from harken.inference.answers.images import CLS
from harken.inference.answers.tag import labelled_spans
from harken.inference.run import Labels, Run
from harken.tasks import BoundTask, Score
from harken.tasks.answer import AnswerTask, FlatAnswerTask
from harken.tasks.caption import CaptionTask
from harken.tasks.classify import ClassifyTask
from harken.tasks.image import ImageTask
from harken.tasks.masked_words import MaskedWordsTask
from harken.tasks.nodes import GraphTask
from harken.tasks.sets import SetTask, predict
from harken.tasks.span import SpanTask
from harken.tasks.tag import TagTask
from harken.tasks.translate import TranslateTask

from .attention_map import Weights, attention_svg, patch_maps_svg, source_attention
from .html import Html, tag
from .label_report import label_report

SAMPLE_TOKENS = 300
TEMPERATURES = (0.5, 0.8, 1.0)
TOP_K = 3  # candidates per masked token, or labels per text
MAX_SOURCE_CHARACTERS = 80  # of a source whose attention is drawn
Split = TypeVar("Split")
Samples = list[dict[str, Any]]
SamplesAndCommands = tuple[Samples, list[str]]
SampleBuilder = Callable[[Run, BoundTask, str], SamplesAndCommands]  # named by the family in the registry


def report_sections(
    run: Run, task: BoundTask, folder: Path, cost: Mapping[str, object], scores: Mapping[str, Score] | None = None
) -> dict[str, object]:
    """The sections of the report of this run. The scores of the splits are computed if they are not passed."""
    quoted, recipe = shlex.quote(str(folder)), run.recipe
    samples, commands = Samples(), [f"harken eval {quoted}"]
    if recipe.report.samples:
        samples, commands = cast(SampleBuilder, registry.load_object(run.family.samples))(run, task, quoted)
    split = held_out({name: name for name in task.splits})
    labels = dict[str, object]()
    if split and task.explains_mistakes:
        task.use_thresholds(run.facts.get("thresholds") or {})
        score = scores[split] if scores else task.evaluate(run.model, split)
        labels = label_report(task, split, score, recipe.report.samples)
    return {
        "cost": cost,
        "labels": labels,
        "log": run_folder.read_log(folder),
        "samples": samples,
        "attention": _attention(run, samples) if run.is_encoder_decoder else None,
        "recipe": recipe.toml(),
        "origins": dict(recipe.origins),
        "repeat": [f"harken train {quoted}/recipe.toml --out runs/again"],
        "next": commands,
    }


def held_out(splits: Mapping[str, Split]) -> Split | None:
    """The split of the samples: test, else valid, else None."""
    return splits.get("test") or splits.get("valid")


def _shortest(samples: Samples, default: str = "A sentence.") -> str:
    """The shortest prompt, quoted for a shell."""
    return shlex.quote(min((sample["prompt"] for sample in samples), key=len, default=default))


def generated_texts(run: Run, task: BoundTask, folder: str) -> SamplesAndCommands:
    """Texts at three temperatures."""
    samples = [
        {
            "prompt": "",
            "temperature": t,
            "text": run.generate(max_new_tokens=SAMPLE_TOKENS, temperature=t, top_p=0.95, listen=silent),
        }
        for t in TEMPERATURES[: run.recipe.report.samples]
    ]
    commands = [
        f'harken generate {folder} "Once upon a time"',
        f"harken eval {folder}",
        f'harken score {folder} "A sentence."',
    ]
    return samples, commands


def translated_texts(run: Run, task: TranslateTask, folder: str) -> SamplesAndCommands:
    """Outputs for some held-out sources, with references."""
    split = held_out(task.data.splits)
    sources, references = (split.sources[: run.recipe.report.samples], split.references) if split else ([], [])
    rows = zip(sources, run.translate(sources, listen=silent), references, strict=False)
    samples = [{"prompt": source, "text": text, "references": targets} for source, text, targets in rows]
    return samples, [f"harken translate {folder} {_shortest(samples)}", f"harken eval {folder}"]


def filled_texts(run: Run, task: MaskedWordsTask, folder: str) -> SamplesAndCommands:
    """Predictions for one masked token in some held-out sentences, with the original token."""
    samples, tokenizer = [], run.tokenizer
    for ids in task.sentences(run.recipe.report.samples):
        middle = len(ids) // 2
        prompt = tokenizer.decode([*ids[:middle], tokenizer.mask_id, *ids[middle + 1 :]])
        best = ", ".join(f"{w['word']} {100 * w['probability']:.0f} %" for w in run.fill(prompt, TOP_K)[0])
        samples.append({"prompt": prompt, "text": best, "references": tokenizer.token_texts(ids[middle : middle + 1])})
    return samples, [f"harken fill {folder} {_shortest(samples, f'A {MASK} sentence.')}", f"harken eval {folder}"]


def classified_texts(run: Run, task: ClassifyTask, folder: str) -> SamplesAndCommands:
    """Predicted and true labels of some held-out texts."""
    split = held_out(task.data.splits)
    rows = (
        split.rows[:: -(-len(split) // run.recipe.report.samples)] if split else []
    )  # spread out: rows may be sorted by label
    predictions = run.classify([row.texts for row in rows], listen=silent)
    samples: Samples = [
        {
            "prompt": "\t".join(row.texts),
            "shown": marked_texts(row.texts, task.data.settings.text),
            "text": _top_labels(labels),
            "references": [", ".join(row.labels)],
        }
        for row, labels in zip(rows, predictions, strict=True)
    ]
    return samples, [f"harken classify {folder} {_shortest(samples)}", f"harken eval {folder}"]


def classified_images(run: Run, task: ImageTask, folder: str) -> SamplesAndCommands:
    """Predicted and true labels of some held-out images."""
    split = held_out(task.data.splits)
    subset = split.subset(run.recipe.report.samples) if split else None
    pixels = [x.permute(1, 2, 0).numpy() for x in subset.pixels] if subset else []
    predictions = run.classify(pixels)
    rows = zip(pixels, predictions, subset.targets, subset.locations, strict=True) if subset else ()
    samples = [
        {"prompt": path, "image": encode_png(x), "text": _top_labels(labels), "references": [task.labels[target]]}
        for x, labels, target, path in rows
    ]
    return samples, [f"harken classify {folder} my.png", f"harken eval {folder}"]


def captioned_images(run: Run, task: CaptionTask, folder: str) -> SamplesAndCommands:
    """Captions of some held-out images, with references."""
    samples: Samples = []
    if split := held_out(task.data.splits):
        indices = evenly_spaced(len(split), run.recipe.report.samples).tolist()
        pixels = [split.pixels[n].permute(1, 2, 0).numpy() for n in indices]
        samples = [
            {"prompt": split.sources[n], "image": encode_png(x), "text": text, "references": split.references[n]}
            for n, x, text in zip(indices, pixels, run.caption(pixels), strict=True)
        ]
    return samples, [f"harken caption {folder} my.png", f"harken eval {folder}"]


def classified_sets(run: Run, task: SetTask, folder: str) -> SamplesAndCommands:
    """Predicted and true labels or values of some held-out sets."""
    samples, split, processor = Samples(), held_out(task.data.splits), task.data.processor
    if split:
        subset = split.subset(evenly_spaced(len(split), run.recipe.report.samples))
        predictions = format_labels(processor, predict(run.model, subset))
        rows = zip(subset.names, predictions, subset.targets.flatten(), strict=True)
        samples = [
            {"prompt": name, "text": _top_labels(labels), "references": [_target_text(processor, target)]}
            for name, labels, target in rows
        ]
    return samples, [f"harken classify {folder} my.csv", f"harken eval {folder}"]


def _target_text(processor: Any, target: float) -> str:
    is_number = processor.target_type == "number"
    return f"{target * processor.std + processor.mean:.3g}" if is_number else str(processor.labels[int(target)])


def _top_labels(labels: Labels) -> str:
    return ", ".join(
        f"{x['label']} " + (f"{100 * x['probability']:.0f} %" if "probability" in x else f"{x['value']:.3g}")
        for x in labels[:TOP_K]
    )


def tagged_texts(run: Run, task: TagTask, folder: str) -> SamplesAndCommands:
    """Predicted and true spans of some held-out sentences."""
    split = held_out(task.data.splits)
    sentences = split.sentences[: run.recipe.report.samples] if split else []
    texts = [" ".join(sentence.words) for sentence in sentences]
    samples = [
        {"prompt": text, "text": _span_list(spans), "references": [_span_list(labelled_spans(words, tags))]}
        for text, spans, (words, tags, _) in zip(texts, run.tag(texts), sentences, strict=True)
    ]
    return samples, [f'harken tag {folder} "John lives in New York."', f"harken eval {folder}"]


def _span_list(spans: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{span['text']} ({span['label']})" for span in spans) or "(none)"


def answered_questions(run: Run, task: SpanTask, folder: str) -> SamplesAndCommands:
    """Answers to some held-out questions about a text, with the correct ones."""
    split = held_out(task.data.splits)
    questions = split.questions[: run.recipe.report.samples] if split else []
    samples = [
        {
            "prompt": q.text,
            "text": run.ask(q.text, q.context, listen=silent)["answer"],
            "references": list(q.answers) or ["(none)"],
        }
        for q in questions
    ]
    first = shlex.quote(questions[0].text if questions else "What is it?")
    return samples, [f"harken ask {folder} my.txt {first}", f"harken eval {folder}"]


def answered_stories(run: Run, task: AnswerTask | FlatAnswerTask, folder: str) -> SamplesAndCommands:
    """Answers to some held-out questions about stories with the lines attended to, and the correct answers."""
    split = held_out(task.data.splits)
    questions = (
        split.questions[:: -(-len(split) // run.recipe.report.samples)] if split else []
    )  # spread out: sorted by task
    replies = [(q, run.story(q.lines, listen=silent).ask(q.question)) for q in questions if q.lines]
    samples = [{"prompt": q.question, "text": _answer_text(reply), "references": [q.answer]} for q, reply in replies]
    known = questions or (task.data.train.questions if task.data.has_train else [])  # a question that was learned
    first = shlex.quote(known[0].question if known else "Where is Joe?")
    return samples, [f"harken ask {folder} my.txt {first}", f"harken eval {folder}"]


def _answer_text(reply: StoryAnswer) -> str:
    """An answer, and the line with the largest weight of each hop."""
    lines = dict.fromkeys(reply["lines"][hop.index(max(hop))] for hop in reply["hops"])
    return reply["answer"] + (f"   (lines attended to: {' / '.join(lines)})" if lines else "")


def classified_nodes(run: Run, task: GraphTask, folder: str) -> SamplesAndCommands:
    """Predictions for some held-out items with their true labels, and commands for this run."""
    data = task.data
    split, level = held_out(data.splits) or [], data.processor.target_level
    items = split[:: -(-len(split) // run.recipe.report.samples)] if split else []
    names = data.unit_names()
    if level == "edge":
        inputs = ["--".join(names[end] for end in data.targets[n].tolist()) for n in items]
    else:
        inputs = [names[n] for n in items]
    truth = [data.tables.labels[n] if data.tables.labels and level != "edge" else "edge" for n in items]
    predictions = run.classify(inputs)
    samples = [
        {"prompt": name, "text": _graph_prediction(labels), "references": [label]}
        for name, labels, label in zip(inputs, predictions, truth, strict=True)
    ]
    first = shlex.quote(inputs[0] if inputs else names[0])
    return samples, [f"harken classify {folder} {first}", f"harken eval {folder}"]


def _graph_prediction(labels: Labels) -> str:
    if "value" in labels[0]:
        return f"{labels[0]['value']:.3g}"
    return ", ".join(f"{label['label']} {100 * label['probability']:.0f} %" for label in labels[:TOP_K])


def _attention(run: Run, samples: Samples) -> Html | None:
    """The cross-attention of the first short sample, and its pointer attention; None if there is none."""
    short = [s for s in samples if "image" in s or len(s["prompt"]) <= MAX_SOURCE_CHARACTERS]
    maps = source_attention(run, short[0]["prompt"]) if short else {}
    if maps and "image" in short[0]:
        target, source, weights = maps["cross"]
        patches = [row[int(source[0] == CLS) :] for row in weights]
        return patch_maps_svg(target, patches, short[0]["image"])
    figures = [part for kind, x in maps.items() for part in _figure(kind, x, titled=len(maps) > 1)]
    return Html("".join(figures)) or None


def _figure(kind: str, x: tuple[list[str], list[str], Weights], *, titled: bool) -> list[Html]:
    """A map, below its title if there are several."""
    return [tag("p", f"{kind} attention"), attention_svg(*x, kind)] if titled else [attention_svg(*x)]
