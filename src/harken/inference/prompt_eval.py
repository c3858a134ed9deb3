"""Few-shot evaluation: how well a prompted language model answers labelled texts, pairs or questions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harken.data.rng import RngStream, rng_for
from harken.data.source import Processor
from harken.data.split import FileSource, SplitData
from harken.decode.sampling import SamplingSettings
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.recipe import Recipe
from harken.suggestions import did_you_mean
from harken.tasks import BoundTask, Score
from harken.tasks.classify import ClassifyTask
from harken.tasks.span import SpanTask
from harken.tasks.translate import TranslateTask

from .answers.generate import stream_batch
from .loaded_model import LoadedModel
from .prompt import Example, Template, Texts, build_prompts, check_labels, log_probabilities, require_language_model

MAX_ANSWER_TOKENS = 64  # of a generated answer
BATCH_SIZE = 16  # answers generated together


@dataclass(frozen=True)
class FewShotPrompt:
    """A template, the number of examples, the seed that draws them, and the text of each label."""

    template: str
    shots: int = 0
    seed: int = 0
    labels: dict[str, str] | None = None

    def build(self, examples: Sequence[Example], slots: Sequence[str], *, balanced: bool) -> tuple[Template, list[str]]:
        """The template, and the examples shown before every question."""
        template = Template.parse(self.template, slots)
        drawn = draw_examples(examples, self.shots, self.seed, balanced=balanced)
        return template, list(map(template.example, drawn))


def draw_examples(examples: Sequence[Example], shots: int, seed: int, *, balanced: bool) -> list[Example]:
    """Random examples; balanced: every label equally often, as far as there are enough.

    The examples drawn first come last, next to the question, so more shots only add examples at the front.
    """
    order = rng_for(seed, RngStream.PROMPT_EXAMPLES).permutation(len(examples)).tolist()
    counts: dict[str, int] = {}  # per label
    if balanced:
        rank = {}
        for n in order:
            rank[n] = counts[examples[n][1]] = counts.get(examples[n][1], 0) + 1
        order.sort(key=rank.__getitem__)  # the first of every label, then the second of every label, ...
    if shots > len(order):
        raise BadInput(f"shots={shots}: there are only {len(order)} examples to draw from; use fewer shots")
    return [examples[n] for n in reversed(order[:shots])]


def label_texts(labels: Sequence[str], texts: Mapping[str, str] | None) -> list[str]:
    """The text of each label in a prompt: its name, or the text assigned to it."""
    for label in texts or ():
        if label not in labels:
            known = ", ".join(labels[:12]) + ", ..." * (len(labels) > 12)
            raise BadInput(f"label {label!r}: not in the data, which has {known}.{did_you_mean(label, labels)}")
    return check_labels([(texts or {}).get(label, label) for label in labels])


def load_task(
    recipe: Recipe,
    split: str | None,
    listen: Listener = silent,
    processor: Processor | None = None,
    *,
    needs_train: bool = True,
) -> tuple[BoundTask, str]:
    """The task bound to its data, with the tokenizer that training would use, and the split to evaluate.

    Without a split and if no example is drawn (needs_train=False), all rows are evaluated; data that is split by its
    files is evaluated on its held-out files.
    """
    if not needs_train and split is None:
        recipe = _without_fractions(recipe)
    data = recipe.load_data(processor, listen=listen)
    splits = list(getattr(data, "splits", ()))
    if not needs_train and split is None and not splits and isinstance(data, SplitData):
        assert isinstance(recipe.data, FileSource)
        data = recipe.load_data(data.processor, other=(recipe.data.train_path, "test"))
        assert isinstance(data, SplitData)
        data, splits = replace(data, has_train=False), ["test"]  # no baselines: they would be fitted on these rows
    if not splits or (split and split not in splits):
        known = f"has {', '.join(splits)}" if splits else "has no held-out split"
        raise BadInput(f"split {split or 'test'}: not in this data, which {known}; name files train, valid and test")
    return recipe.bind(data), split or ("test" if "test" in splits else splits[0])


def _without_fractions(recipe: Recipe) -> Recipe:
    """The recipe without splits that are drawn from the rows."""
    data = dict(recipe.data)
    drawn = {name: 0.0 for name in ("valid", "test") if isinstance(data.get(name), float)}
    return replace(recipe, data=recipe.data.model_copy(update=drawn))


def evaluate_prompt(
    run: LoadedModel, task: BoundTask, split: str, prompt: FewShotPrompt, listen: Listener = silent
) -> Score:
    """The metrics of a language model's answers on a split of a task's data."""
    require_language_model(run)
    if not isinstance(prompt.shots, int) or prompt.shots < 0:
        raise BadInput(f"shots={prompt.shots!r}: must be an integer ≥ 0")
    if prompt.labels and not isinstance(task, ClassifyTask):
        raise BadInput("labels: only apply to texts with labels; omit them for this data")
    if isinstance(task, ClassifyTask):
        score = _evaluate_labels(run, task, split, prompt, listen)
    elif isinstance(task, TranslateTask):
        score = _evaluate_pairs(run, task, split, prompt, listen)
    elif isinstance(task, SpanTask):
        score = _evaluate_questions(run, task, split, prompt, listen)
    else:
        raise BadInput("prompt: needs texts with labels, pairs or questions; give such data")
    protocol = {"prompt": prompt.template, "shots": prompt.shots} | ({"seed": prompt.seed} if prompt.shots else {})
    return replace(score, protocol=score.protocol | protocol)


def _evaluate_labels(
    run: LoadedModel, task: ClassifyTask, split: str, prompt: FewShotPrompt, listen: Listener
) -> Score:
    if task.target_type != "label":
        target = {"number": "a number", "multilabel": "several labels"}[task.target_type]
        raise BadInput(f"prompt: predicts one label per text; this data has {target}; give other data")
    data, texts = task.data.splits[split], label_texts(task.processor.labels, prompt.labels)
    text_of = dict(zip(task.processor.labels, texts, strict=True))
    if (n_texts := task.processor.n_texts) > 2:
        raise BadInput(f"prompt: takes one or two text columns; this data has {n_texts}; set data.text to one or two")
    slots = ("text", "other")[:n_texts]

    def fields(row: Any) -> dict[str, str]:
        return dict(zip(slots, row.texts, strict=True))

    train = [(fields(row), text_of[row.labels[0]]) for row in task.data.train.rows]
    template, examples = prompt.build(train, slots, balanced=True)
    questions = [template.question(fields(row)) for row in data.rows]
    prompts = build_prompts(run, examples, questions, texts, run.model.context, listen)
    y = log_probabilities(run.model, prompts, listen).float()
    return task.score(y, data.texts.targets, groups=task.groups_of(data))


def _evaluate_pairs(
    run: LoadedModel, task: TranslateTask, split: str, prompt: FewShotPrompt, listen: Listener
) -> Score:
    pairs, metric = task.data.splits[split], task.settings.metric
    train = [({"text": source}, target) for source, target in task.data.texts()] if prompt.shots else []
    template, examples = prompt.build(train, ("text",), balanced=False)
    sources = pairs.sources[: task.settings.eval_pairs or None]
    answers = _generate_answers(run, examples, [template.question({"text": source}) for source in sources], listen)
    metrics, notes = task.text_metrics(answers, pairs.references)
    primary_metric = metric if metric in metrics else "exact_match"
    outcomes = task.by_unit(split, task.text_outcomes(answers, pairs.references, metrics))
    groups = task.count_units(split, len(answers))
    protocol = {"pairs": len(answers), **groups, "primary_metric": primary_metric, **notes}
    return Score(metrics, protocol, primary_metric=primary_metric, outcomes=outcomes)


def _evaluate_questions(run: LoadedModel, task: SpanTask, split: str, prompt: FewShotPrompt, listen: Listener) -> Score:
    data, slots = task.data.splits[split], ("text", "question")

    def fields(question: Any) -> dict[str, str]:
        return {"text": question.context, "question": question.text}

    train = [(fields(question), question.answers[0]) for question in task.data.train.questions if question.answers]
    template, examples = prompt.build(train, slots, balanced=False)
    questions = [template.question(fields(question)) for question in data.questions]
    answers = _generate_answers(run, examples, questions, listen)
    metrics, parts = task.text_metrics(answers, data)
    protocol, outcomes = {"questions": len(answers), "primary_metric": "f1"}, task.text_outcomes(answers, data)
    return Score(metrics, protocol, parts, primary_metric="f1", outcomes=outcomes)


def _generate_answers(run: LoadedModel, examples: Texts, questions: Texts, listen: Listener) -> list[str]:
    """The line that the model generates after each question, greedily."""
    context = run.model.context
    limit = context and max(context // 2, context - MAX_ANSWER_TOKENS)
    prompts = build_prompts(run, examples, [question.rstrip(" ") for question in questions], [""], limit, listen)
    order, answers = sorted(range(len(prompts)), key=lambda n: len(prompts[n].ids[0])), [""] * len(prompts)
    for start in range(0, len(order), BATCH_SIZE):
        batch = order[start : start + BATCH_SIZE]
        token_ids = [prompts[n].ids[0] for n in batch]
        rows = stream_batch(run, token_ids, MAX_ANSWER_TOKENS, "\n", SamplingSettings(temperature=0.0))
        for n, pieces in zip(batch, zip(*rows, strict=True), strict=True):
            answers[n] = "".join(pieces).strip()
        listen("answer", done=start + len(batch), total=len(order))
    return answers
