"""Mathematics as translation: what is learned depends on which examples are seen how often."""

from . import Seen, show

SMALL = {"model.layers": 1, "data.base": 20, "data.max_operand": 400, "data.classes": 20, "data.test": 0}
STEPS = 300


def _judged(outcomes: str) -> dict[str, float]:
    """What a small Transformer knows of gcds that were drawn like this."""
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
def right_frequency() -> Seen:
    """The same pairs of numbers seen in another frequency teach another rule."""
    natural, even = _judged("natural"), _judged("uniform")
    text = f"of random pairs right, learned as gcds come; {even['natural_accuracy']:.2g} if all 20 are seen alike"
    text += f", of all gcds alike {natural['accuracy']:.2g} and {even['accuracy']:.2g}"
    return Seen(natural["natural_accuracy"], text, natural["natural_accuracy"] > 2 * even["natural_accuracy"])


@show()
def heuristic_of_the_base() -> Seen:
    """An incorrect heuristic that is right in most cases: the last digits tell what divides both numbers."""
    from math import gcd

    from harken.data.maths.integers import base_divisor

    divisors = [gcd(a, b) for a in range(1, 301) for b in range(1, 301)]
    right = sum(base_divisor(k, 30) == k for k in divisors) / len(divisors)
    known = sum(base_divisor(k, 30) == k for k in range(1, 101))
    return Seen(right, f"of pairs right by the last digits in base 30, which tell {known} of 100 gcds", right > 0.9)
