"""The settings of the training itself: how long, how fast, how often something is kept."""

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from harken.settings import Part

Share = Annotated[float, Field(ge=0, lt=1)]


class Train(Part):
    """How a model is trained. One of steps, tokens, epochs or minutes says for how long."""

    model_config = ConfigDict(allow_inf_nan=False)

    one_of: ClassVar = (("steps", "tokens", "epochs", "minutes"),)  # the last that was said counts

    kind: Literal["loop"] = "loop"
    steps: int | None = Field(None, ge=0, description="how many updates; beats the default minutes")
    tokens: int | None = Field(None, ge=1, description="how many tokens to learn from, instead of steps")
    epochs: float | None = Field(None, gt=0, description="how many times through the data, instead of steps")
    minutes: float = Field(4.0, gt=0, description="how long; turned into steps once, from a measured rate")
    batch: int = Field(16, ge=1, description="rows in one update")
    micro_batch: int | None = Field(
        None, ge=1, description="rows computed at a time; fewer need less memory, same gradients"
    )
    optimizer: Literal["adamw", "muon", "adam", "rmsprop", "sgd"] = Field(
        "adamw",
        description="rule of the update, a dial: sets lr, weight_decay, betas and momentum, which may still be given; "
        "adam: adamw; muon: orthogonal updates of hidden matrices, AdamW for the rest",
    )
    lr: float = Field(3e-3, gt=0, description="highest learning rate")
    schedule: Literal["cosine", "linear", "rsqrt", "plateau", "constant"] = Field(
        "cosine", description="how the learning rate falls after the warm-up; plateau: when the valid loss stands still"
    )
    warmup: float = Field(0.05, ge=0, description="share of the steps (below 1), or steps, in which the rate rises")
    min_lr_ratio: float = Field(
        0.0, ge=0, le=1, description="share of the highest rate left at the end of cosine, linear or cooldown"
    )
    cooldown: float = Field(
        0.0, ge=0, le=1, description="share of the steps, the last, in which the rate falls to final"
    )
    weight_decay: float = Field(
        0.1, ge=0, description="pull of the matrices towards 0: each step takes lr times this of them"
    )
    betas: tuple[Share, Share] = Field(
        (0.9, 0.99), description="memory of gradients and of their squares; rmsprop: the second"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="memory of gradients of sgd, rmsprop and muon")
    nesterov: bool = Field(False, description="sgd looks ahead along its momentum")
    grad_clip: float = Field(1.0, ge=0, description="longest gradient; longer ones are shortened; 0: never")
    seed: int = Field(0, ge=0, lt=2**32, description="fixes everything that is drawn")
    seeds: int = Field(
        1, ge=1, le=1000, description="so many small models, from seed on, trained together; the best on valid is kept"
    )
    select_seed_on: Literal["valid", "train"] = Field(
        "valid", description="of several seeds, which is kept: the best on the valid split, or on what was learned from"
    )
    keep_seeds: Literal["best", "all"] = Field(
        "best", description="of several seeds, all: each is a run of its own too, in seeds/ of the run"
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="numbers of the forward pass")
    compile: Literal["auto", "yes", "no"] = Field("auto", description="torch.compile and GPU recordings where they pay")
    deterministic: bool = Field(False, description="bitwise repeatable on CUDA too, a little slower")
    parallel: Literal["none", "ddp", "fsdp"] = Field(
        "none", description="how the processes of torchrun share the work; ddp: rows; fsdp: rows and weights"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; none: as torch chooses")
    eval_every: int | None = Field(None, ge=1, description="steps between quick looks at valid; none: ten in all")
    log_every: int | None = Field(None, ge=1, description="steps between lines of log.jsonl; none: about 200 in all")
    checkpoint_every: int | None = Field(None, ge=1, description="steps between checkpoints; none: every 30 seconds")
    price_per_hour: float | None = Field(
        None, ge=0, description="USD an hour of this machine; the cost then has a price"
    )
    tensorboard: bool = Field(False, description="draw the curves of log.jsonl for TensorBoard too, in tensorboard/")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept")
    keep_best: bool = Field(
        True, description="end with the weights that were best on the valid split, not with the last"
    )
    average: Literal["none", "ema", "last"] = Field(
        "none", description="judge and keep an average: moving over all updates, or of the last looks"
    )
    ema_decay: float = Field(0.999, ge=0, lt=1, description="the moving average's memory")
    average_last: int = Field(5, ge=1, description="how many looks the average of the last ones takes")
    plateau_patience: int = Field(
        2, ge=1, description="plateau: looks without a better valid loss until the rate falls"
    )
    plateau_factor: float = Field(0.5, gt=0, lt=1, description="plateau: what is left of the rate when it falls")
    unfreeze_last: int = Field(0, ge=0, description="with transfer=frozen, the last so many blocks learn all the same")
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="each layer learns so much slower than the one above it; for fine-tuning"
    )
    early_stopping_patience: int | None = Field(
        None, ge=1, description="stop after this many looks without a better valid loss"
    )
    on_nan: Literal["stop", "skip"] = Field(
        "stop", description="what to do when a loss or gradient is not finite; of several seeds the others go on"
    )

    dials: ClassVar = {  # docs/log.md has the trainings behind these
        "optimizer": {
            "adamw": {"lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.99), "momentum": 0.9},
            "adam": {"lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.99), "momentum": 0.9},
            "muon": {"lr": 2e-2, "weight_decay": 0.1, "betas": (0.9, 0.99), "momentum": 0.95},
            "rmsprop": {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.99), "momentum": 0.0},
            "sgd": {"lr": 0.5, "weight_decay": 1e-3, "betas": (0.9, 0.99), "momentum": 0.9},
        }
    }

    @field_validator("nesterov")
    @classmethod
    def _ahead(cls, nesterov: bool, given: ValidationInfo) -> bool:
        if nesterov and not (given.data.get("optimizer") == "sgd" and given.data.get("momentum")):
            raise ValueError("only sgd with a momentum looks ahead; set train.optimizer=sgd and train.momentum=0.9")
        return nesterov
