"""Hostile or broken folders are refused in one line, fast, with little memory; nothing is executed."""

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harken.bridge import transformers_reference
from harken.bridge.families import find_mapping
from harken.bridge.folder import ModelFolder
from harken.bridge.importer import import_model
from harken.data.synthetic.tales import tales
from harken.data.tokenizers.tokenizer import train_tokenizer

D, VOCAB = 8, 300
Corruption = Callable[[Path], Any]
CONFIG = {"model_type": "gpt2", "n_embd": D, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": VOCAB}
SHAPES = {
    "wte.weight": (VOCAB, D), "wpe.weight": (16, D), "ln_f.weight": (D,), "ln_f.bias": (D,),
    "h.0.ln_1.weight": (D,), "h.0.ln_1.bias": (D,), "h.0.ln_2.weight": (D,), "h.0.ln_2.bias": (D,),
    "h.0.attn.c_attn.weight": (D, 3 * D), "h.0.attn.c_attn.bias": (3 * D,),
    "h.0.attn.c_proj.weight": (D, D), "h.0.attn.c_proj.bias": (D,),
    "h.0.mlp.c_fc.weight": (D, 4 * D), "h.0.mlp.c_fc.bias": (4 * D,),
    "h.0.mlp.c_proj.weight": (4 * D, D), "h.0.mlp.c_proj.bias": (D,),
}  # fmt: skip


class Bomb:
    """Executes code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(Path(os.environ["CANARY"])),)


# --- how to write them ------------------------------------------------------------------------------------------------


def header(shapes: dict[str, tuple[int, ...]] = SHAPES) -> dict[str, Any]:
    entries, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    return entries


def write(path: Path, head: Any, size: int | None = None, *, data: bytes | None = None) -> None:
    """A safetensors file with this header, and `size` bytes of data (default: as the header requires)."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    if size is None:
        ends = [v["data_offsets"][1] for v in head.values() if "data_offsets" in v] if isinstance(head, dict) else [0]
        size = max(ends)
    rng = np.random.default_rng(0)
    body = data if data is not None else rng.normal(0, 0.1, size // 4).astype("<f4").tobytes().ljust(size, b"\0")
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def weights(**changed: Any) -> Corruption:
    """Change entries of the header: {name: {dtype, shape, data_offsets}}."""

    def corrupt(folder: Path) -> None:
        head = {name: dict(entry) for name, entry in header().items()}
        size = max(entry["data_offsets"][1] for entry in head.values())
        for name, entry in changed.items():
            head[name] = {**head.get(name, {}), **entry}
        write(folder / "model.safetensors", head, size)

    return corrupt


def config(**changed: Any) -> Corruption:
    return lambda folder: (folder / "config.json").write_text(json.dumps(CONFIG | changed))


def raw(name: str, content: bytes) -> Corruption:
    return lambda folder: (folder / name).write_bytes(content)


def tokens(change: Callable[[dict[str, Any]], Any]) -> Corruption:
    def corrupt(folder: Path) -> None:
        spec = json.loads((folder / "tokenizer.json").read_bytes())
        change(spec)
        (folder / "tokenizer.json").write_text(json.dumps(spec))

    return corrupt


def pickled(name: str) -> Corruption:
    return lambda folder: (folder / name).write_bytes(pickle.dumps(Bomb()))


def index(weight_map: Any) -> Corruption:
    def corrupt(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    return corrupt


def linked(name: str, *, dangling: bool = False) -> Corruption:
    def corrupt(folder: Path) -> None:
        away = folder.parent / "elsewhere"
        if not dangling:
            (folder / name).rename(away)
        else:
            (folder / name).unlink()
        (folder / name).symlink_to(away)

    return corrupt


def values(number: float) -> Corruption:
    def corrupt(folder: Path) -> None:
        head = header()
        size = max(entry["data_offsets"][1] for entry in head.values())
        numbers = np.zeros(size // 4, "<f4")
        numbers[len(numbers) // 2] = number
        write(folder / "model.safetensors", head, data=numbers.tobytes())

    return corrupt


def sparse(folder: Path) -> None:
    """A sparse file of terabytes; shapes and config are consistent."""
    big = 60_000
    shapes = {name: tuple({D: big, 3 * D: 3 * big, 4 * D: 4 * big}.get(n, n) for n in s) for name, s in SHAPES.items()}
    head = header(shapes)
    write(folder / "model.safetensors", head, 0)
    end = (folder / "model.safetensors").stat().st_size + max(entry["data_offsets"][1] for entry in head.values())
    os.truncate(folder / "model.safetensors", end)
    config(n_embd=big)(folder)


def large(name: str, size: int, start: bytes = b"") -> Corruption:
    def corrupt(folder: Path) -> None:
        (folder / name).write_bytes(start)
        os.truncate(folder / name, size)

    return corrupt


def archive(name: str) -> Corruption:
    def corrupt(folder: Path) -> None:
        with zipfile.ZipFile(folder / name, "w") as box:
            box.writestr("archive/data.pkl", pickle.dumps(Bomb()))

    return corrupt


def fifo(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def loop(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "config.json")


def rotary(folder: Path, rope: dict[str, Any]) -> None:
    """A Llama config; its weights are never read."""
    fields = {"hidden_size": D, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": D}
    config(model_type="llama", max_position_embeddings=16, rope_scaling=rope, **fields)(folder)


def set_part(part: str, change: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda spec: spec.__setitem__(part, change)


DEEP = b"[" * 100_000
SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
CORRUPTIONS: dict[str, tuple[Corruption, str]] = {
    # what could run
    "a pickle beside the weights": (pickled("pytorch_model.bin"), "pytorch_model.bin: may be a pickle"),
    "a pickle .pt": (pickled("model.pt"), "pickle"),
    "a pickle .pth": (pickled("optimizer.pth"), "pickle"),
    "a pickle .pkl": (pickled("data.pkl"), "pickle"),
    "a pickle in capitals": (pickled("MODEL.BIN"), "pickle"),
    "a checkpoint": (pickled("last.ckpt"), "pickle"),
    "a joblib": (pickled("head.joblib"), "pickle"),
    "a Keras file": (raw("model.h5", b"\x89HDF"), "pickle"),
    "a Keras archive": (archive("model.keras"), "pickle"),
    "a flax file": (raw("flax_model.msgpack", b"\x80"), "pickle"),
    "a numpy file": (raw("weights.npy", b"\x93NUMPY"), "pickle"),
    "a zip": (archive("model.zip"), "archive"),
    "a tar": (raw("model.tar", b"\0" * 512), "archive"),
    "a tar.gz": (raw("model.tar.gz", b"\x1f\x8b"), "archive"),
    "code": (raw("modeling_custom.py", b"import os; os.mkdir(os.environ['CANARY'])"), "modeling_custom.py: is code"),
    "a library": (raw("kernel.so", b"\x7fELF"), "is code"),
    "a script": (raw("install.sh", b"mkdir $CANARY"), "is code"),
    "a notebook": (raw("use.ipynb", b"{}"), "is code"),
    "a pickle called safetensors": (pickled("model.safetensors"), "model.safetensors: header of"),
    "a torch archive called safetensors": (archive("model.safetensors"), "header"),
    "a pickle called config": (pickled("config.json"), "config.json: invalid JSON"),
    "auto_map": (config(auto_map={"AutoModel": "modeling_custom.Custom"}), "auto_map names code"),
    # config.json
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: is missing"),
    "a config that is a folder": (
        lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()),
        "config.json: is missing",
    ),
    "a config that is a pipe": (fifo, "config.json: is missing"),
    "a config that is a link to itself": (loop, "config.json: is missing"),
    "a config from elsewhere": (linked("config.json"), "config.json: is a link out of its folder"),
    "an empty config": (raw("config.json", b""), "invalid JSON"),
    "a config that is a list": (raw("config.json", b"[]"), "not a JSON object"),
    "a config that is no UTF-8": (raw("config.json", b'{"model_type": "\xff"}'), "invalid JSON"),
    "a deep config": (raw("config.json", b'{"a":' * 50_000 + b"1" + b"}" * 50_000), "invalid JSON"),
    "a deep list": (raw("config.json", DEEP), "invalid JSON"),
    "a key twice": (raw("config.json", b'{"model_type": "gpt2", "model_type": "gpt2"}'), "duplicate key"),
    "NaN in the config": (raw("config.json", b'{"model_type": "gpt2", "n_embd": NaN}'), "NaN is not a finite number"),
    "a number of 5,000 digits": (raw("config.json", b'{"model_type": ' + b"9" * 5000 + b"}"), "invalid JSON"),
    "a config of 2 MB": (large("config.json", 2 << 20), "larger than 1 MiB"),
    "a crowded config": (raw("config.json", b"[" + b"{}," * 100_000 + b"{}]"), "too many items"),
    "a number that is infinite": (
        raw("config.json", json.dumps(CONFIG).replace('"n_head": 2', '"layer_norm_epsilon": 1e999').encode()),
        "n_head",
    ),
    "no model_type": (raw("config.json", b"{}"), "model_type 'None' is unknown"),
    "an unknown model_type": (config(model_type="../gpt2"), "is unknown; known: gpt2"),
    "a model_type that is a list": (config(model_type=["gpt2"]), "is unknown"),
    "a billion tokens": (config(vocab_size=10**9), "vocab_size = 1000000000"),
    "no tokens": (config(vocab_size=0), "vocab_size = 0"),
    "fewer than no tokens": (config(vocab_size=-1), "vocab_size = -1"),
    "tokens as a text": (config(vocab_size="300"), "vocab_size = '300'"),
    "tokens as a fraction": (config(vocab_size=300.5), "vocab_size = 300.5"),
    "a billion layers": (config(n_layer=10**9), "n_layer = 1000000000"),
    "more layers than there are": (config(n_layer=999), "tensor .* is missing"),
    "a width of 2^63": (config(n_embd=2**63), "n_embd = 9223372036854775808"),
    "true as a width": (config(n_embd=True), "n_embd = True"),
    "no heads": (config(n_head=0), "n_head = 0"),
    "heads that do not divide": (config(n_head=3), "d=8 is not divisible by heads=3"),
    "another width than the weights": (config(n_embd=16), "has shape"),
    "more places than the weights": (config(n_positions=17), "wpe.weight has shape"),
    "more tokens than the weights": (config(vocab_size=301), "wte.weight has shape"),
    "turns of a billion": (
        lambda folder: rotary(folder, {"rope_type": "default", "partial_rotary_factor": 1e9}),
        "partial_rotary_factor must be 1",
    ),
    "turns of another rule": (
        lambda folder: rotary(folder, {"rope_type": "default", "mscale": 2}),
        "'mscale' is unknown",
    ),
    "an epsilon below 0": (config(layer_norm_epsilon=-1.0), "layer_norm_epsilon = -1.0"),
    "code as an activation": (config(activation_function="__import__('os')"), "activation_function"),
    # safetensors
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: is missing"),
    "weights from elsewhere": (linked("model.safetensors"), "is a link out of its folder"),
    "weights that lead nowhere": (linked("model.safetensors", dangling=True), "is missing"),
    "empty weights": (raw("model.safetensors", b""), "header"),
    "seven bytes": (raw("model.safetensors", b"\0" * 7), "header"),
    "a header of 2^63 bytes": (raw("model.safetensors", struct.pack("<Q", 2**63) + b"{}"), "9223372036854775808"),
    "a header longer than the file": (raw("model.safetensors", struct.pack("<Q", 999) + b"{}"), "999"),
    "a header of 95 MB": (large("model.safetensors", 96 << 20, struct.pack("<Q", 95_000_000) + b"{"), "95000000"),
    "a header that is no JSON": (lambda f: write(f / "model.safetensors", b"{{", 0), "invalid JSON"),
    "a header that is a list": (lambda f: write(f / "model.safetensors", b"[1]", 0), "not a JSON object"),
    "a deep header": (lambda f: write(f / "model.safetensors", b'{"a":' * 40_000, 0), "invalid JSON"),
    "a tensor twice": (
        lambda f: write(f / "model.safetensors", b'{"a": %s, "a": %s}' % ((json.dumps(ONE).encode(),) * 2), 4),
        "duplicate key",
    ),
    "60,001 tensors": (
        lambda f: write(
            f / "model.safetensors", {f"t{n}": {**ONE, "shape": [0], "data_offsets": [0, 0]} for n in range(60_001)}
        ),
        "too many items",
    ),
    "a shape that lies": (weights(**{"wte.weight": {"shape": [VOCAB, 2 * D]}}), "its entry has another size"),
    "a shape of 2^62": (weights(**{"wte.weight": {"shape": [2**62, 4]}}), "has an invalid safetensors entry"),
    "a shape below 0": (weights(**{"wte.weight": {"shape": [-VOCAB, -D]}}), "invalid safetensors entry"),
    "a shape of fractions": (weights(**{"wte.weight": {"shape": [300.0, 8.0]}}), "invalid safetensors entry"),
    "a shape of truths": (weights(**{"ln_f.bias": {"shape": [True, 8]}}), "invalid safetensors entry"),
    "a shape of 40 dimensions": (weights(**{"ln_f.bias": {"shape": [1] * 39 + [8]}}), "invalid safetensors entry"),
    "a shape that is turned": (weights(**{"wpe.weight": {"shape": [D, 16]}}), "wpe.weight has shape"),
    "a shape without columns": (weights(**{"wpe.weight": {"shape": [16 * D]}}), "wpe.weight has shape"),
    "q, k and v without columns": (weights(**{"h.0.attn.c_attn.weight": {"shape": [3 * D * D]}}), "c_attn.weight has"),
    "offsets below 0": (weights(**{"wte.weight": {"data_offsets": [-4, 9596]}}), "invalid safetensors entry"),
    "offsets that overlap": (weights(**{"wpe.weight": {"data_offsets": [0, 512]}}), "does not start where"),
    "offsets behind the end": (
        weights(**{"h.0.mlp.c_proj.bias": {"data_offsets": [10**6, 10**6 + 32]}}),
        "start where",
    ),
    "three offsets": (weights(**{"wte.weight": {"data_offsets": [0, 1, 2]}}), "invalid safetensors entry"),
    "no offsets": (
        lambda f: write(f / "model.safetensors", {"a": {"dtype": "F32", "shape": [1]}}, 4),
        "invalid safetensors entry",
    ),
    "bytes behind the last tensor": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes() + b"PK\x03\x04" * 10),
        "its tensors end at",
    ),
    "bytes that are missing": (
        lambda f: os.truncate(f / "model.safetensors", (f / "model.safetensors").stat().st_size - 4),
        "its tensors end at",
    ),
    "an unknown dtype": (weights(**{"wte.weight": {"dtype": "F7"}}), "has dtype 'F7'"),
    "a dtype that is a list": (weights(**{"wte.weight": {"dtype": ["F32"]}}), "has dtype"),
    "whole numbers as weights": (weights(**{"ln_f.bias": {"dtype": "I32"}}), "ln_f.bias has dtype I32"),
    "metadata that are no texts": (weights(__metadata__={"a": 1}), "metadata"),
    "a tensor too many": (
        lambda f: write(f / "model.safetensors", header({**SHAPES, "evil.weight": (4,)})),
        "evil.weight",
    ),
    "a name like a path": (
        lambda f: write(f / "model.safetensors", header({**SHAPES, "../../etc/passwd": (4,)})),
        "passwd' is unexpected",
    ),
    "a tensor too few": (
        lambda f: write(f / "model.safetensors", header({n: s for n, s in SHAPES.items() if n != "ln_f.bias"})),
        "ln_f.bias is missing",
    ),
    "NaN": (values(float("nan")), "has NaN or infinite values"),
    "infinity": (values(float("-inf")), "has NaN or infinite values"),
    "terabytes of holes": (sparse, "GiB of memory"),
    # shards
    "a shard above": (index({"wte.weight": "../elsewhere.safetensors"}), "is not the name of a safetensors file"),
    "a shard with a root": (index({"wte.weight": "/etc/passwd.safetensors"}), "is not the name of a safetensors file"),
    "a shard in a folder": (index({"wte.weight": "a/b.safetensors"}), "is not the name"),
    "a shard with backslashes": (index({"wte.weight": "..\\b.safetensors"}), "is not the name"),
    "a shard with a NUL": (index({"wte.weight": "a\0.safetensors"}), "is not the name"),
    "a shard of another kind": (index({"wte.weight": "pytorch_model.bin"}), "is not the name"),
    "a shard on the net": (index({"wte.weight": "http://127.0.0.1/a.safetensors"}), "is not the name"),
    "a shard that is a number": (index({"wte.weight": 1}), "is not the name"),
    "a shard that is not there": (index({"wte.weight": "b.safetensors"}), "b.safetensors: is missing"),
    "2,000 shards": (index({f"t{n}": f"a{n}.safetensors" for n in range(2000)}), "2000 weight files"),
    "an index that is a list": (index(["a.safetensors"]), "weight_map"),
    "an empty index": (index({}), "weight_map"),
    "an index that lists less": (index({"wte.weight": "a.safetensors"}), "not in both"),
    "an index that lists more": (
        index({**dict.fromkeys(SHAPES, "a.safetensors"), "more": "a.safetensors"}),
        "not in both",
    ),
    "a tensor in two shards": (
        lambda f: (
            index(dict.fromkeys(SHAPES, "a.safetensors"))(f),
            write(f / "b.safetensors", {"wte.weight": ONE}),
            (f / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {**dict.fromkeys(SHAPES, "a.safetensors"), "wte.weight": "b.safetensors"}})
            ),
        ),
        "not in both",
    ),
    # tokenizer.json
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: is missing"),
    "a tokenizer from elsewhere": (linked("tokenizer.json"), "is a link out of its folder"),
    "a tokenizer of 70 MB": (large("tokenizer.json", 70 << 20), "larger than 64 MiB"),
    "a deep tokenizer": (raw("tokenizer.json", b'{"model":' + DEEP), "invalid JSON"),
    "a crowded tokenizer": (raw("tokenizer.json", b'{"a": [' + b"1," * 3_000_000 + b"1]}"), "too many items"),
    "a tokenizer without a model": (raw("tokenizer.json", b"{}"), "it has no model"),
    "a pattern that takes for ever": (tokens(set_part("pre_tokenizer", SLOW)), "pre_tokenizer Split has pattern"),
    "a pattern that replaces": (
        tokens(set_part("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""})),
        "normalizer",
    ),
    "an unknown splitter": (tokens(set_part("pre_tokenizer", {"type": "Custom"})), "'Custom' is not supported"),
    "sequences in sequences": (
        tokens(
            set_part(
                "pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": []}]}
            )
        ),
        "pre_tokenizer is malformed",
    ),
    "an unknown decoder": (tokens(set_part("decoder", {"type": "CTC"})), "'CTC' is not supported"),
    "an unknown post-processor": (tokens(set_part("post_processor", {"type": "Custom"})), "'Custom' is not supported"),
    "a mark without an id": (
        tokens(
            set_part(
                "post_processor",
                {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<evil>"}}, {"Sequence": {"id": "A"}}],
                },
            )
        ),
        "no id",
    ),
    "an id above the tokens": (tokens(lambda s: s["model"]["vocab"].update({"zz": VOCAB})), "has 301 ids"),
    "an id of a billion": (
        tokens(lambda s: s["model"]["vocab"].update({"zz": 10**9})),
        "an id is not an integer from 0 to",
    ),
    "an id below 0": (tokens(lambda s: s["model"]["vocab"].update({"zz": -1})), "an id is not an integer from 0 to"),
    "an id twice": (tokens(lambda s: s["model"]["vocab"].update({"zz": 5})), "one id"),
    "an id that is a text": (
        tokens(lambda s: s["model"]["vocab"].update({"zz": "5"})),
        "an id is not an integer from 0 to",
    ),
    "a merge of nothing": (tokens(lambda s: s["model"]["merges"].append(["qq", "zz"])), "not in its vocabulary"),
    "a merge of three": (
        tokens(lambda s: s["model"]["merges"].append(["a", "b", "c"])),
        "a merge is not a pair of tokens",
    ),
    "a letter without a token": (tokens(lambda s: s["model"]["vocab"].pop("a")), "a merge is not in its vocabulary"),
    "an added token with two ids": (
        tokens(lambda s: s["added_tokens"].append({"id": 7, "content": "a", "special": True})),
        "two ids",
    ),
    "an added token without a text": (tokens(lambda s: s["added_tokens"].append({"id": 7, "content": ""})), "text"),
    "20,000 added tokens": (
        tokens(lambda s: s["added_tokens"].extend({"id": n, "content": f"<{n}>"} for n in range(20_000))),
        "short list",
    ),
    "a tokenizer of another model": (
        tokens(lambda s: s["model"].update(type="Unigram")),
        "its model, .* is not supported",
    ),
}


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    return train_tokenizer("bpe", lambda: ["\n".join(tales(20))], VOCAB).json


@pytest.fixture
def folder(tmp_path: Path, tokenizer_json: bytes) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    config()(path)
    write(path / "model.safetensors", header())
    (path / "tokenizer.json").write_bytes(tokenizer_json)
    return path


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_hostile_folder_is_refused_in_one_line(name: str, folder: Path, assert_refused: Any) -> None:
    corrupt, message = CORRUPTIONS[name]
    corrupt(folder)
    assert_refused(folder, message)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "fields",
    [
        {"attn_implementation": "evil/kernel"},
        {"_attn_implementation": "evil/kernel"},
        {"_attn_implementation_internal": "evil/kernel"},
        {"num_labels": 5_000_000},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
        {"_name_or_path": "evil/model", "base_model_tp_plan": {"h": "evil"}, "dtype": "evil"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_unvalidated_config_fields_reach_no_other_library(
    fields: dict[str, Any], folder: Path, tmp_path: Path, limited_resources: Any
) -> None:
    pytest.importorskip("transformers")
    config(**fields)(folder)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/model", "peft_type": "LORA"}')
    with limited_resources():
        import_model(folder, tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["not_checked"] == []
    assert certificate["logits"]["passed"]


@pytest.mark.oracle
def test_a_flag_that_changes_the_outputs_reaches_the_reference(folder: Path) -> None:
    pytest.importorskip("transformers")
    config(reorder_and_upcast_attn=True)(folder)
    source = ModelFolder(folder)
    assert transformers_reference.reference_model(find_mapping(source), source).config.reorder_and_upcast_attn


def test_there_are_at_least_80_hostile_folders() -> None:
    assert len(CORRUPTIONS) >= 80


def test_a_valid_folder_is_imported_and_its_chat_template_is_never_executed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", str(tmp_path / "canary"))
    bomb = "{{ cycler.__init__.__globals__.os.mkdir(cycler.__init__.__globals__.os.environ['CANARY']) }}"
    (folder / "chat_template.jinja").write_text(bomb)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": bomb}))
    run = import_model(folder, tmp_path / "run")
    assert len(run.generate("Once", max_new_tokens=3)) >= 0
    assert (tmp_path / "run" / "harken.json").exists()
    assert not (tmp_path / "canary").exists()


def test_shards_and_the_links_of_the_hub_cache_are_read(folder: Path, tmp_path: Path) -> None:
    expected = import_model(folder, tmp_path / "whole")
    index(dict.fromkeys(SHAPES, "a.safetensors"))(folder)
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "hub" / "blobs").mkdir()
    for n, file in enumerate(folder.iterdir()):
        file.rename(tmp_path / "hub" / "blobs" / str(n))
        (snapshot / file.name).symlink_to(f"../../blobs/{n}")
    run = import_model(snapshot, tmp_path / "parts")
    assert run.generate("Once", max_new_tokens=5) == expected.generate("Once", max_new_tokens=5)
