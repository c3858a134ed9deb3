"""The lectures' labs with this library: the notebooks run from top to bottom and print what they claim."""

import re
import resource
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

# the notebook client and its sockets are not ours to mend
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
LAB = Path(__file__).resolve().parents[2] / "labs" / "lab01.ipynb"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each code cell printed, by the first words of its code; and its seconds of processor time."""
    folder = tmp_path_factory.mktemp("lab01")
    book = nbformat.read(LAB, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("TMPDIR", str(folder))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        place = {"metadata": {"path": str(folder)}}
        NotebookClient(book, timeout=200, kernel_name="python3", resources=place).execute()
        said = {"seconds": str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)}
    for cell in book.cells:
        if cell.cell_type == "code":
            outputs = [o for o in cell.outputs if o.output_type == "stream"]
            said[cell.source] = "".join(o.text for o in outputs if o.name == "stdout")
            said["errors"] = said.get("errors", "") + "".join(o.text for o in outputs if o.name == "stderr")
    return said


def of(printed: dict[str, str], code: str) -> str:
    """What the one cell with this code printed."""
    (said,) = (text for source, text in printed.items() if code in source)
    return said


@pytest.mark.process
def test_lab_01_runs_and_prints_what_it_claims(printed: dict[str, str]) -> None:
    epoch = of(printed, "seconds per epoch")
    assert re.search(r"here: +[\d.]+ seconds per epoch", epoch)
    assert "48 seconds per epoch of 929,589 words" in epoch
    assert float(printed["seconds"]) < 60
    assert printed["errors"] == ""


@pytest.mark.process
def test_lab_01_draws_the_mask(printed: dict[str, str]) -> None:
    drawn = [line.split()[1] for line in of(printed, "CAUSAL.mask").splitlines()]
    assert drawn == ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]


@pytest.mark.process
def test_lab_01_takes_the_four_steps_of_attend(printed: dict[str, str]) -> None:
    assert float(of(printed, "o = A @ v").splitlines()[0].split()[-1]) < 1e-6
    assert "sums of the rows: 1.00 1.00 1.00 1.00 1.00" in of(printed, "masked.softmax")
    assert "0 of 5" not in of(printed, "printed = scores")


@pytest.mark.process
def test_lab_01_moves_no_word_before_the_changed_one(printed: dict[str, str]) -> None:
    moved = [float(line.split()[-1]) for line in of(printed, "moved by").splitlines()]
    assert moved[:4] == [0, 0, 0, 0]
    assert moved[4] > 0


@pytest.mark.process
def test_lab_01_beats_counting_words(printed: dict[str, str]) -> None:
    lines = of(printed, "perplexity").splitlines()
    found = {line.split("perplexity")[0].strip(): float(line.split()[-3]) for line in lines}
    assert set(found) == {"this model", "unigram", "5-gram Kneser-Ney"}
    assert found["this model"] < found["unigram"] / 10


@pytest.mark.process
def test_lab_01_says_what_may_come_next_and_writes(printed: dict[str, str]) -> None:
    chances = [float(line.split()[1]) for line in of(printed, "run.next").splitlines()[1:]]
    assert len(chances) == 8
    assert chances == sorted(chances, reverse=True)
    assert 0 < sum(chances) <= 1
    assert len(of(printed, "run.generate").split()) > 40


@pytest.mark.process
def test_lab_01_shows_a_head_that_looks_back_only(printed: dict[str, str]) -> None:
    rows = [line.split("|")[1] for line in of(printed, "shades =").splitlines()[1:]]
    assert len(rows) == 12
    assert rows[0].startswith("@@")
    assert all(not row[2 * n + 2 :].strip() for n, row in enumerate(rows))


def test_a_text_of_your_own_is_one_line_away() -> None:
    lines = [line for cell in nbformat.read(LAB, as_version=4).cells for line in cell.source.splitlines()]
    assert sum(line.startswith("TEXT = ") for line in lines) == 1


def test_the_labs_are_stored_without_what_they_printed() -> None:
    for cell in nbformat.read(LAB, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
