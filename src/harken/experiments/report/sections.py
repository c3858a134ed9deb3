"""What a report shows beside the facts: what the run answers, its curves, its recipe, and what to type next."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harken import run_folder
from harken.data.images import png
from harken.data.labelled.batch import evenly
from harken.data.tokenizers.tokenizer import MASK
from harken.inference.answers.classify import said
from harken.inference.answers.tag import marked
from harken.inference.run import Run
from harken.tasks.sets import answers

from .attention_map import cross, heat, maps
from .graph_section import shown_nodes
from .line_chart import Html

SAMPLE_TOKENS, SAMPLES = 300, 10
WORDS = 3  # shown for each that was hidden, or labels for each text
LETTERS = 80  # of a source whose attention is drawn: a longer one would leave the page
Found = tuple[list[dict[str, Any]], list[str]]  # samples, and what else can be done with such a run


def shown(loaded: Run, task: Any, folder: Path, cost: dict[str, Any]) -> dict[str, Any]:
    place, recipe = shlex.quote(str(folder)), loaded.recipe
    samples, then = _found(loaded, task, place)
    return {
        "cost": cost,
        "log": run_folder.read_log(folder),
        "samples": samples,
        "looks": _looks(loaded, samples) if loaded.pairs else None,
        "recipe": recipe.toml(),
        "origins": dict(recipe.origins),
        "repeat": [f"harken train {place}/recipe.toml --out runs/again"],
        "next": then,
    }


def _found(loaded: Run, task: Any, place: str) -> Found:
    way = SHOWN.get(loaded.recipe.task.kind)
    return way(loaded, task, place) if way else ([], [f"harken eval {place}"])


def held_out(task: Any) -> Any:
    """The split that samples are taken from: test, else valid, else none."""
    return task.data.splits.get("test") or task.data.splits.get("valid")


def _shortest(samples: list[dict[str, Any]], otherwise: str = "A sentence.") -> str:
    """What to type, as it is typed: a prompt that does not fill the screen."""
    return shlex.quote(min((sample["prompt"] for sample in samples), key=len, default=otherwise))


def _written(loaded: Run, task: Any, place: str) -> Found:
    """Texts at three temperatures, and what else can be done with a language model."""
    samples = [
        {"prompt": "", "temperature": t, "text": loaded.generate("", tokens=SAMPLE_TOKENS, temperature=t, top_p=0.95)}
        for t in (0.5, 0.8, 1.0)
    ]
    prompts = [
        f'harken generate {place} "Once upon a time"',
        f"harken eval {place}",
        f'harken score {place} "A sentence."',
    ]
    return samples, prompts


def _translated(loaded: Run, task: Any, place: str) -> Found:
    """Targets of a few held-out sources beside their references, and what else can be done with such a run."""
    pairs = held_out(task)
    sources, references = (pairs.sources[:SAMPLES], pairs.references) if pairs else ([], [])
    rows = zip(sources, loaded.translate(sources), references, strict=False)
    samples = [{"prompt": source, "text": text, "references": each} for source, text, each in rows]
    return samples, [f"harken translate {place} {_shortest(samples)}", f"harken eval {place}"]


def _filled(loaded: Run, task: Any, place: str) -> Found:
    """What was filled in for a word that was hidden in some held-out sentences, beside what stood there."""
    samples, tokens = [], loaded.tokenizer
    for ids in task.sentences(SAMPLES):
        at = len(ids) // 2
        prompt = tokens.decode([*ids[:at], tokens.mask, *ids[at + 1 :]])
        best = ", ".join(f"{w['word']} {100 * w['probability']:.0f} %" for w in loaded.fill(prompt, WORDS)[0])
        samples.append({"prompt": prompt, "text": best, "references": tokens.words(ids[at : at + 1])})
    return samples, [f"harken fill {place} {_shortest(samples, f'A {MASK} sentence.')}", f"harken eval {place}"]


def _classified(loaded: Run, task: Any, place: str) -> Found:
    """What a few held-out texts are said to be, beside what they are."""
    part = held_out(task)
    some = part.rows[:: -(-len(part) // SAMPLES)] if part else []  # from everywhere: rows may stand by their labels
    found = loaded.classify([row.texts for row in some])
    samples: list[dict[str, Any]] = [
        {"prompt": "\t".join(row.texts), "text": _said(labels), "references": [", ".join(row.labels)]}
        for row, labels in zip(some, found, strict=True)
    ]
    return samples, [f"harken classify {place} {_shortest(samples)}", f"harken eval {place}"]


def _seen(loaded: Run, task: Any, place: str) -> Found:
    """What a few held-out pictures are said to show, beside what they do."""
    part = held_out(task)
    some = part.some(SAMPLES) if part else None
    pixels = [x.permute(1, 2, 0).numpy() for x in some.pixels] if some else []
    rows = zip(pixels, loaded.classify(pixels), some.targets, some.places, strict=True) if some else ()
    samples = [
        {"prompt": where, "picture": png.write(x), "text": _said(labels), "references": [task.labels[target]]}
        for x, labels, target, where in rows
    ]
    return samples, [f"harken classify {place} my.png", f"harken eval {place}"]


def _captioned(loaded: Run, task: Any, place: str) -> Found:
    """What a few held-out pictures are said to show, in words, beside what others said of them."""
    part = held_out(task)
    picks = evenly(len(part), SAMPLES).tolist() if part else []
    pixels = [part.pixels[n].permute(1, 2, 0).numpy() for n in picks]
    samples = [
        {"prompt": part.sources[n], "picture": png.write(x), "text": text, "references": part.references[n]}
        for n, x, text in zip(picks, pixels, loaded.caption(pixels), strict=True)
    ]
    return samples, [f"harken caption {place} my.png", f"harken eval {place}"]


def _grouped(loaded: Run, task: Any, place: str) -> Found:
    """What a few held-out sets are said to be, beside what they are."""
    samples, part, words = list[dict[str, Any]](), held_out(task), task.data.words
    if part:
        some = part.some(evenly(len(part), SAMPLES))
        rows = zip(some.names, said(words, answers(loaded.model, some)), some.targets.flatten(), strict=True)
        samples = [{"prompt": n, "text": _said(labels), "references": [_true(words, t)]} for n, labels, t in rows]
    return samples, [f"harken classify {place} my.csv", f"harken eval {place}"]


def _true(words: Any, target: float) -> str:
    number = words.target_type == "number"
    return f"{target * words.spread + words.mean:.3g}" if number else str(words.labels[int(target)])


def _said(labels: Sequence[dict[str, Any]]) -> str:
    told = (
        f"{100 * said['probability']:.0f} %" if "probability" in said else f"{said['value']:.3g}" for said in labels
    )
    return ", ".join(f"{said['label']} {how}" for said, how in zip(labels[:WORDS], told, strict=False))


def _tagged(loaded: Run, task: Any, place: str) -> Found:
    """What is marked in a few held-out sentences, beside what should be."""
    part = held_out(task)
    some = part.sentences[:SAMPLES] if part else []
    texts = [" ".join(sentence.words) for sentence in some]
    samples = [
        {"prompt": text, "text": _listed(spans), "references": [_listed(marked(words, tags))]}
        for text, spans, (words, tags, _) in zip(texts, loaded.tag(texts), some, strict=True)
    ]
    return samples, [f'harken tag {place} "John lives in New York."', f"harken eval {place}"]


def _listed(spans: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{span['text']} ({span['label']})" for span in spans) or "(nothing)"


def _asked(loaded: Run, task: Any, place: str) -> Found:
    """Answers to a few held-out questions, beside the right ones."""
    part = held_out(task)
    some = part.questions[:SAMPLES] if part else []
    samples = [
        {"prompt": q.text, "text": loaded.ask(q.text, q.context)["answer"], "references": list(q.answers) or ["(none)"]}
        for q in some
    ]
    first = shlex.quote(some[0].text if some else "What is it?")
    return samples, [f"harken ask {place} my.txt {first}", f"harken eval {place}"]


def _about(loaded: Run, task: Any, place: str) -> Found:
    """Answers to a few held-out questions about stories, and the lines that were read, beside the right ones."""
    part = held_out(task)
    some = part.asked[:: -(-len(part) // SAMPLES)] if part else []  # from everywhere: tasks follow each other
    said = [(q, loaded.story(q.lines).ask(q.question)) for q in some if q.lines]
    samples = [{"prompt": q.question, "text": _read(found), "references": [q.answer]} for q, found in said]
    first = shlex.quote(some[0].question if some else "Where is Joe?")
    return samples, [f"harken ask {place} my.txt {first}", f"harken eval {place}"]


def _read(found: dict[str, Any]) -> str:
    """An answer, and the line that each hop looked at most."""
    lines = dict.fromkeys(found["lines"][hop.index(max(hop))] for hop in found["hops"])
    return found["answer"] + (f"   (it read: {' / '.join(lines)})" if lines else "")


def _looks(loaded: Run, samples: list[dict[str, Any]]) -> Html | None:
    """What each written token of a sample looked at in the source; None where no model looks, or no source is short."""
    short = [s for s in samples if "picture" in s or len(s["prompt"]) <= LETTERS]
    found = cross(loaded, short[0]["prompt"]) if short else None
    if found and "picture" in short[0]:
        return maps(found[0], found[2], short[0]["picture"])
    return heat(*found) if found else None


SHOWN: dict[str, Callable[[Run, Any, str], Found]] = {  # by the run's task
    "next-word": _written,
    "translate": _translated,
    "solve": _translated,
    "masked-words": _filled,
    "classify": _classified,
    "tag": _tagged,
    "span": _asked,
    "image": _seen,
    "nodes": shown_nodes,
    "set": _grouped,
    "caption": _captioned,
    "answer": _about,
}
