"""harken bench: its tables, its JSON rows and its error messages."""

import json

import pytest

QUICK = ["--size", "tiny", "--batch", 1, "--tokens", 2, "--rounds", 1]


@pytest.fixture(autouse=True)
def without_peers(monkeypatch):
    """Without other packages (transformers takes seconds to import), and with a small matrix product."""
    import torch

    from harken.experiments.bench import implementations, peers

    monkeypatch.setattr(peers.Peer, "is_installed", property(lambda peer: not peer.extra))
    monkeypatch.setitem(implementations.MATRIX_SIZE, "cpu", 16)
    monkeypatch.setattr("harken.machine.pick_device", lambda wanted="auto", name="": torch.device("cpu"))


def test_json_of_bench(harken):
    output = harken("bench", *QUICK, "--json")
    assert output.code == 0, output
    actual = json.loads(output.out)
    assert [(row["bench"], row["precision"]) for row in actual["rows"]][-2:] == [
        ("decode", "float32"),
        ("decode", "int8"),
    ]
    wanted = {
        "name",
        "tokens_per_second",
        "spread",
        "ratio",
        "peer",
        "utilization",
        "ceiling",
        "ceiling_unit",
        "memory_mib",
    }
    assert all(wanted <= row.keys() for row in actual["rows"])
    assert {"torch", "cpu", "threads"} <= actual["machine"].keys()
    assert output.err.startswith("not installed, so not measured: transformers (pip install")


def test_each_bench_prints_a_table_of_its_known_columns(harken):
    output = harken("bench", *QUICK)
    assert output.code == 0, output
    lines = output.out.splitlines()
    train, decode = (lines.index(line) for line in lines if line.startswith(("train: ", "decode: ")))
    assert lines[train] == "train: GPT-2 tiny, 50,257 tokens, batch 1, context 64, rounds 1"
    assert " ".join(lines[train + 1].split()) == "precision optimizer tokens/s min - max ratio of the limit"
    assert [line.split("  ")[0] for line in lines[train + 2 : train + 5]] == ["harken", "harken", "plain PyTorch"]
    assert " of plain PyTorch, " in lines[train + 2]
    assert "% of " in lines[train + 2]
    assert lines[train + 2].endswith("FLOP/s")
    assert lines[decode + 1].split()[-5:] == ["limit", "equal", "tokens", "logit", "difference"]
    assert [line.split()[:2] for line in lines[decode + 2 :]] == [["harken", "float32"], ["harken", "int8"]]
    assert " GB/s" in lines[-1]
    assert not any(word in line for line in lines[decode:] for word in ("ratio", "memory"))


def test_a_quick_bench_has_few_rounds_and_a_table_for_each_batch_size(harken):
    output = harken("bench", "decode", "--quick", "--size", "char", "--tokens", 2)
    assert [line for line in output.out.splitlines() if line.startswith("decode: ")] == [
        f"decode: GPT-2 char, 65 tokens, batch {batch}, context 128, rounds 3" for batch in (1, 8)
    ]


def test_a_single_bench_runs_in_a_single_precision(harken):
    output = harken("bench", "decode", *QUICK, "--precision", "bfloat16", "--plain", "--json")
    (row,) = json.loads(output.out)["rows"]
    assert (row["bench"], row["precision"], row["compiled"]) == ("decode", "bfloat16", False)
    assert row["logit_difference"] > 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("train", "--precision", "int8"),
            "bench: --precision int8 cannot train; use float32 or bfloat16, or harken bench decode",
        ),
        (("writing",), "bench: invalid value for '[train|decode]': 'writing' is not one of 'train', 'decode'"),
        (
            ("decode", "--context", 20),
            "context=20: a prompt of 32 and 64 tokens need 96; use a longer context or fewer tokens",
        ),
        (("--size", "huge"), "bench: model.size = 'huge': "),
        (("--rounds", 0), "bench: invalid value for '--rounds': 0 is not in the range x>=1"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(harken, args, message):
    output = harken("bench", *args)
    assert (output.code, output.out) == (2, "")
    assert output.err.splitlines()[-1].startswith(f"harken: {message}")
    assert output.err.count("\n") <= 2  # the first is the notice about transformers
