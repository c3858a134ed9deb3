"""docs/lectures.md: every row has a command, a value and a test, they exist, and every demonstration holds."""

import math
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "scripts"))

import lectures  # noqa: E402
import paragraphs  # noqa: E402
import shows  # noqa: E402

PAGE = (HOME / "docs" / "lectures.md").read_text("utf-8")
ROWS = lectures.read(PAGE)
FAST = [name for name, show in shows.every().items() if not show.slow]
SLOW = [name for name, show in shows.every().items() if show.slow]
# demonstrations that train for more than a few seconds; `make lectures` runs them too
LONG = {
    "compressed", "matching", "unseen-lengths", "language-models", "dropout-of-the-lab", "norm-converges",
    "lab01-epoch", "right-frequency", "karate-club", "node-clusters", "cat-sleeps", "graph-similarity",
    "typed-edges-help", "user-and-product", "drives-the-car", "large-airplane", "loss-landscape",
    "ill-conditioned", "local-minima-of-a-network",
}  # fmt: skip
MEASURED = {row.command.removeprefix(lectures.SHOW): row.measured for row in ROWS}
HEAD = "| statement | lecture | command | measured value | test |\n|---|---|---|---|---|\n"
LECTURE = "CS5242, lecture 7"
MEMORY = f"`{lectures.SHOW}memory`"
TEST = "`tests/docs/test_lectures.py::test_the_page_has_no_errors`"


@cache
def measure(name: str) -> shows.Measurement:
    return shows.every()[name]()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def row_errors(*cells: str) -> list[str]:
    """The errors of a page with this one row."""
    page = HEAD + "| " + " | ".join(cells) + " |\n"
    return [line for line in lectures.problems(page) if line.startswith("docs/lectures.md:3")]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_no_errors() -> None:
    assert list(lectures.problems(PAGE)) == []


@pytest.mark.parametrize("title", lectures.TITLES)
def test_each_lecture_has_its_rows(title: str) -> None:
    assert sum(title in row.lecture for row in ROWS) >= 5


@pytest.mark.parametrize(
    "printed", ["{1, -inf}", "floor(2i)", "halves", "sqrt(d_k)", "cross-attention", "not required", "less parameters"]
)
def test_every_misprint_has_a_correction_with_a_test(printed: str) -> None:
    corrected = [row for row in ROWS if row.correction and printed in row.statement]
    assert corrected
    assert all(row.tests for row in corrected)


def test_a_valid_row_has_no_errors() -> None:
    assert row_errors("Rain is wet", LECTURE, MEMORY, "7 drops", TEST) == []
    assert row_errors("Rain is wet", LECTURE, "`harken eval runs/rain`", "7 drops", TEST) == []


def test_a_row_without_command_or_test_fails() -> None:
    assert row_errors("Pigs fly", LECTURE, "", "1 pig", TEST) == [
        "docs/lectures.md:3: the row has no command: Pigs fly"
    ]
    assert row_errors("Pigs fly", LECTURE, MEMORY, "1 pig", "") == ["docs/lectures.md:3: the row has no test: Pigs fly"]


def test_a_script_is_a_long_command_that_exists() -> None:
    script = "`python benchmarks/lectures.py DATA`"
    long_head = HEAD.replace("command", "long command", 1)
    page = f"{long_head}| Rain is wet | {LECTURE} | {script} | 7 drops | {TEST} |\n"
    assert [line for line in lectures.problems(page) if ":3:" in line] == []
    (error,) = (line for line in lectures.problems(page.replace("lectures.py D", "pigs.py D")) if ":3:" in line)
    assert error == "docs/lectures.md:3: no such script: benchmarks/pigs.py"
    assert "neither a demonstration nor a harken command" in row_errors("Rain", LECTURE, script, "7", TEST)[0]


def test_a_row_with_a_cell_too_many_fails() -> None:
    (error,) = row_errors("Pigs fly", LECTURE, MEMORY, "1 pig", TEST, "or two")
    assert error == "docs/lectures.md:3: more or fewer cells than columns: Pigs fly"


def test_a_statement_that_occurs_twice_fails() -> None:
    row = f"| Rain is wet | {LECTURE} | {MEMORY} | 7 drops | {TEST} |\n"
    errors = [line for line in lectures.problems(HEAD + row + row) if line.startswith("docs/lectures.md:")]
    assert errors[0] == "docs/lectures.md:4: the statement of line 3"


@pytest.mark.parametrize(
    "test",
    ["tests/docs/test_lectures.py::test_pigs_fly", "tests/docs/test_pigs.py::test_they_fly", "tests/docs::test_pigs"],
)
def test_a_test_that_does_not_exist_fails(test: str) -> None:
    assert row_errors("Pigs fly", LECTURE, MEMORY, "1 pig", f"`{test}`") == [
        f"docs/lectures.md:3: no such test: {test}"
    ]


def test_a_demonstration_that_does_not_exist_fails() -> None:
    assert row_errors("Pigs fly", LECTURE, f"`{lectures.SHOW}pigs`", "1 pig", TEST) == [
        "docs/lectures.md:3: no such demonstration: pigs"
    ]


def test_a_command_of_another_kind_fails() -> None:
    (error,) = row_errors("Pigs fly", LECTURE, "`rm -r pigs`", "1 pig", TEST)
    assert "neither a demonstration nor a harken command" in error


def test_a_command_without_its_number_fails() -> None:
    assert row_errors("Pigs fly", LECTURE, MEMORY, "", TEST) == [
        "docs/lectures.md:3: the measured value is missing: Pigs fly"
    ]


def test_a_lecture_of_another_title_fails() -> None:
    assert row_errors("Pigs fly", f"{LECTURE}; A lecture on pigs", MEMORY, "1 pig", TEST) == [
        "docs/lectures.md:3: 'A lecture on pigs' is not the title of a lecture"
    ]


def test_a_demonstration_without_a_row_fails() -> None:
    page = "\n".join(line for line in PAGE.splitlines() if f"`{lectures.SHOW}memory`" not in line)
    assert list(lectures.problems(page)) == [
        "docs/lectures.md: no row has the demonstration 'memory'",
        "scripts/lecture_phrases.toml: no row has the command 'memory'",
    ]


# --- paragraphs of a lecture ------------------------------------------------------------------------------------------

SLIDES = """# Ships

## Outline
- Boats
# Boats

- A hull displaces
its own weight
- Of water :
  - fresh

$$F = \\rho V g$$

bow

mast

keel and rudder

Ada Lovelace
ada@example.org

Model\tTons
Cog\t100
Notes: <a href="https://example.org/ships">https://example.org/ships</a>

In [3]: import ships
"""
KINDS = [
    ("# Ships", "heading"), ("## Outline", "heading"), ("- Boats", "outline"), ("# Boats", "heading"),
    ("- A hull displaces\nits own weight", ""), ("- Of water :", "lead"), ("  - fresh", ""), ("$$F = \\rho V g$$", ""),
    ("bow mast keel and rudder", ""), ("Ada Lovelace\nada@example.org", "link"), ("Model\tTons", ""), ("Cog\t100", ""),
    ('Notes: <a href="https://example.org/ships">https://example.org/ships</a>', "link"),
    ("In [3]: import ships", "notebook"),
]  # fmt: skip


def test_the_paragraphs_of_a_lecture_and_their_kinds() -> None:
    assert [(p.text, p.kind) for p in paragraphs.read(SLIDES)] == KINDS


@pytest.mark.parametrize(
    ("phrase", "covered"),
    [
        ("hull displaces its", True),  # across the line
        ("displaces hull", False),
        ("displaces", False),  # one word is not the paragraph
        ("fresh", True),
        ("f v g", True),  # the name of a LaTeX command is no word
        ("mast keel", True),  # neighbouring pieces of a figure
        ("ton", False),  # part of a word
    ],
)
def test_a_key_phrase_covers_a_paragraph_word_by_word(phrase: str, covered: bool) -> None:
    phrases = paragraphs.Phrases({"row": [phrase]}, {})
    assert any(phrases.references(p) for p in paragraphs.read(SLIDES)) is covered


def test_missing_lists_the_paragraphs_without_row_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ships.txt").write_text(SLIDES, "utf-8")
    rows = {"hull": ["its own weight", "f v g"]}
    monkeypatch.setattr(
        paragraphs, "load", lambda: paragraphs.Phrases(rows, {"history": ["keel and rudder", "model tons"]})
    )
    assert lectures.main(["--missing", str(tmp_path)]) == 1
    assert capsys.readouterr().out == "ships.txt:10: missing: - fresh\nships.txt:24: missing: Cog 100\n"
    assert lectures.main(["--paragraphs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(KINDS)
    assert "ships.txt:14: (history): bow mast keel and rudder" in lines
    rows["hull"] += ["fresh", "cog 100"]
    assert lectures.main(["--missing", str(tmp_path / "ships.txt")]) == 0


def test_a_folder_without_texts_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        lectures.main(["--missing", str(tmp_path)])
    assert "neither a text file nor a folder with .txt files" in capsys.readouterr().err


def test_key_phrases_are_short_and_belong_to_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    phrases = paragraphs.Phrases({"memory": ["a b c d e f g"], "pigs": ["they fly"]}, {"farms": ["a farm"]})
    monkeypatch.setattr(paragraphs, "load", lambda: phrases)
    errors = [line for line in lectures.problems(PAGE) if "has no phrase" not in line]
    where = "scripts/lecture_phrases.toml:"
    assert errors == [
        f"{where} no row has the command 'pigs'",
        f"{where} the page has no reason 'farms'",
        f"{where} 'a b c d e f g' has no word or more than 6",
    ]


# --- the demonstrations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAST)
def test_the_demonstration_holds(name: str) -> None:
    assert measure(name).holds
    assert math.isfinite(measure(name).value)


@pytest.mark.parametrize("name", FAST)
def test_the_value_on_the_page_is_the_measured_value(name: str) -> None:
    assert lectures.agree(MEASURED[name], str(measure(name)))


@pytest.mark.parametrize("name", FAST)
def test_the_description_on_the_page_is_the_printed_description(name: str) -> None:
    assert lectures.NUMBER.sub("#", MEASURED[name]) == lectures.NUMBER.sub("#", str(measure(name)))


@pytest.mark.process
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in SLOW])
def test_the_trained_demonstration_holds(name: str) -> None:
    command = [sys.executable, "scripts/lectures.py", "show", name]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert math.isfinite(lectures.first_number(done.stdout))
    assert len(done.stdout.splitlines()) == 1


def test_a_demonstration_is_repeatable_and_keeps_the_random_state() -> None:
    before = torch.get_rng_state()
    assert shows.every()["smoothing"]() == shows.every()["smoothing"]()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_different_number_does_not_agree() -> None:
    assert lectures.agree("1,557,686,400 weights", "1557686400 weights")
    assert lectures.agree("2.38e-07 largest difference", "0 largest difference")
    assert not lectures.agree("192 pounds", "210 pounds")
    assert not lectures.agree("", "192 pounds")


# --- the whole run ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "lectures.md"
    page.write_text(f"{HEAD}| <b>Rain</b> \\| wet | {LECTURE} | {MEMORY} | 7 drops | {TEST} |\n", "utf-8")
    monkeypatch.setattr(lectures, "PAGE", page)
    monkeypatch.setattr(shows, "SHOWS", {"memory": shows.every()["memory"]})
    monkeypatch.setattr(shows, "FILES", ())
    monkeypatch.setattr(paragraphs, "load", lambda: paragraphs.Phrases({}, {}))
    return page


def test_the_run_writes_an_escaped_offline_page(
    small_page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lectures.html"
    assert lectures.main(["--out", str(out)]) == 0
    assert "s, on the page 7)" in capsys.readouterr().out
    page = out.read_text("utf-8")
    assert "1 statements: 1 hold, 0 fail, 0 were not run." in page
    assert "&lt;b&gt;Rain&lt;/b&gt; | wet" in page
    assert "7 drops" in page
    assert "<code>attend</code>" in page
    assert not any(word in page for word in ("<b>", "<script", "http:", "https:", "src="))


def test_writing_changes_the_measured_value_only(small_page: Path, tmp_path: Path) -> None:
    before = small_page.read_text("utf-8")
    assert lectures.main(["--write", "--out", str(tmp_path / "lectures.html")]) == 0
    assert small_page.read_text("utf-8") == before.replace("7 drops", str(measure("memory")))


def test_a_statement_that_no_longer_holds_fails_the_run(
    small_page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = shows.Show("memory", lambda: shows.Measurement(3.0, "drops", False), slow=False, timed=False)
    monkeypatch.setitem(shows.SHOWS, "memory", broken)
    assert lectures.main(["--out", str(tmp_path / "lectures.html")]) == 1
    assert "FAILS  memory" in capsys.readouterr().out


def test_markdown_of_a_row_is_html_with_links_relative_to_the_docs() -> None:
    assert lectures.to_html("*kept* in `a*b`, a * b, <i> ([plot](pictures/x.svg))", "../docs") == (
        '<em>kept</em> in <code>a*b</code>, a * b, &lt;i&gt; (<a href="../docs/pictures/x.svg">plot</a>)'
    )


def test_the_page_has_a_section_for_each_heading_with_rows() -> None:
    rows = [row for row in ROWS if row.section in ("Positions", "Corrections")]
    page = lectures.html_page(rows, [None] * len(rows))
    assert [part.partition("</h2>")[0] for part in page.split("<h2>")[1:]] == ["Positions", "Corrections"]
    assert page.count("<tr><td>") == len(rows) > 10


def test_a_demonstration_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert lectures.main(["show", "carbon"]) == 0
    assert capsys.readouterr().out == "192 pounds of CO2e from 201 kWh; printed 192 and 201\n"


def test_the_list_describes_each_demonstration(capsys: pytest.CaptureFixture[str]) -> None:
    assert lectures.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shows.every())
    assert all(len(line.split()) > 5 for line in lines)


def test_an_unknown_demonstration_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        lectures.main(["show", "pigs"])
    assert "no such demonstration: pigs" in capsys.readouterr().err
