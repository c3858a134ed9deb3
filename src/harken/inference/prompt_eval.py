"""How well a prompt answers labelled texts, pairs or questions, behind so many examples of the training split."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harken.decode.sampling import Choice
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.tasks import Score
from harken.tasks.classify import Classify
from harken.tasks.span import Span
from harken.tasks.translate import Translate

from .prompt import Example, Fields, Template, asked, drawn, log_probabilities, must_write, told, wording

WRITTEN = 64  # most tokens of an answer that is written
AT_ONCE = 16  # answers written together


@dataclass(frozen=True)
class Prompt:
    """A template, how many examples are shown, by which seed they are drawn, and what is written for each label."""

    template: str
    shots: int = 0
    seed: int = 0
    labels: dict[str, str] | None = None

    def shown(self, examples: Sequence[Example], slots: Sequence[str], *, balanced: bool) -> tuple[Template, list[str]]:
        """The template, and the examples that stand before every question."""
        template = Template.of(self.template, slots)
        return template, list(map(template.example, drawn(examples, self.shots, self.seed, balanced=balanced)))


def opened(recipe: Any, split: str | None, listen: Listener = silent, words: Any = None) -> tuple[Any, str]:
    """The task on its data, read with the tokens that a training would learn, and the split that is judged."""
    data = recipe.open(words, listen=listen)
    if not (there := list(getattr(data, "splits", ()))) or (split and split not in there):
        has = f"has {', '.join(there)}" if there else "held nothing out"
        raise BadInput(f"split {split or 'test'}: not in this data, which {has}; name files train, valid and test")
    return recipe.bind(data), split or ("test" if "test" in there else there[0])


def by_prompt(run: Any, task: Any, split: str, prompt: Prompt, listen: Listener = silent) -> Score:
    """The metrics of a language model's answers to a split of a task's data."""
    must_write(run)
    if not isinstance(prompt.shots, int) or prompt.shots < 0:
        raise BadInput(f"shots={prompt.shots!r}: a whole number of 0 or more is accepted")
    if prompt.labels and not isinstance(task, Classify):
        raise BadInput("labels: only texts with labels have them; leave them out")
    if isinstance(task, Classify):
        score = _labels(run, task, split, prompt, listen)
    elif isinstance(task, Translate):
        score = _pairs(run, task, split, prompt, listen)
    elif isinstance(task, Span):
        score = _questions(run, task, split, prompt, listen)
    else:
        raise BadInput("a prompt is judged by texts with labels, by pairs or by questions; give such data")
    how = {"prompt": prompt.template, "shots": prompt.shots} | ({"seed": prompt.seed} if prompt.shots else {})
    return replace(score, protocol=score.protocol | how)


def _labels(run: Any, task: Classify, split: str, prompt: Prompt, listen: Listener) -> Score:
    if task.target_type != "label":
        what = {"number": "a number", "multilabel": "several labels"}[task.target_type]
        raise BadInput(f"a prompt asks for one label of a text, and this data for {what}; give other data")
    part, words = task.data.splits[split], wording(task.words.labels, prompt.labels)
    said = dict(zip(task.words.labels, words, strict=True))
    slots = ("text", "other")[: len(part.rows[0].texts)]

    def fields(row: Any) -> Fields:
        return dict(zip(slots, row.texts, strict=True))

    known = [(fields(row), said[row.labels[0]]) for row in task.data.train.rows]
    template, shown = prompt.shown(known, slots, balanced=True)
    questions = (template.question(fields(row)) for row in part.rows)
    some = [
        asked(run._prompt, shown, question, words, run.model.context, marks=len(run.tokenizer.begin))
        for question in questions
    ]
    told(some, prompt.shots, listen)
    return task.judged(log_probabilities(run.model, some, listen).float(), part.texts)


def _pairs(run: Any, task: Translate, split: str, prompt: Prompt, listen: Listener) -> Score:
    pairs, by = task.data.splits[split], task.task.metric
    known = [({"text": source}, target) for source, target in task.data.texts()] if prompt.shots else []
    template, shown = prompt.shown(known, ("text",), balanced=False)
    sources = pairs.sources[: task.task.eval_pairs or None]
    answers = _written(run, shown, [template.question({"text": source}) for source in sources], listen)
    metrics, notes = task.measured(answers, pairs)
    return Score(metrics, {"pairs": len(answers), "judged_by": by if by in metrics else "exact_match", **notes})


def _questions(run: Any, task: Span, split: str, prompt: Prompt, listen: Listener) -> Score:
    part, slots = task.data.splits[split], ("text", "question")

    def fields(question: Any) -> Fields:
        return {"text": question.context, "question": question.text}

    known = [(fields(question), question.answers[0]) for question in task.data.train.questions if question.answers]
    template, shown = prompt.shown(known, slots, balanced=False)
    answers = _written(run, shown, [template.question(fields(question)) for question in part.questions], listen)
    metrics, parts = task.measured(answers, part)
    return Score(metrics, {"questions": len(answers), "judged_by": "f1"}, parts, by="f1")


def _written(run: Any, shown: Sequence[str], questions: Sequence[str], listen: Listener) -> list[str]:
    """The line that the model writes behind each question, greedily."""
    context = run.model.context
    most = context and max(context // 2, context - WRITTEN)
    some = [
        asked(run._prompt, shown, question.rstrip(" "), [""], most, marks=len(run.tokenizer.begin))
        for question in questions
    ]
    told(some, len(shown), listen)
    order, found = sorted(range(len(some)), key=lambda n: len(some[n].ids[0])), [""] * len(some)
    for start in range(0, len(order), AT_ONCE):
        part = order[start : start + AT_ONCE]
        prompts = [some[n].ids[0] for n in part]
        rows = run._pieces(prompts, WRITTEN, "\n", Choice(temperature=0.0), seed=0, index=0)
        for n, pieces in zip(part, zip(*rows, strict=True), strict=True):
            found[n] = "".join(pieces).strip()
        listen("answer", done=start + len(part), total=len(order))
    return found
