"""Every harken command and every Python block of README.md and docs/guide.md runs, in order, in one folder.

Commands are in ```bash blocks and in the tables "you have, you type". Trainings are shortened to two steps of a tiny
model. Commands that need the package registry (`demo`, downloaded data sets) are only parsed.
"""

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from harken.cli import COMMANDS
from harken.cli import harken as program
from harken.cli.demo import DEFAULT, DEMOS

HOME = Path(__file__).resolve().parents[2]
PAGES = {name: (HOME / name).read_text("utf-8") for name in ("docs/guide.md", "README.md")}
ARCHITECTURE = (HOME / "ARCHITECTURE.md").read_text("utf-8")
SHORT = ["train.steps=2", "model.size=tiny", "train.batch=2"]


def blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)


def commands(page: str) -> list[str]:
    """Every line of a bash block, without its comment; then every command in a table."""
    lines = [line.partition("  #")[0].strip() for block in blocks("bash", page) for line in block.splitlines()]
    rows = re.findall(r"^\|.*\|$", page, re.M)
    return lines + [c.replace("\\|", "|") for row in rows for c in re.findall(r"`([^`]*\bharken [^`]*)`", row)]


def parse(line: str) -> tuple[list[str], str]:
    """The arguments of `harken`, and the file that is piped in."""
    piped, _, line = line.rpartition("| ")
    return shlex.split(line)[1:], piped.removeprefix("cat ").strip()


PAGE_COMMANDS = list(dict.fromkeys(line for page in PAGES.values() for line in commands(page)))  # each once, in order
HARKEN = [line for line in PAGE_COMMANDS if re.match(r"(cat \S+ \| )?harken ", line)]
PYTHON = [code for page in PAGES.values() for code in blocks("python", page)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the two pages mention."""
    from harken.data.synthetic.stories import stories
    from harken.data.synthetic.tales import tales

    home = tmp_path_factory.mktemp("readme")
    names = ("my.txt", "other.txt", "a.txt", "b.txt", "letters/1.txt", "letters/2.txt")
    for name in (*names, "parted/train.txt", "parted/valid.txt", "parted/test.txt"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("\n\n".join(tales(20 if name == "my.txt" else 10)) + "\n")
    from harken.data.images.files import encode_png
    from harken.data.synthetic.phrases import phrases

    pairs = list(phrases(60))
    (home / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    labelled = (f"A {('cold', 'warm')[n % 2]} day {n}.,{('bad', 'good')[n % 2]}\n" for n in range(60))
    (home / "reviews.csv").write_text("text,label\n" + "".join(labelled))
    (home / "new.csv").write_text("text,source\n" + "A cold day.,web\n" * 3)
    tagged = (f"Ada{n} B-PER\nlives O\nin O\nRome B-LOC\n" for n in range(40))
    (home / "eng.train").write_text("\n".join(tagged))
    requests = {"id": "0", "question": "Who lives in Rome?", "answers": [{"text": "Ada", "answer_start": 0}]}
    read = [{"context": f"Ada lives in Rome, house {n}.", "qas": [{**requests, "id": str(n)}]} for n in range(30)]
    (home / "squad.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "Ada", "paragraphs": read}]}))
    (home / "qa1_train.txt").write_text("".join(stories(1, 60)))
    (home / "joe.txt").write_text("Joe went to the kitchen.\nJoe ran to the garden.\n")
    for n, x in enumerate(np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)):
        (home / "flowers" / ("rose", "tulip")[n % 2]).mkdir(parents=True, exist_ok=True)
        (home / "flowers" / ("rose", "tulip")[n % 2] / f"{n}.png").write_bytes(encode_png(x))
    (home / "rose.png").write_bytes(encode_png(x))
    (home / "shots").mkdir()
    for n, place in enumerate(sorted((home / "flowers").rglob("*.png"))):
        (home / "shots" / f"{n}.png").write_bytes(place.read_bytes())
    shots = "".join(f"{n}.png\ta picture of the number {n % 3}\n" for n in range(40))
    (home / "shots" / "captions.tsv").write_text("image\tcaption\n" + shots)
    (home / "friends").mkdir()
    members = ["Ada", "Bob", *(f"m{n}" for n in range(30))]
    sides = "".join(f"{name},{n % 5},{('north', 'south')[n % 2]}\n" for n, name in enumerate(members))
    (home / "friends" / "nodes.csv").write_text("name,age,club\n" + sides)
    known = "".join(f"{name},{members[(n + 2) % 32]}\n" for n, name in enumerate(members))
    (home / "friends" / "edges.csv").write_text("source,target\n" + known)
    (home / "molecules").mkdir()
    atoms = "".join(f"m{n}-{k},m{n}\n" for n in range(30) for k in range(2))
    (home / "molecules" / "nodes.csv").write_text("node,graph\n" + atoms)
    bonds = "".join(f"m{n}-0,m{n}-1\n" for n in range(30))
    (home / "molecules" / "edges.csv").write_text("source,target\n" + bonds)
    likeness = "".join(f"m{n},m{(n + k) % 30},{n * k % 7 / 7:.3f}\n" for n in range(30) for k in (1, 2))
    (home / "molecules" / "pairs.csv").write_text("graph_a,graph_b,score\n" + likeness)
    houses = "".join(f"{n % 7},{n % 5},{n % 7 + 2 * (n % 5)}\n" for n in range(60))
    (home / "houses.csv").write_text("rooms,age,price\n" + houses)
    points = "".join(f"c{n},{n % 2 + k},{n * k},{('a', 'b')[n % 2]}\n" for n in range(40) for k in range(3))
    (home / "points.csv").write_text("cloud,x,y,kind\n" + points)
    (home / "other.csv").write_text("cloud,x,y\nc1,0,1\nc1,2,1\n")
    (home / "english.txt").write_text("".join(f"{source}\n" for source, _ in pairs[:3]))
    (home / "recipe.toml").write_text('[data]\npath = "my.txt"\n[model]\nsize = "tiny"\n[train]\nsteps = 2\n')
    return home


@pytest.fixture
def at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that folder, with its cache, and with less of everything that takes time."""
    from harken.data import catalogue
    from harken.experiments import estimate

    monkeypatch.chdir(folder)
    monkeypatch.setenv("HARKEN_CACHE", str(folder / "cache"))
    monkeypatch.setitem(catalogue.ENTRIES["tales"].arguments, "count", 10)
    monkeypatch.setattr(estimate, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)


def needs_the_registry(words: list[str]) -> bool:
    from harken.data.catalogue import ENTRIES

    names = [word.removeprefix("runs/") for word in words]
    return words[0] == "demo" or any(name in ENTRIES and ENTRIES[name].bytes for name in names)


def invoke(line: str) -> Result:
    words, piped = parse(line)
    if "--minutes" in words:
        words[words.index("--minutes") + 1] = "0.001"
    if words[0] in ("train", "check", "compare") and "--resume" not in words:
        words += SHORT["--minutes" in words :]  # a budget in minutes stands for itself
    if words[0] == "generate" and not {"--tokens", "--next"} & set(words):
        words += ["--tokens", "5"]
    if words[0] == "bench":
        words += ["--size", "tiny", "--rounds", "1"]
    return CliRunner().invoke(program, words, input=Path(piped).read_bytes() if piped else None)


def test_there_are_commands_to_try() -> None:
    verbs = {parse(line)[0][0] for line in HARKEN}
    assert verbs == set(COMMANDS) - {"demo"}  # `make demo` is the one way to it


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("line", HARKEN)
def test_the_command_works(line: str) -> None:
    words, _ = parse(line)
    if needs_the_registry(words):
        top = program.make_context("harken", words.copy(), resilient_parsing=True)
        command = program.get_command(top, words[0])
        assert command is not None
        assert command.make_context(words[0], words[1:], parent=top).params
        return
    done = invoke(line)
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception}"
    assert done.output


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_the_python_block_works(number: int) -> None:
    short = "settings={'train.steps': 2, 'model.size': 'tiny', 'train.batch': 2}"
    code = re.sub(r"\bminutes=\d+", short, PYTHON[number])
    names: dict[str, object] = {}
    exec(compile(code, f"Python block {number + 1}", "exec"), names)
    if "A" in names:
        A = names["A"]
        assert A.shape[0] == A.shape[1]  # type: ignore[attr-defined]
        assert (A.sum(-1) - 1).abs().max() < 1e-5  # type: ignore[attr-defined]


def test_the_run_folder_holds_the_files_the_page_names(folder: Path) -> None:
    if not (folder / "runs" / "my").is_dir():
        pytest.skip("the commands before were not run")
    (listed,) = [block for block in blocks("text", PAGES["docs/guide.md"]) if block.startswith("recipe.toml")]
    names = {line.split()[0].rstrip("/") for line in listed.splitlines()}
    assert names == {path.name for path in (folder / "runs" / "my").iterdir() if not path.name.startswith(".")}


def test_the_tree_names_only_what_is_there() -> None:
    (tree,) = [block for block in blocks("text", ARCHITECTURE) if block.startswith("README.md")]
    names, inside = [], ""
    for line in tree.splitlines():
        first, *more = (word for word in re.split(r" {2,}|;", line.strip())[0].split())
        inside = inside if line.startswith(" ") else ""
        names += [inside + name for name in (first, *more)]
        inside = first if not line.startswith(" ") and first.endswith("/") else inside
    assert [name for name in names if not (HOME / name).exists()] == []


@pytest.mark.parametrize("folder", ["benchmarks", "scripts"])
def test_the_tree_names_every_script(folder: str) -> None:
    (line,) = re.findall(rf"^{folder}/ .*", ARCHITECTURE, re.M)
    assert set(re.findall(r"\w+\.py", line)) == {path.name for path in (HOME / folder).glob("*.py")}


def test_every_make_target_is_there() -> None:
    targets = set(re.findall(r"`make ([a-z-]+)`", PAGES["README.md"]))
    targets |= {line.removeprefix("make ") for line in PAGE_COMMANDS if line.startswith("make ")}
    assert {"demo", "test"} <= targets <= set(re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(), re.M))


def test_every_extra_is_one_of_the_package() -> None:
    extras = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {name for names in re.findall(r"\[([a-z0-9,]+)\]\"", "".join(PAGES.values())) for name in names.split(",")}
    assert named <= set(extras)


@pytest.mark.parametrize(
    "page", [*(p.name for p in HOME.glob("*.md")), *(f"docs/{p.name}" for p in (HOME / "docs").glob("*.md"))]
)
def test_every_linked_file_exists(page: str) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", (HOME / page).read_text("utf-8"))
    assert [link for link in links if not ((HOME / page).parent / link).exists()] == []


def test_the_readme_names_every_demo():
    (sentence,) = re.findall(r"`harken demo NAME` runs other demos: ([^.]*)\.", PAGES["README.md"])
    assert {*re.findall(r"`([a-z]+)`", sentence), DEFAULT} == set(DEMOS)


def test_the_readme_fits_its_limits() -> None:
    rows = [row for row in re.findall(r"^\|.*\|$", PAGES["README.md"], re.M) if "harken " in row]
    assert len(rows) <= 12
    assert len(PAGES["README.md"].splitlines()) <= 90
