"""docs/lectures.md keeps its word: every row has its command or test, they exist, and what they show holds."""

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
import shows  # noqa: E402

PAGE = (HOME / "docs" / "lectures.md").read_text("utf-8")
ROWS = lectures.read(PAGE)
FAST = [name for name, show in shows.every().items() if not show.slow]
SLOW = [name for name, show in shows.every().items() if show.slow]
# those that train for more than a few seconds; `make lectures` runs them with all others
LONG = {
    "compressed", "matching", "unseen-lengths", "language-models", "dropout-of-the-lab", "norm-converges",
    "lab01-epoch", "right-frequency", "karate-club",
}  # fmt: skip
SEEN = {row.command.removeprefix(lectures.SHOW): row.seen for row in ROWS}
HEAD = "| statement | lecture | command | number seen | test |\n|---|---|---|---|---|\n"
LECTURE = "CS5242, lecture 7"
MEMORY = f"`{lectures.SHOW}memory`"
TEST = "`tests/docs/test_lectures.py::test_the_page_is_in_order`"


@cache
def seen(name: str) -> shows.Seen:
    return shows.every()[name]()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def complaints(*cells: str) -> list[str]:
    """What the checker says of a page with this one row."""
    page = HEAD + "| " + " | ".join(cells) + " |\n"
    return [line for line in lectures.problems(lectures.read(page)) if "no row names" not in line]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_in_order() -> None:
    assert list(lectures.problems(ROWS)) == []


@pytest.mark.parametrize("title", lectures.TITLES)
def test_each_lecture_has_its_rows(title: str) -> None:
    assert sum(title in row.lecture for row in ROWS) >= 5


@pytest.mark.parametrize(
    "printed", ["{1, -inf}", "floor(2i)", "halves", "sqrt(d_k)", "cross-attention", "not required", "less parameters"]
)
def test_what_is_wrong_as_printed_is_corrected_with_its_test(printed: str) -> None:
    corrected = [row for row in ROWS if row.correction and printed in row.statement]
    assert corrected
    assert all(row.tests for row in corrected)


def test_a_row_in_order_is_not_complained_of() -> None:
    assert complaints("Rain is wet", LECTURE, MEMORY, "7 drops", TEST) == []
    assert complaints("Rain is wet", LECTURE, "", "", TEST) == []
    assert complaints("Rain is wet", LECTURE, "`harken eval runs/rain`", "7 drops", "") == []


def test_a_row_without_command_and_test_fails() -> None:
    assert complaints("Pigs fly", LECTURE, "", "", "") == [
        "docs/lectures.md:3: neither a command nor a test shows it: Pigs fly"
    ]


def test_a_row_with_a_cell_too_many_fails() -> None:
    (complaint,) = complaints("Pigs fly", LECTURE, MEMORY, "1 pig", TEST, "or two")
    assert complaint == "docs/lectures.md:3: more or fewer cells than columns: Pigs fly"


@pytest.mark.parametrize(
    "test",
    ["tests/docs/test_lectures.py::test_pigs_fly", "tests/docs/test_pigs.py::test_they_fly", "tests/docs::test_pigs"],
)
def test_a_test_that_does_not_exist_fails(test: str) -> None:
    assert complaints("Pigs fly", LECTURE, MEMORY, "1 pig", f"`{test}`") == [
        f"docs/lectures.md:3: there is no test {test}"
    ]


def test_a_demonstration_that_does_not_exist_fails() -> None:
    assert complaints("Pigs fly", LECTURE, f"`{lectures.SHOW}pigs`", "1 pig", "") == [
        "docs/lectures.md:3: there is no demonstration 'pigs'"
    ]


def test_a_command_of_another_kind_fails() -> None:
    (complaint,) = complaints("Pigs fly", LECTURE, "`rm -r pigs`", "1 pig", "")
    assert "neither a demonstration nor a harken command" in complaint


def test_a_command_without_its_number_fails() -> None:
    assert complaints("Pigs fly", LECTURE, MEMORY, "", "") == ["docs/lectures.md:3: no number was seen: Pigs fly"]


def test_a_lecture_of_another_title_fails() -> None:
    assert complaints("Pigs fly", f"{LECTURE}; A lecture on pigs", MEMORY, "1 pig", "") == [
        "docs/lectures.md:3: 'A lecture on pigs' is not the title of a lecture"
    ]


def test_a_demonstration_that_no_row_names_fails() -> None:
    left_out = list(lectures.problems([row for row in ROWS if not row.command.endswith(" memory")]))
    assert left_out == ["docs/lectures.md: no row names the demonstration 'memory'"]


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAST)
def test_what_is_shown_holds(name: str) -> None:
    assert seen(name).holds
    assert math.isfinite(seen(name).number)


@pytest.mark.parametrize("name", FAST)
def test_the_number_on_the_page_is_the_number_seen(name: str) -> None:
    assert lectures.agree(SEEN[name], str(seen(name)))


@pytest.mark.process
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in SLOW])
def test_what_is_trained_holds_as_a_command(name: str) -> None:
    command = [sys.executable, "scripts/lectures.py", "show", name]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert math.isfinite(lectures.first_number(done.stdout))
    assert len(done.stdout.splitlines()) == 1


def test_a_demonstration_shows_the_same_again_and_leaves_the_dice_alone() -> None:
    before = torch.get_rng_state()
    assert shows.every()["smoothing"]() == shows.every()["smoothing"]()
    assert torch.equal(torch.get_rng_state(), before)


def test_another_number_does_not_agree() -> None:
    assert lectures.agree("1,557,686,400 weights", "1557686400 weights")
    assert lectures.agree("2.38e-07 largest difference", "0 largest difference")
    assert not lectures.agree("192 pounds", "210 pounds")
    assert not lectures.agree("", "192 pounds")


# --- the whole run ----------------------------------------------------------------------------------------------------


@pytest.fixture
def little_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    page = tmp_path / "lectures.md"
    page.write_text(f"{HEAD}| <b>Rain</b> \\| wet | {LECTURE} | {MEMORY} | 7 drops | {TEST} |\n", "utf-8")
    monkeypatch.setattr(lectures, "PAGE", page)
    monkeypatch.setattr(shows, "SHOWS", {"memory": shows.every()["memory"]})
    monkeypatch.setattr(shows, "FILES", ())
    return page


def test_the_run_writes_a_page_on_which_words_are_only_words(little_page: Path, tmp_path: Path) -> None:
    out = tmp_path / "lectures.html"
    assert lectures.main(["--out", str(out)]) == 0
    page = out.read_text("utf-8")
    assert "&lt;b&gt;Rain&lt;/b&gt; | wet" in page
    assert "7 drops" in page
    assert "<code>attend</code>" in page
    assert not any(word in page for word in ("<b>", "<script", "http:", "https:", "src="))


def test_writing_puts_the_number_seen_into_its_column_alone(little_page: Path, tmp_path: Path) -> None:
    before = little_page.read_text("utf-8")
    assert lectures.main(["--write", "--out", str(tmp_path / "lectures.html")]) == 0
    assert little_page.read_text("utf-8") == before.replace("7 drops", str(seen("memory")))


def test_a_statement_that_no_longer_holds_fails_the_run(
    little_page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = shows.Show("memory", lambda: shows.Seen(3.0, "drops", False), slow=False, timed=False)
    monkeypatch.setitem(shows.SHOWS, "memory", broken)
    assert lectures.main(["--out", str(tmp_path / "lectures.html")]) == 1
    assert "FAILS  memory" in capsys.readouterr().out


def test_one_demonstration_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert lectures.main(["show", "carbon"]) == 0
    assert capsys.readouterr().out == "192 pounds of CO2e from 201 kWh; printed 192 and 201\n"


def test_the_list_says_what_each_demonstration_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert lectures.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shows.every())
    assert all(len(line.split()) > 5 for line in lines)


def test_a_demonstration_nobody_knows_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        lectures.main(["show", "pigs"])
    assert "there is no demonstration 'pigs'" in capsys.readouterr().err
