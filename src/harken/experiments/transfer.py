"""Transfer from a trained run: its architecture, its tokenizer and its weights.

`from = "runs/x"` in a recipe takes all three; a run of another task gives its body: the encoder of a model with a
decoder, or the model without its head. transfer=finetune trains all weights; frozen trains only what is new; scratch
keeps architecture and tokenizer but initializes the weights anew, as a control; 4-shot trains nothing and evaluates a
language model with a prompt (few_shot.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from harken import recipe as recipes
from harken import registry, run_folder
from harken.data.captions.source import CaptionProcessor
from harken.data.images.source import ImageProcessor
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.pairs.source import PairSource
from harken.data.source import Processor
from harken.data.tokenizers.pairs import PairTokenizers
from harken.errors import BadInput, BadSetting
from harken.files import sha256_of
from harken.models import HeadModel, Model, ModelSettings
from harken.models.vit import ViTSettings
from harken.recipe import InitialWeights, Recipe, SettingsDict

WEIGHTS = "model.safetensors"
INHERITED = ("tokenizer", "lowercase", "unknown_words")  # data settings that determine the token ids
FREE = ("dropout", "head_dropout", "pool", "context", "size")  # model settings that may differ from the run
NEW = ("nsp_head",)  # parts that a run may lack; they start from random weights
RATES = {"finetune": 0.04, "frozen": 4.0, "scratch": 0.1}  # learning rate with a new head, times the width d
RECURRENT_RATES = {"finetune": 1.2, "scratch": 1.2}
RATES_BY_BODY = {"gpt": {"finetune": 0.12}, **dict.fromkeys(("rnn", "gru", "lstm"), RECURRENT_RATES)}  # docs/log.md
SCHEDULE: SettingsDict = {"train.warmup": 0.1, "train.schedule": "linear", "train.weight_decay": 0.01}
DECODER_RATE, ENCODER_RATIO = 1e-3, 0.1  # of a new decoder; of a fine-tuned encoder, as a fraction of it
PREFIXES = ("", "body.", "encoder.")  # of the weights of a body in a run: of texts, with a head, with a decoder


def inherited_settings(folder: str, data: str, settings: SettingsDict) -> SettingsDict:
    """The settings that a recipe for this kind of data inherits from a run."""
    recipe, source = _recipe(folder), registry.find_kind("data", data)
    model = _matching_model(folder, recipe, data)
    kind, fields, run_model = model.model_fields["kind"].default, model.model_fields, type(recipe.model)
    if str(settings.get("model.kind", kind)) != kind:
        problem = f"from={folder} is a {recipe.model.kind}" + f", the body of a {kind}" * (kind != recipe.model.kind)
        raise BadSetting(f"model.kind = {settings['model.kind']!r}: {problem}; remove one of them")
    run_settings, transfer = recipe.settings(), str(settings.get("transfer", InitialWeights.transfer))
    inherited = {k: v for k, v in run_settings.items() if k.startswith("model.") and k.partition(".")[2] in fields}
    inherited |= {f"model.{name}": getattr(run_model, name) for name in fields.keys() & run_model.__class_vars__}
    if model.dials != run_model.dials:
        inherited.pop("model.size", None)  # it sets other values; those of the run are inherited
    names = [f"data.{name}" for name in INHERITED if name in source.model_fields]
    inherited |= {"model.kind": kind} | {name: run_settings[name] for name in names if name in run_settings}
    if "decoder_layers" in fields:
        return inherited if model is run_model else inherited | _decoder_settings(inherited, settings, transfer)
    return inherited | _schedule(recipe.model, transfer) if "pool" in fields else inherited


def _matching_model(folder: str, recipe: Recipe, data: str) -> type[ModelSettings]:
    """The model for this data that can start from the run: the same one, or one with the same body."""
    family, run_model = registry.FAMILIES[registry.find_kind("data", data).task].models, type(recipe.model)
    classes = [registry.find_kind("model", kind, family) for kind in registry.kind_names("model", family)]
    models = [model for model in classes if issubclass(model, ModelSettings)]
    for model in models:
        if model is run_model or (model.body_kind and model.body_kind == run_model.body_kind):
            return model
    accepted = dict.fromkeys(model.body_kind or f"{model.model_fields['kind'].default} for {data}" for model in models)
    raise BadSetting(
        f"from = {folder!r}: a {recipe.model.kind} for {recipe.data.kind} has no part that fits a model for {data};"
        f" use a run of {', '.join(accepted)}"
    )


def _schedule(model: ModelSettings, transfer: str) -> SettingsDict:
    """Learning rate and schedule for labels: small steps for pretrained weights, larger ones for a head alone."""
    rates = RATES | RATES_BY_BODY.get(model.body_kind, {})
    rate = {"train.lr": round(rates[transfer] / dict(model)["d"], 6)} if transfer in rates else {}
    return rate | SCHEDULE


def _decoder_settings(inherited: SettingsDict, settings: SettingsDict, transfer: str) -> SettingsDict:
    """Settings of a new decoder: its learning rate, a smaller one of the encoder, and the tokenizer of the targets.

    WordPiece loses white space, so targets get byte pairs unless the recipe sets another tokenizer. A model that copies
    needs the same tokens on both sides.
    """
    decoder = SCHEDULE | {"train.optimizer": "adamw", "train.lr": DECODER_RATE}
    decoder |= {"train.body_lr_ratio": ENCODER_RATIO} if transfer == "finetune" else {}
    if inherited.get("data.tokenizer") == "wordpiece":
        target = settings.get("data.target_tokenizer", "wordpiece" if settings.get("model.copy") else "bpe")
        shared = target == "wordpiece" and settings.get("data.shared_vocab", True) and transfer != "frozen"
        decoder |= {"data.target_tokenizer": target, "model.share_embeddings": shared}
    return decoder


def inherited_processor(recipe: Recipe) -> Processor | None:
    """The processor of the run in `from`, after a check that the architectures agree; None without such a run.

    Labels belong to the head, which is new: of a run with labels only the tokenizer is inherited. So do the targets of
    pairs.
    """
    if recipe.start.run is None:
        return None
    run_recipe = _recipe(recipe.start.run)
    processor: Processor = run_recipe.data.load_processor(Path(recipe.start.run))
    fitted, own = _fitted_settings(run_recipe, processor), _fitted_settings(recipe, processor)
    for name in fitted.keys() & own.keys():
        is_new = name.removeprefix("model.") in NEW and not fitted[name]
        if fitted[name] != own[name] and recipe.start.transfer != "scratch" and not is_new:
            problem = f"from={recipe.start.run} has {fitted[name]!r}, and its weights fit only that"
            raise BadSetting(f"{name} = {own[name]!r}: {problem}; remove it, or set transfer=scratch")
    same_kind = recipe.data.kind == run_recipe.data.kind
    if isinstance(processor, PairTokenizers) and not same_kind:
        return processor.source
    if isinstance(processor, PairTokenizers) and isinstance(recipe.data, PairSource):
        return replace(processor, n_temporary=recipe.data.unknown_words)  # with transfer=scratch it may differ
    if isinstance(processor, CaptionProcessor) and not same_kind:
        return ImageProcessor([], processor.image_size, processor.mean, processor.std)  # the labels are new
    has_head = "pool" in type(run_recipe.model).model_fields
    return processor.tokenizer if has_head and isinstance(processor, TokenLabelProcessor) else processor


def _fitted_settings(recipe: Recipe, processor: Processor) -> SettingsDict:
    """The settings that the weights fit. Those of images are as resolved for the images of the processor."""
    model = recipe.model
    fitted = {f"model.{name}": value for name, value in vars(model).items() if name not in ("kind", *FREE)}
    if isinstance(processor, PairTokenizers) and isinstance(recipe.data, PairSource):
        fitted["data.unknown_words"] = recipe.data.unknown_words  # each has an embedding
    if isinstance(processor, ImageProcessor | CaptionProcessor) and isinstance(model, ViTSettings):
        fitted |= {"model.patch": model.patch_size(processor.image_size), "model.pool": model.pool}
        fitted["data.image_size"] = recipe.data.image_size or processor.image_size
        fitted["data.color"] = len(processor.mean) == 3 if recipe.data.color is None else recipe.data.color
    return fitted


def init_from_run(model: Model, recipe: Recipe, *, weights: bool = True) -> None:
    """Load the weights of the run in `from` into the model, unless weights=False; freeze its body if set."""
    start, body = recipe.start, model.reusable_part
    if start.shots is not None:
        fix = "evaluate it with harken compare, or with harken eval RUN DATA --prompt"
        raise BadSetting(f"transfer = {start.transfer!r}: a prompt is not trained; {fix}")
    if recipe.train.unfreeze_last and (start.run is None or start.transfer != "frozen"):
        raise BadSetting("train.unfreeze_last: no weights are frozen; set from=RUN and transfer=frozen, or remove it")
    if start.run is None:
        return
    if start.transfer == "frozen" and body is model:
        raise BadSetting("transfer = 'frozen': this model has no separate head to train; use transfer=finetune")
    if start.transfer == "frozen" and dict(recipe.model).get("share_embeddings"):
        problem = "the embeddings of the targets would be frozen with the encoder"
        raise BadSetting(f"model.share_embeddings=true: {problem}; set model.share_embeddings=false")
    if weights and start.transfer != "scratch":
        _load([body] if isinstance(model, HeadModel) else [model, body], start)
    if start.transfer == "frozen":
        body.requires_grad_(False)
        _unfreeze(body, recipe.train.unfreeze_last)


def _load(modules: list[nn.Module], start: InitialWeights) -> None:
    """Load the first of these modules that the run contains."""
    path = Path(str(start.run)) / WEIGHTS
    if start.sha256 not in (None, sha256_of(path)):
        fix = f"restore them, or start from the new ones: from={start.run}"
        raise BadInput(f"{path}: not the weights that this recipe started from (SHA-256 mismatch); {fix}")
    saved = run_folder.read_tensors(path)
    for module in modules:
        for prefix in PREFIXES:
            if part := _part(module, saved, prefix):
                return run_folder.load_weights(module, part)
    run_folder.load_weights(modules[-1], saved)  # raises with the name of a weight


def _part(module: nn.Module, saved: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights of the module among those of a run; empty if they do not fit.

    New tokens keep their embeddings, and new parts their weights.
    """
    part = dict[str, Tensor]()
    for name, own in run_folder.weights(module).items():
        tensor = saved.get(prefix + name, own if name.partition(".")[0] in NEW else None)
        is_table = name == "embed.weight" and tensor is not None and tensor.shape[1:] == own.shape[1:]
        if tensor is not None and is_table and len(tensor) < len(own):
            tensor = torch.cat([tensor, own[len(tensor) :].to(tensor)])
        if tensor is None or tensor.shape != own.shape:
            return {}
        part[name] = tensor
    return part


def _unfreeze(body: nn.Module, n_blocks: int) -> None:
    """Train the last blocks, and the layers between the last block and the head."""
    blocks = body.transformer_blocks if isinstance(body, Model) else ()
    if n_blocks > len(blocks):
        raise BadSetting(f"train.unfreeze_last = {n_blocks}: the run in `from` has {len(blocks)} blocks; use fewer")
    if n_blocks:
        children = dict(body.named_children())
        after = [children[name] for name in ("norm", "pooler") if name in children]
        for part in (*blocks[-n_blocks:], *after):
            part.requires_grad_(True)


def with_checksum(start: InitialWeights) -> InitialWeights:
    """The same start with an absolute path and the checksum of its weights."""
    if start.run is None or start.transfer == "scratch" or start.sha256 is not None:
        return start.with_absolute_paths()
    return replace(start.with_absolute_paths(), sha256=sha256_of(Path(start.run) / WEIGHTS))


def _recipe(folder: str) -> Recipe:
    if "," in folder and not Path(folder).exists():
        problem = "a training starts from one run; to compare the trainings from several"
        raise BadSetting(f"from={folder}: {problem}: harken compare DATA from={folder}")
    files = ("recipe.toml", WEIGHTS, *run_folder.TOKENIZER_FILES)
    run_folder.read_manifest(Path(folder), *files)  # raises for an incomplete run
    return recipes.resolve((str(Path(folder) / "recipe.toml"), recipes.read(Path(folder) / "recipe.toml")))
