"""Fine-tuning speed at the size of BERT-base: harken (packed, CUDA graph) and the Trainer of transformers, interleaved.

    python benchmarks/finetuning.py SST-2/train.tsv --tokenizer minilm/tokenizer.json
    python benchmarks/finetuning.py --layers 2 --d 64 --heads 2 --rounds 3 --steps 5            small, for a CPU

Without a file, random texts with the lengths of SST-2 are used; without a tokenizer, every common word is a token. The
weights are random and equal in both: harken imports those of transformers. First, the gradients of the same examples
are compared in float32 and float64 without dropout, packed in harken and padded in transformers. Then both train on all
texts in interleaved turns, 32 texts per update: BertForSequenceClassification in a Trainer with its default padding (to
the longest text of a batch) and with padding to 128. The output is texts per second; the ratio is the ratio of medians.
"""

import argparse
import copy
import json
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, TrainingArguments

from harken import machine
from harken.bridge.families import find_mapping
from harken.bridge.folder import ModelFolder
from harken.bridge.importer import import_model
from harken.bridge.weight_mapping import match_tensors
from harken.experiments.choose import choose
from harken.experiments.train import prepare

VOCAB = 30_522  # BERT's
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PADDED = 128  # tokens, fixed padding of the second Trainer
BATCH = 32
Turn = Callable[[int], int]  # number of updates -> number of texts


def random_texts(path: Path, n_texts: int = 20_000) -> Path:
    """Write random texts with the lengths of SST-2 in words: geometric, mean 9.4, from 1 to 52."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.geometric(1 / 9.6, n_texts), 1, 52)
    rows = (" ".join(f"w{n}" for n in rng.integers(10_000, size=length)) for length in lengths)
    path.write_text("sentence\tlabel\n" + "".join(f"{row}\t{n % 2}\n" for n, row in enumerate(rows)))
    return path


def build_tokenizer(texts: Path, path: Path | None) -> tokenizers.Tokenizer:
    """Return a WordPiece tokenizer with the vocabulary size of BERT that adds [CLS] and [SEP]."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path)) if path else word_tokenizer(texts)
    ends = [(mark, tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", pair, ends)
    return tokenizer


def word_tokenizer(texts: Path) -> tokenizers.Tokenizer:
    """Build a tokenizer whose tokens are the common words and all letters."""
    counts = Counter(texts.read_text("utf-8").lower().split())
    letters = sorted({letter for word in counts for letter in word})
    known = dict.fromkeys(
        [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), *(w for w, _ in counts.most_common())]
    )
    listed = [*known, *(f"[unused{n}]" for n in range(VOCAB))][:VOCAB]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({w: n for n, w in enumerate(listed)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


def reference_model(
    options: argparse.Namespace, folder: Path, tokenizer: tokenizers.Tokenizer
) -> BertForSequenceClassification:
    """Build a model with random weights; save its body and tokenizer in a folder that harken imports."""
    sizes = {"hidden_size": options.d, "num_hidden_layers": options.layers, "num_attention_heads": options.heads}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), intermediate_size=4 * options.d, num_labels=2, **sizes)
    reference = BertForSequenceClassification(config)
    reference.bert.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return reference


# --- gradients --------------------------------------------------------------------------------------------------------


def gradients(reference: BertForSequenceClassification, trainer, folder: Path, kind: torch.dtype) -> dict:
    """Return the difference of the gradients of one batch, packed in harken and padded in transformers."""
    reference, ours, task = copy.deepcopy(reference), copy.deepcopy(trainer.model), trainer.task
    device = trainer.device
    for model in (reference.to(device, kind), ours.to(device, kind)):
        model.eval()  # no dropout
    batch, texts = task.batch(0, 0), task.data.train.texts
    loss = task.loss(ours, batch.to(device)).total / batch.n_targets
    loss.backward()
    picks = batch.text_index[batch.text_index >= 0].numpy()
    ids, lengths = texts.tokens.gather(picks)
    rows = [[*part, texts.tokens.edge] for part in np.split(ids, np.cumsum(lengths)[:-1])]
    rows = [torch.tensor(row, device=device) for row in rows]
    real = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], True)
    targets = torch.from_numpy(texts.targets[picks]).to(device)
    padded = torch.nn.utils.rnn.pad_sequence(rows, True)
    reference_loss = reference(input_ids=padded, attention_mask=real, labels=targets).loss
    reference_loss.backward()
    named, gaps = dict(reference.named_parameters()), {}
    source = ModelFolder(folder)
    mappings = {f"body.{name}": mapping for name, mapping in match_tensors(source, find_mapping(source)).items()}
    for name, weight in ours.named_parameters():
        if name in mappings:
            expected = mappings[name].import_tensor(named[f"bert.{mappings[name].name}"].grad)
        else:
            expected = named[name.replace("W_y", "classifier")].grad
        gap = (weight.grad[: len(expected)] - expected).abs().max() / expected.abs().max()
        gaps[name] = float(gap)
    keys = {name: gaps.pop(name) for name in list(gaps) if name.endswith("W_k.bias")}  # zero up to rounding in both
    worst = max(gaps, key=gaps.__getitem__)
    facts = {"texts": len(picks), "rows": len(batch.tokens), "padded": list(padded.shape), "compared": len(gaps)}
    loss_gap = float((loss - reference_loss).detach().abs() / reference_loss.detach())
    return {"proof": str(kind), "loss": loss_gap, "gradients": gaps[worst], "worst": worst, "zeros": len(keys), **facts}


# --- turns ------------------------------------------------------------------------------------------------------------


class Pause(transformers.TrainerCallback):
    """Blocks a Trainer that runs in its own thread until its next turn."""

    def __init__(self) -> None:
        self.go, self.done, self.left = threading.Semaphore(0), threading.Semaphore(0), 0

    def on_step_end(self, *_, **__) -> None:
        self.left -= 1
        if self.left == 0:
            self.done.release()
            self.go.acquire()


def trainer_turn(
    reference, train_arguments: TrainingArguments, tokenizer, rows: list[dict], pad_to: int | None
) -> Turn:
    """Return turns of a Trainer; `pad_to`: fixed length of all texts, None: the longest text of a batch."""
    padding = {"padding": "max_length", "max_length": pad_to} if pad_to else {}
    pause, collator = Pause(), DataCollatorWithPadding(tokenizer, **padding)
    trainer = transformers.Trainer(copy.deepcopy(reference), train_arguments, collator, rows, callbacks=[pause])

    def train() -> None:
        try:
            trainer.train()
        finally:
            pause.done.release()

    thread = threading.Thread(target=train, daemon=True)

    def turn(steps: int) -> int:
        pause.left = steps
        if thread.ident is None:  # all Trainers must be created before the first starts: they share state
            thread.start()
        else:
            pause.go.release()
        pause.done.acquire()
        if pause.left:
            raise SystemExit("the Trainer ended before the end of its turn")
        return steps * BATCH

    return turn


def arguments(total: int, out: str) -> TrainingArguments:
    """Return the default arguments of the Trainer, without logs and checkpoints."""
    cuda = torch.cuda.is_available()
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    size = {"per_device_train_batch_size": BATCH, "max_steps": total, "learning_rate": 2e-5}
    return TrainingArguments(out, bf16=cuda, use_cpu=not cuda, **size, **quiet)


def our_turn(trainer) -> Turn:
    def turn(steps: int) -> int:
        begin = trainer.step
        for _ in range(steps):
            trainer.update(10**9, read=False)
        return begin

    return turn


def count_texts(task, begin: int, steps: int) -> int:
    """Return the number of texts in these updates of harken."""
    batches = (task.batch(*divmod(step, task.steps)) for step in range(begin, begin + steps))
    return sum(int((batch.text_index >= 0).sum()) for batch in batches)


def packing_ms(task, steps: int = 200) -> float:
    """Return the milliseconds for packing one batch."""
    begin = time.perf_counter()
    for step in range(steps):
        task.batch(0, step % task.steps)
    return (time.perf_counter() - begin) / steps * 1e3


def time_turns(turns: dict[str, Turn], task, device: torch.device, options: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for n in range(options.rounds + 1):  # the first is a warm-up: kernels are selected, code is compiled
        for name, turn in turns.items():
            machine.synchronize(device)
            start = time.perf_counter()
            texts = turn(options.steps)
            machine.synchronize(device)
            seconds = time.perf_counter() - start
            texts = count_texts(task, texts, options.steps) if name == "harken" else texts
            if n:
                rates[name].append(texts / seconds)
    reference = statistics.median(rates["Trainer"])
    for name, speeds in rates.items():
        median = statistics.median(speeds)
        row = {"name": name, "texts_per_second": round(median), "spread": [round(min(speeds)), round(max(speeds))]}
        print(
            json.dumps(row | {"ratio": round(median / reference, 3), "rounds": options.rounds, "steps": options.steps})
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json of a BERT or of a run with one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50, help="updates per turn")
    for name, base in (("layers", 12), ("d", 768), ("heads", 12)):
        parser.add_argument(f"--{name}", type=int, default=base)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    home = tempfile.TemporaryDirectory()
    home_path = Path(home.name)
    data = options.data or random_texts(home_path / "texts.tsv")
    tokenizer = build_tokenizer(data, options.tokenizer)
    reference = reference_model(options, home_path / "transformers", tokenizer)
    import_model(home_path / "transformers", home_path / "run")
    settings = {"from": str(home_path / "run"), "data.max_length": PADDED, "train.batch": BATCH, "train.lr": 2e-5}
    recipe = choose(str(data), settings | {"model.pool": "first", "data.valid": 0.0, "data.test": 0.0}).recipe
    opened, trainer = prepare(recipe, lambda *_, **__: None)
    with torch.no_grad():
        trainer.model.W_y.load_state_dict(reference.classifier.state_dict())
    texts, task = opened.train.texts, trainer.task
    facts = {"texts": len(texts), "tokens": round(float(texts.lengths.mean()), 2), "longest": int(texts.lengths.max())}
    facts |= {"padding": round(task.batches.padding, 4), "rows": task.batches.rows, "row_len": task.batches.widths[0]}
    facts |= {"packing_ms": round(packing_ms(task), 3), "weights": sum(p.numel() for p in reference.parameters())}
    print(json.dumps(facts | {"transformers": transformers.__version__, **machine.describe(trainer.device)}))
    for kind in (torch.float32, torch.float64):
        print(json.dumps(gradients(reference, trainer, home_path / "transformers", kind)), flush=True)
    encoded = [[*part, texts.tokens.edge] for part in np.split(texts.tokens.ids, texts.tokens.starts[1:-1])]
    rows = [{"input_ids": list(map(int, ids)), "label": int(y)} for ids, y in zip(encoded, texts.targets, strict=True)]
    train_arguments = arguments(options.steps * (options.rounds + 1) + 1, str(home_path / "out"))
    special_tokens = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens)
    turns = {"harken": our_turn(trainer)}
    for name, pad_to in (("Trainer", None), (f"Trainer, padded to {PADDED}", PADDED)):
        turns[name] = trainer_turn(reference, train_arguments, fast, rows, pad_to)
    time_turns(turns, task, trainer.device, options)


if __name__ == "__main__":
    main()
