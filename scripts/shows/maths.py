"""Mathematics as translation: the distribution of the training examples decides what a model learns."""

import itertools

from . import Measurement, show

SMALL = {"model.layers": 1, "data.base": 20, "data.max_operand": 400, "data.classes": 20, "data.test": 0}
STEPS = 300


def _train_and_evaluate(outcomes: str) -> dict[str, float]:
    """Return the validation metrics of a small Transformer trained on gcds with this distribution."""
    import torch

    from harken.events import silent
    from harken.experiments.choose import choose
    from harken.experiments.train import prepare

    settings = {**SMALL, "data.outcomes": outcomes, "train.steps": STEPS, "train.threads": 1}
    with torch.random.fork_rng(devices=[]):
        _, trainer = prepare(choose("maths:gcd", settings).recipe, silent)
        trainer.model.train()
        for _ in range(STEPS):
            trainer.update(STEPS)
        return dict(trainer.task.evaluate(trainer.model, "valid").metrics)


@show(slow=True)
def right_frequency() -> Measurement:
    """A different distribution of the same pairs of numbers leads to a different rule."""
    natural, uniform = _train_and_evaluate("natural"), _train_and_evaluate("uniform")
    on_random = natural["natural_accuracy"], uniform["natural_accuracy"]
    text = f"accuracy on random pairs after training on the natural distribution of gcds, {on_random[1]:.2g} after a "
    text += f"uniform one; {natural['accuracy']:.2g} and {uniform['accuracy']:.2g} on uniformly distributed gcds"
    return Measurement(on_random[0], text, on_random[0] > 2 * on_random[1])


@show()
def problem_into_answer() -> Measurement:
    """A problem is a source of digits, its answer a target of digits: pairs for the same encoder-decoder."""
    from math import gcd

    from harken.data.maths.source import MathsSource

    problems = MathsSource(operation="gcd", base=10, max_operand=1000, valid=200, test=0).load_data().splits["valid"]
    pairs = zip(problems.sources, problems.references, strict=True)
    correct = sum(gcd(*map(int, source.split())) == int(targets[0]) for source, targets in pairs)
    words = f"of 200 problems have the greatest common divisor as their target; the first is {problems.sources[0]!r}"
    return Measurement(correct, f"{words} -> {problems.references[0][0]!r}", correct == 200)


@show()
def order_of_the_facts() -> Measurement:
    """A curriculum has the same examples as its shuffle, from small numbers to large ones."""
    from harken.data.maths.source import MathsSource

    growth, examples = [], []
    for shuffle in (False, True):
        source = MathsSource(operation="gcd", valid=0, test=0, examples=400, curriculum=3, shuffle_curriculum=shuffle)
        batches = source.load_data().batches(100, 0)
        epochs = [[batches.batch(epoch, step) for step in range(4)] for epoch in range(3)]
        digits = [sum(int(batch.lengths.sum()) for batch in epoch) for epoch in epochs]
        growth.append(digits[2] / digits[0])
        pairs = [pair for batch in itertools.chain(*epochs) for pair in zip(batch.source, batch.lengths, strict=True)]
        examples.append(sorted(row[:n].tolist() for row, n in pairs))
    words = (
        f"times as many digits in the third epoch as in the first; {growth[1]:.2g} if the same examples are shuffled"
    )
    return Measurement(growth[0], words, growth[0] > 1.3 * growth[1] and examples[0] == examples[1])


@show()
def heuristic_of_the_base() -> Measurement:
    """A heuristic that is correct in most cases: the last digits reveal divisors of both numbers."""
    from math import gcd

    from harken.data.maths.integers import base_divisor

    divisors = [gcd(a, b) for a in range(1, 301) for b in range(1, 301)]
    correct = sum(base_divisor(k, 30) == k for k in divisors) / len(divisors)
    known = sum(base_divisor(k, 30) == k for k in range(1, 101))
    words = f"of the pairs are predictable from the last digits in base 30, which determine {known} of 100 gcds"
    return Measurement(correct, words, correct > 0.9)
