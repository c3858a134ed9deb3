"""Settings of the training: duration, optimizer, schedule, validation, checkpoints; and of its cost."""

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from harken.settings import Settings

LECTURE = "Strubell et al. 2019, as in CS5242, lecture 7"
PUE = 1.58  # world average of data centers, 2018
LB_PER_KWH = 0.954  # CO2e of the US grid, 2018
KG_PER_LB = 0.45359237
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Train(Settings):
    """Settings of the training. One of steps, tokens, epochs or minutes sets the duration."""

    model_config = ConfigDict(allow_inf_nan=False)

    exclusive: ClassVar = (("steps", "tokens", "epochs", "minutes"),)

    kind: Literal["loop"] = "loop"
    steps: int | None = Field(None, ge=0, description="number of updates; takes precedence over the default minutes")
    tokens: int | None = Field(None, ge=1, description="number of training tokens, instead of steps")
    epochs: float | None = Field(None, gt=0, description="number of passes over the training data, instead of steps")
    minutes: float = Field(4.0, gt=0, description="duration in minutes; converted to steps once, from a measured step")
    batch: int = Field(16, ge=1, description="number of rows per update")
    micro_batch: int | None = Field(
        None, ge=1, description="number of rows per forward pass (gradient accumulation); smaller needs less memory"
    )
    optimizer: Literal["adamw", "muon", "rmsprop", "sgd"] = Field(
        "adamw",
        description="dial: sets lr, weight_decay, betas and momentum; each of them can be overridden. muon:"
        " orthogonalized updates of hidden matrices, AdamW for the rest",
    )
    lr: float = Field(3e-3, gt=0, description="peak learning rate")
    schedule: Literal["cosine", "linear", "rsqrt", "plateau", "constant"] = Field(
        "cosine",
        description="learning-rate schedule after the warm-up; plateau: drop when the validation loss stops improving",
    )
    warmup: float = Field(0.05, ge=0, description="length of the linear warm-up: fraction of the steps if below 1")
    min_lr_ratio: float = Field(
        0.0, ge=0, le=1, description="final learning rate of cosine, linear and cooldown, as a fraction of lr"
    )
    cooldown: float = Field(
        0.0, ge=0, le=1, description="fraction of the steps, at the end, of the linear decay to min_lr_ratio"
    )
    weight_decay: float = Field(0.1, ge=0, description="decoupled weight decay of the matrices, multiplied by lr")
    betas: tuple[Fraction, Fraction] = Field(
        (0.9, 0.99),
        description="decay rates of the moving averages of the gradient and of its square; rmsprop: the second",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd, rmsprop and muon")
    nesterov: bool = Field(False, description="Nesterov momentum for sgd")
    grad_clip: float = Field(1.0, ge=0, description="maximum norm of the gradient; 0: no clipping")
    seed: int = Field(0, ge=0, lt=2**32, description="random seed of everything that is drawn")
    seeds: int = Field(
        1, ge=1, le=1000, description="number of seeds trained together as stacked models, from seed on; one is kept"
    )
    select_seed_on: Literal["valid", "train"] = Field(
        "valid", description="with several seeds, the split that selects the seed to keep"
    )
    keep_seeds: Literal["best", "all"] = Field(
        "best", description="with several seeds, all: each seed also becomes a run in the folder seeds/"
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the forward pass; auto: bfloat16 on a GPU that supports it, and on a CPU where it was"
        " measured to be at least 1.2 times faster for this model",
    )
    compile: Literal["auto", "yes", "blocks", "no"] = Field(
        "auto",
        description="torch.compile and CUDA graphs; auto: where they are faster; blocks: one block for all layers,"
        " which compiles sooner",
    )
    deterministic: bool = Field(False, description="bitwise reproducible on CUDA as well, slightly slower")
    parallel: Literal["none", "ddp", "fsdp"] = Field(
        "none", description="data parallelism over the processes of torchrun; fsdp also shards the weights"
    )
    threads: int | None = Field(None, ge=1, description="number of CPU threads; none: the default of torch")
    eval_every: int | None = Field(None, ge=1, description="steps between validation passes; none: ten in all")
    log_every: int | None = Field(None, ge=1, description="steps between lines of log.jsonl; none: about 200 in all")
    checkpoint_every: int | None = Field(None, ge=1, description="steps between checkpoints; none: every 30 seconds")
    tensorboard: bool = Field(False, description="write TensorBoard event files to the folder tensorboard/")
    keep_checkpoints: int = Field(2, ge=1, description="number of checkpoints to keep")
    keep_best: bool = Field(
        True, description="finish with the weights of the best validation pass instead of the last weights"
    )
    average: Literal["none", "ema", "last"] = Field(
        "none",
        description="weights to evaluate and keep: the current ones, their exponential moving average (ema), or the"
        " mean of the last validation passes (last)",
    )
    ema_decay: float = Field(0.999, ge=0, lt=1, description="average=ema: decay of the exponential moving average")
    average_last: int = Field(5, ge=1, description="number of validation passes to average")
    plateau_patience: int = Field(
        2, ge=1, description="plateau: validation passes without improvement before the learning rate drops"
    )
    plateau_factor: float = Field(0.5, gt=0, lt=1, description="plateau: factor of each drop of the learning rate")
    unfreeze_last: int = Field(0, ge=0, description="with transfer=frozen, number of last blocks to train")
    body_lr_ratio: float = Field(
        1.0, gt=0, le=1, description="learning rate of the encoder or body that `from` loads, as a fraction of lr"
    )
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="learning-rate decay per layer from the output down, for fine-tuning"
    )
    early_stopping_patience: int | None = Field(
        None, ge=1, description="validation passes without improvement before the training stops"
    )
    on_nan: Literal["stop", "skip"] = Field(
        "stop", description="action on a non-finite loss or gradient; with several seeds the other seeds continue"
    )

    dials: ClassVar = {  # docs/log.md has the trainings behind these
        "optimizer": {
            "adamw": {"lr": 3e-3, "weight_decay": 0.1, "betas": (0.9, 0.99), "momentum": 0.9},
            "muon": {"lr": 2e-2, "weight_decay": 0.1, "betas": (0.9, 0.99), "momentum": 0.95},
            "rmsprop": {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.99), "momentum": 0.0},
            "sgd": {"lr": 0.5, "weight_decay": 1e-3, "betas": (0.9, 0.99), "momentum": 0.9},
        }
    }

    @field_validator("nesterov")
    @classmethod
    def _nesterov_needs_sgd(cls, nesterov: bool, validation: ValidationInfo) -> bool:
        if nesterov and not (validation.data.get("optimizer") == "sgd" and validation.data.get("momentum")):
            raise ValueError("needs sgd with a momentum; set train.optimizer=sgd and train.momentum=0.9")
        return nesterov


class CostSettings(Settings):
    """Factors of the cost of a training: CO2e = energy x PUE x grid intensity, price = time x price per hour."""

    model_config = ConfigDict(allow_inf_nan=False)

    kind: Literal["energy"] = "energy"
    pue: float = Field(
        PUE,
        ge=1,
        description="power usage effectiveness of the data center: its energy divided by that of its machines; default:"
        " world average of 2018",
    )
    grid_intensity: float = Field(
        LB_PER_KWH * KG_PER_LB,
        ge=0,
        description="carbon intensity of the electricity in kg CO2e per kWh; default: 0.954 lb, US average of 2018",
    )
    price_per_hour: float | None = Field(
        None, ge=0, description="price of the machine in USD per hour; adds a price to the cost"
    )

    @property
    def sources(self) -> dict[str, str]:
        """The sources of the factors, for cost.json."""
        default = CostSettings()
        return {
            "pue_source": LECTURE if self.pue == default.pue else "cost.pue",
            "intensity_source": LECTURE if self.grid_intensity == default.grid_intensity else "cost.grid_intensity",
        }
