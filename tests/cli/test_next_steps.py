"""Every next step that is printed works when it is typed: after each demo, each training, and in each report."""

import html
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harken.data import catalogue
from harken.data.download.sources import GeneratedSource
from harken.errors import HarkenError
from harken.experiments import train as training
from harken.experiments.demos import lectures, pictures, reviews, translate, vocabulary

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import matrix

QUICK = ["karate", "stories"]
DEMOS = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ("translate", "text", "digits", "clouds"))]
DEMOS += [pytest.param(name, marks=pytest.mark.slow) for name in ("gcd", "scenes", "reviews", "sql", "vocabulary")]
SHORT = {"train.steps": 2, "train.threads": 1}
COUNTS = {"tales": 60, "phrases": 400, "opinions": 300, "opinions-text": 300, "clouds": 120, "vocabulary-text": 200}
QUICK_FAMILIES = ("table-bert", "graph-gcn")
FAMILIES = [
    pytest.param(family, id=name, marks=() if name in QUICK_FAMILIES else pytest.mark.slow)
    for family in matrix.families()
    if (name := str(family).replace(" | ", "-"))
]


@pytest.fixture
def short(monkeypatch):
    """Demos without network access, with little data and two steps per training."""
    fetch = catalogue.fetch

    def offline(name, **how):
        if not isinstance(catalogue.ENTRIES[name].sources[0], GeneratedSource):
            raise HarkenError(f"data {name}: could not be fetched")
        return fetch(name, **how)

    def train(what, *, settings=None, minutes, **options):
        return training.train(what, settings={**(settings or {}), **SHORT}, **options)

    monkeypatch.setattr(catalogue, "fetch", offline)
    for name, count in COUNTS.items():
        monkeypatch.setitem(catalogue.ENTRIES[name].arguments, "count", count)
    for module in (lectures, pictures, reviews, translate):
        monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr("harken.data.synthetic.sql.SPLIT_SIZES", {"train": 200, "valid": 22, "test": 22})
    sizes = dict.fromkeys(("train", "valid", "test", "new-words"), 100)
    monkeypatch.setattr("harken.data.synthetic.vocabulary.SPLIT_SIZES", sizes)
    for name, value in {"TOKENS": 100, "STEPS": 2, "N_SEEDS": 1}.items():
        monkeypatch.setattr(vocabulary, name, value)
    monkeypatch.setattr(lectures, "N_QUESTIONS", 60)
    monkeypatch.setattr("harken.data.synthetic.stories.QUESTIONS_PER_FILE", 60)


@pytest.fixture
def own_data(tmp_path):
    """The data of a user, under the names in the printed commands."""
    (tmp_path / "my.txt").write_text("Joe went to the kitchen.\nJoe took the milk.\n" * 200)
    (tmp_path / "my.tsv").write_text("".join(f"the cat {n}\tle chat {n}\n" for n in range(80)))
    rows = "".join(f"a {('cold', 'warm')[n % 2]} day {n},{('bad', 'good')[n % 2]}\n" for n in range(80))
    (tmp_path / "my.csv").write_text(f"text,label\n{rows}")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    for n, image in enumerate(pixels):
        path = tmp_path / "my-pictures" / ("cat", "dog")[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    Image.fromarray(pixels[0]).save(tmp_path / "my.png")
    clouds = "".join(f"c{n // 4},{n % 7},{n % 5},{('low', 'high')[n // 4 % 2]}\n" for n in range(320))
    (tmp_path / "my-points.csv").write_text(f"cloud,x,y,label\n{clouds}")
    folder = tmp_path / "my-folder"
    folder.mkdir()
    (folder / "nodes.csv").write_text("node,label\n" + "".join(f"{n},{('a', 'b')[n % 2]}\n" for n in range(40)))
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"{n},{(n + 2) % 40}\n" for n in range(40)))
    return tmp_path


def next_steps(text: str) -> list[str]:
    """The commands after "next", without their purpose."""
    lines = re.split(r"^  next {4}", text, flags=re.MULTILINE)[1].splitlines()
    hints = [line.strip() for n, line in enumerate(lines) if not n or line.startswith(" " * 10 + "harken ")]
    return [re.split(r" {3,}", line)[0] for line in hints]


def type_command(harken, command: str) -> None:
    """Type this command; trainings have two steps."""
    _, verb, *arguments = shlex.split(command)
    short = [f"{path}={value}" for path, value in SHORT.items()] if verb in ("train", "compare") else []
    output = harken(verb, *arguments, *short, *(["--seeds", 1] if verb == "compare" else []))
    assert output.code == 0, f"{command}\n{output.out}\n{output.err}"
    assert "failed" not in output.out, f"{command}\n{output.out}"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", DEMOS)
def test_every_next_step_of_a_demo_works_when_typed(harken, own_data, name):
    output = harken("demo", name)
    assert output.code == 0, output
    commands = next_steps(output.out)
    assert len(commands) >= 3
    if name == "scenes":
        (own_data / "my-folder" / "captions.tsv").write_text(
            "image\tcaption\n"
            + "".join(f"../my-pictures/{('cat', 'dog')[n % 2]}/{n}.png\ta thing {n % 3}\n" for n in range(40))
        )
        for table in ("nodes.csv", "edges.csv"):
            (own_data / "my-folder" / table).unlink()
    for command in commands:
        if name in QUICK and "compare" in command:  # test-slow types it
            continue
        type_command(harken, command)


@pytest.mark.slow
@pytest.mark.usefixtures("short", "own_data")
def test_the_comparison_that_the_stories_demo_suggests_works(harken):
    type_command(harken, next(c for c in next_steps(harken("demo", "stories").out) if "compare" in c))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_steps_after_a_training_and_in_its_report_work_when_typed(harken, own_data, family):
    what = family.write(own_data)
    if family.data == "sets":  # the report names a table with the same columns
        (own_data / "my.csv").write_bytes(Path(what).read_bytes())
    settings = [f"{path}={str(value).lower()}" for path, value in family.settings().items()]
    output = harken("train", what, "--out", "run", *settings)
    assert output.code == 0, output
    page = re.sub(r"<[^>]*>", "\n", (own_data / "run" / "report.html").read_text())
    commands = [line.strip() for line in html.unescape(page).splitlines() if line.strip().startswith("harken ")]
    assert len(commands) >= 3  # one repeats the run, one evaluates it
    for command in dict.fromkeys([*next_steps(output.out), *commands]):
        type_command(harken, command)


def test_the_next_step_after_a_cross_validation_works_when_typed(harken, own_data):
    [family] = (family for family in matrix.families() if (family.data, family.model) == ("spans", "bert"))
    settings = {**family.settings(), "train.steps": 2, "report.samples": 0}
    named = [f"{path}={str(value).lower()}" for path, value in settings.items()]
    output = harken("train", family.write(own_data), "--folds", 2, "--out", "folds", *named)
    assert output.code == 0, output
    [command] = next_steps(output.out)
    assert command.startswith("harken ask folds/final my.txt ")
    type_command(harken, command)


def test_the_command_after_a_data_set_of_the_catalogue_works_when_typed(harken, monkeypatch):
    monkeypatch.setitem(catalogue.ENTRIES["phrases"].arguments, "count", 200)
    *_, last = harken("data", "phrases").out.splitlines()
    assert last.strip().startswith("next")
    type_command(harken, last[last.index("harken") :])
