"""Fine-tuning at BERT-base's shape: harken's packed, recorded steps beside transformers' Trainer, in one run.

    python benchmarks/finetuning.py SST-2/train.tsv --tokenizer minilm/tokenizer.json
    python benchmarks/finetuning.py --layers 2 --d 64 --heads 2 --rounds 3 --steps 5            small, for a CPU

Without a file the texts have SST-2's lengths and no sense; without a tokenizer every common word is a token. Weights
are random, and the same in both: what transformers made comes to harken through its bridge. First the gradients of the
same examples are compared, packed here and padded there, in float32 and float64, nothing dropped. Then both learn from
all texts, 32 in an update, and take turns: BertForSequenceClassification in a Trainer with its default padding (to the
longest of a batch), and with that of its examples (to 128). Counted are texts a second; the ratio is that of medians.
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
from harken.bridge import weight_mapping
from harken.bridge.folder import ModelFolder
from harken.bridge.importer import import_model
from harken.experiments.choose import choose
from harken.experiments.train import prepare

VOCAB = 30_522  # BERT's
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PADDED = 128  # tokens to which the Trainer's examples pad
BATCH = 32
Turn = Callable[[int], int]  # so many updates -> texts learned from


def random_texts(path: Path, n_texts: int = 20_000) -> Path:
    """Texts as long as SST-2's, in words: geometric, 9.4 in the mean, 1 to 52."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.geometric(1 / 9.6, n_texts), 1, 52)
    rows = (" ".join(f"w{n}" for n in rng.integers(10_000, size=length)) for length in lengths)
    path.write_text("sentence\tlabel\n" + "".join(f"{row}\t{n % 2}\n" for n, row in enumerate(rows)))
    return path


def build_tokenizer(texts: Path, path: Path | None) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer of BERT's size, which sets the marks around a text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path)) if path else word_tokenizer(texts)
    ends = [(mark, tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", pair, ends)
    return tokenizer


def word_tokenizer(texts: Path) -> tokenizers.Tokenizer:
    """Every common word is a token, and every letter."""
    seen = Counter(texts.read_text("utf-8").lower().split())
    letters = sorted({letter for word in seen for letter in word})
    known = dict.fromkeys(
        [*MARKS, *letters, *(f"##{letter}" for letter in letters), *(w for w, _ in seen.most_common())]
    )
    listed = [*known, *(f"[unused{n}]" for n in range(VOCAB))][:VOCAB]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({w: n for n, w in enumerate(listed)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(MARKS)
    return tokenizer


def peer(options: argparse.Namespace, folder: Path, tokenizer: tokenizers.Tokenizer) -> BertForSequenceClassification:
    """Random weights, and their body in a folder that harken imports."""
    sizes = {"hidden_size": options.d, "num_hidden_layers": options.layers, "num_attention_heads": options.heads}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), intermediate_size=4 * options.d, num_labels=2, **sizes)
    reference = BertForSequenceClassification(config)
    reference.bert.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return reference


# --- the same gradients -----------------------------------------------------------------------------------------------


def gradients(reference: BertForSequenceClassification, trainer, folder: Path, kind: torch.dtype) -> dict:
    """How far the gradients of one batch lie apart: packed here, padded there."""
    reference, ours, task = copy.deepcopy(reference), copy.deepcopy(trainer.model), trainer.task
    device = trainer.device
    for model in (reference.to(device, kind), ours.to(device, kind)):
        model.eval()  # nothing is dropped
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
    other = reference(input_ids=padded, attention_mask=real, labels=targets).loss
    other.backward()
    named, gaps = dict(reference.named_parameters()), {}
    source = ModelFolder(folder)
    mappings = {
        f"body.{name}": mapping
        for name, mapping in weight_mapping.match_tensors(source, weight_mapping.find_mapping(source)).items()
    }
    for name, weight in ours.named_parameters():
        if name in mappings:
            wanted = mappings[name].import_tensor(named[f"bert.{mappings[name].name}"].grad)
        else:
            wanted = named[name.replace("W_y", "classifier")].grad
        gap = (weight.grad[: len(wanted)] - wanted).abs().max() / wanted.abs().max()
        gaps[name] = float(gap)
    keys = {name: gaps.pop(name) for name in list(gaps) if name.endswith("W_k.bias")}  # 0 but for rounding, in both
    worst = max(gaps, key=gaps.__getitem__)
    facts = {"texts": len(picks), "rows": len(batch.tokens), "padded": list(padded.shape), "compared": len(gaps)}
    loss_gap = float((loss - other).detach().abs() / other.detach())
    return {"proof": str(kind), "loss": loss_gap, "gradients": gaps[worst], "worst": worst, "zeros": len(keys), **facts}


# --- turns ------------------------------------------------------------------------------------------------------------


class Pause(transformers.TrainerCallback):
    """Holds a Trainer that runs in a thread of its own, until it is its turn."""

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
    """Turns of a Trainer; `to`: the length to which all texts are padded, None: the longest of a batch."""
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
        if thread.ident is None:  # all Trainers must be made before one begins: they share a state
            thread.start()
        else:
            pause.go.release()
        pause.done.acquire()
        if pause.left:
            raise SystemExit("the Trainer ended before its turn did")
        return steps * BATCH

    return turn


def arguments(total: int, out: str) -> TrainingArguments:
    """The Trainer's own defaults, but for what is written on the way."""
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
    """Texts in these updates of harken's."""
    batches = (task.batch(*divmod(step, task.steps)) for step in range(begin, begin + steps))
    return sum(int((batch.text_index >= 0).sum()) for batch in batches)


def host(task, steps: int = 200) -> float:
    """Milliseconds in which a batch is packed."""
    begin = time.perf_counter()
    for step in range(steps):
        task.batch(0, step % task.steps)
    return (time.perf_counter() - begin) / steps * 1e3


def contest(turns: dict[str, Turn], task, device: torch.device, options: argparse.Namespace) -> None:
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for n in range(options.rounds + 1):  # the first is not counted: kernels are chosen, code is compiled
        for name, turn in turns.items():
            machine.synchronize(device)
            start = time.perf_counter()
            texts = turn(options.steps)
            machine.synchronize(device)
            seconds = time.perf_counter() - start
            texts = count_texts(task, texts, options.steps) if name == "harken" else texts
            if n:
                rates[name].append(texts / seconds)
    rival = statistics.median(rates["Trainer"])
    for name, seen in rates.items():
        middle = statistics.median(seen)
        row = {"name": name, "texts_per_second": round(middle), "spread": [round(min(seen)), round(max(seen))]}
        print(json.dumps(row | {"ratio": round(middle / rival, 3), "rounds": options.rounds, "steps": options.steps}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json of a BERT, or of a run of one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50, help="updates of each in one turn")
    for name, base in (("layers", 12), ("d", 768), ("heads", 12)):
        parser.add_argument(f"--{name}", type=int, default=base)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    home = tempfile.TemporaryDirectory()
    home_path = Path(home.name)
    data = options.data or random_texts(home_path / "texts.tsv")
    tokenizer = build_tokenizer(data, options.tokenizer)
    reference = peer(options, home_path / "theirs", tokenizer)
    import_model(home_path / "theirs", home_path / "run")
    settings = {"from": str(home_path / "run"), "data.max_length": PADDED, "train.batch": BATCH, "train.lr": 2e-5}
    recipe = choose(str(data), settings | {"model.pool": "first", "data.valid": 0.0, "data.test": 0.0}).recipe
    opened, trainer = prepare(recipe, lambda *_, **__: None)
    with torch.no_grad():
        trainer.model.W_y.load_state_dict(reference.classifier.state_dict())
    texts, task = opened.train.texts, trainer.task
    facts = {"texts": len(texts), "tokens": round(float(texts.lengths.mean()), 2), "longest": int(texts.lengths.max())}
    facts |= {"padding": round(task.batches.padding, 4), "rows": task.batches.rows, "row_len": task.batches.row_len}
    facts |= {"packing_ms": round(host(task), 3), "weights": sum(p.numel() for p in reference.parameters())}
    print(json.dumps(facts | {"transformers": transformers.__version__, **machine.describe(trainer.device)}))
    for kind in (torch.float32, torch.float64):
        print(json.dumps(gradients(reference, trainer, home_path / "theirs", kind)), flush=True)
    encoded = [[*part, texts.tokens.edge] for part in np.split(texts.tokens.ids, texts.tokens.starts[1:-1])]
    rows = [{"input_ids": list(map(int, ids)), "label": int(y)} for ids, y in zip(encoded, texts.targets, strict=True)]
    train_arguments = arguments(options.steps * (options.rounds + 1) + 1, str(home_path / "out"))
    marks = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)
    turns = {"harken": our_turn(trainer)}
    for name, pad_to in (("Trainer", None), (f"Trainer, padded to {PADDED}", PADDED)):
        turns[name] = trainer_turn(reference, train_arguments, fast, rows, pad_to)
    contest(turns, task, trainer.device, options)


if __name__ == "__main__":
    main()
