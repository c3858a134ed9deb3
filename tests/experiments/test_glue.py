"""benchmarks/glue.py: the files of all nine tasks of GLUE, and its table from trainings of a tiny model."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from harken.cli import harken as cli

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "glue.py"
# The header and a row of each file that GLUE publishes (CoLA has no header), with an unbalanced quote in a text.
FILES = {
    "CoLA/train.tsv": ("", 'gj04\t1\t\tThe "car honked.'),
    "SST-2/train.tsv": ("sentence\tlabel", 'a "warm film \t1'),
    "MRPC/train.tsv": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t70\t71\tHe said " no .\tHe refused .'),
    "STS-B/train.tsv": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        '0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA "plane.\tAn air plane.\t4.750',
    ),
    "QQP/train.tsv": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", '7\t8\t9\tWhat is "up?\tWhat goes?\t0'),
    "MNLI/train.tsv": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        '0\t3\t3n\tgov\t( a )\t( b )\t(R a)\t(R b)\tIt "rains.\tIt is wet.\tneutral\tentailment',
    ),
    "MNLI/dev_matched.tsv": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
        '0\t6\t6e\tslate\t( a )\t( b )\t(R a)\t(R b)\tIt "rains.\tIt is wet.\tn\tn\tn\tn\tn\tentailment',
    ),
    "QNLI/train.tsv": ("index\tquestion\tsentence\tlabel", '0\tWhen did "it end?\tIt ended.\tnot_entailment'),
    "RTE/train.tsv": ("index\tsentence1\tsentence2\tlabel", '0\tNo "weapons.\tWeapons.\tnot_entailment'),
    "WNLI/train.tsv": ("index\tsentence1\tsentence2\tlabel", '0\tI stuck a "pin.\tA pin.\t1'),
}
EXPECTED = {
    "CoLA/train.tsv": ['The "car honked.', "1"],
    "SST-2/train.tsv": ['a "warm film', "1"],
    "MRPC/train.tsv": ['He said " no .', "He refused .", "1"],
    "STS-B/train.tsv": ['A "plane.', "An air plane.", "4.750"],
    "QQP/train.tsv": ['What is "up?', "What goes?", "0"],
    "MNLI/train.tsv": ['It "rains.', "It is wet.", "entailment"],
    "MNLI/dev_matched.tsv": ['It "rains.', "It is wet.", "entailment"],
    "QNLI/train.tsv": ['When did "it end?', "It ended.", "not_entailment"],
    "RTE/train.tsv": ['No "weapons.', "Weapons.", "not_entailment"],
    "WNLI/train.tsv": ['I stuck a "pin.', "A pin.", "1"],
}
WORDS = ["red", "green", "blue", "loud", "quiet", "warm", "cold", "tall"]


@pytest.fixture(scope="module")
def glue() -> ModuleType:
    spec = importlib.util.spec_from_file_location("glue", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["glue"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", FILES)
def test_the_texts_and_the_label_of_each_task_are_read_without_quoting(glue, name, tmp_path):
    header, row = FILES[name]
    (tmp_path / "file.tsv").write_text(f"{header}\n{row}\n{row}\n" if header else f"{row}\n{row}", "utf-8")
    rows = list(glue.read_rows(tmp_path / "file.tsv", glue.TASKS[name.split("/")[0]]))
    assert [[*each.values()] for each in rows] == [EXPECTED[name]] * 2


def test_an_incomplete_row_is_left_out_and_another_header_is_refused(glue, tmp_path):
    header, row = FILES["QQP/train.tsv"]
    (tmp_path / "file.tsv").write_text(f"{header}\n1\t2\t3\tWhat\n{row}\n")
    assert len(list(glue.read_rows(tmp_path / "file.tsv", glue.TASKS["QQP"]))) == 1
    with pytest.raises(SystemExit, match="no column 'sentence1'"):
        list(glue.read_rows(tmp_path / "file.tsv", glue.TASKS["RTE"]))


def pairs(header: str, labels: tuple[str, ...], count: int, first: int = 0) -> str:
    texts = [" ".join(WORDS[(n * k + k) % 8] for k in range(1, 4)) for n in range(first, first + count)]
    cells = {"label": lambda n: labels[n % len(labels)], "gold_label": lambda n: labels[n % len(labels)]}
    cells |= {"sentence1": lambda n: f"{texts[n]} {n}", "sentence2": lambda n: f"{texts[-n]} {first}"}
    rows = ["\t".join(cells.get(name, str)(n) for name in header.split("\t")) for n in range(count)]
    return "\n".join([header, *rows]) + "\n"


TINY = {"model.d": "16", "model.layers": "1", "model.heads": "2", "train.steps": "2", "data.vocab_size": "80"}


def test_dev_is_evaluated_for_the_chosen_setting_only_and_finished_trainings_are_read(glue, tmp_path, monkeypatch):
    header, commands = FILES["RTE/train.tsv"][0], []
    for name, labels in {"RTE": ("entailment", "not_entailment"), "WNLI": ("0", "1")}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.tsv").write_text(pairs(header, labels, 60))
        (tmp_path / name / "dev.tsv").write_text(pairs(header, labels, 20, first=100))

    def accuracy(words):  # the first token is better, and each seed has its own value
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        return 0.5 + 0.1 * (settings["model.pool"] == "first") + 0.03 * int(settings["train.seed"])

    def run(words, plan, log):
        commands.append(words)
        Path(words[-1]).mkdir()
        splits = {name: {"accuracy": accuracy(words)} for name in ("valid", "test")}
        return {"steps": 2, "seconds": 1.0, "splits": splits, "baseline": {"majority": {"accuracy": 0.5}}}

    monkeypatch.setattr(glue, "harken", run)
    monkeypatch.setitem(glue.METHODS, "scratch", ({"model.pool": "mean"}, {"model.pool": "first"}))
    plan = glue.Plan(None, tmp_path / "out", 2, 1, 1, None, TINY)
    rows = glue.run(["RTE", "WNLI"], ["scratch"], tmp_path, plan)
    assert len(commands) == 2 * (2 + 2)  # the candidates, then the seeds of the chosen one
    with_dev = [words for words in commands if "dev.jsonl" in " ".join(words)]
    assert [accuracy(words) for words in with_dev] == pytest.approx([0.6, 0.63] * 2)
    assert all("data.test=0" in words for words in commands if words not in with_dev)
    assert [row["chosen"]["model.pool"] for row in rows] == ["first", "first"]
    glue.run(["RTE", "WNLI"], ["scratch"], tmp_path, plan)
    assert len(commands) == 8
    table = (tmp_path / "out" / "glue.md").read_text()
    value, half = glue.format_seeds([0.6, 0.63]), glue.format_seeds([0.5])
    assert f"| scratch | {value} | {value} | {value} |\n| majority | {half} | {half} | {half} |" in table
    assert "(dev; github.com/microsoft/unilm, minilm/README.md, of Wang et al. 2020) | 68.8 |" in table


def test_glues_mean_takes_the_average_of_the_metrics_of_a_task_first(glue):
    def result(seed, **metrics):
        return {"seed": seed, "splits": {"test": metrics}, "baseline": {}}

    mrpc = [result(seed, f1=0.8 + seed / 10, accuracy=0.6) for seed in (0, 1)]
    cola = [result(seed, matthews=0.3) for seed in (0, 1)]
    mnli = [result(seed, accuracy=0.5) | {"second": {"accuracy": 0.7}, "second_baseline": {}} for seed in (0, 1)]
    rows = [
        {"task": n, "method": "finetune", "results": r}
        for n, r in zip(("MRPC", "CoLA", "MNLI"), (mrpc, cola, mnli), strict=True)
    ]
    line = next(line for line in glue.table(rows).splitlines() if line.startswith("| finetune"))
    expected = [(0.3 + (0.8 + seed / 10 + 0.6) / 2 + (0.5 + 0.7) / 2) / 3 for seed in (0, 1)]
    assert line.endswith(f"| {glue.format_seeds(expected)} |")
    assert glue.table(rows).startswith(
        "|  | CoLA matthews | MRPC f1 / accuracy | MNLI accuracy / dev_mismatched | mean |"
    )


def test_the_command_of_a_training_is_accepted_and_the_second_file_of_mnli_is_evaluated(glue, tmp_path, monkeypatch):
    (tmp_path / "MNLI").mkdir()
    for name in ("train", *glue.MNLI_DEV):
        header, count = FILES[f"MNLI/{name.replace('mismatched', 'matched')}.tsv"][0], 60 if name == "train" else 12
        text = pairs(header, ("contradiction", "entailment", "neutral"), count, first=len(name))
        (tmp_path / "MNLI" / f"{name}.tsv").write_text(text)

    def in_this_process(arguments, plan, log):
        done = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
        return json.loads(done.stdout)

    monkeypatch.setattr(glue, "harken", in_this_process)
    (row,) = glue.run(["MNLI"], ["scratch"], tmp_path, glue.Plan(None, tmp_path / "out", 1, 1, 1, None, TINY))
    (result,) = row["results"]
    assert glue.by_metric("MNLI", [result]) == {
        "accuracy": [result["splits"]["test"]["accuracy"]], "dev_mismatched": [result["second"]["accuracy"]],
    }  # fmt: skip
    assert result["second_baseline"]["most frequent label"]["accuracy"] == pytest.approx(1 / 3)
    assert json.loads(next((tmp_path / "out" / "MNLI").rglob("*.json")).read_text()) == result
    assert not list((tmp_path / "out").rglob("model.safetensors"))
