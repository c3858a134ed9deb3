"""Learning-rate schedules: warm-up, decay and cooldown."""

import math

from .settings import Train


def warmup_steps(steps: int, train: Train) -> int:
    """Number of steps of the warm-up."""
    return round(train.warmup * steps) if train.warmup < 1 else round(train.warmup)


def learning_rate(step: int, steps: int, train: Train) -> float:
    """Learning rate of a step: linear warm-up, the schedule, and a linear cooldown if train.cooldown is set."""
    warmup = warmup_steps(steps, train)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    factor = 1.0
    match train.schedule:
        case "cosine":
            factor = train.min_lr_ratio + (1 - train.min_lr_ratio) * (1 + math.cos(math.pi * progress)) / 2
        case "linear":
            factor = train.min_lr_ratio + (1 - train.min_lr_ratio) * (1 - progress)
        case "rsqrt":  # Vaswani et al. 2017: 1 / sqrt(step) after the warm-up
            factor = math.sqrt(max(1, warmup) / max(1, step + 1))
    cooldown = min(train.cooldown * steps, steps - warmup)
    if steps - step < cooldown:
        factor = train.min_lr_ratio + (factor - train.min_lr_ratio) * (steps - step) / cooldown
    return train.lr * factor
