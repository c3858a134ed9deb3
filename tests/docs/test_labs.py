"""The lectures' labs with this library: the notebooks run from top to bottom and print what they claim."""

import re
import resource
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

# the notebook client and its sockets are not ours to mend
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
LABS = sorted((Path(__file__).resolve().parents[2] / "labs").glob("lab*.ipynb"))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What Lab 01 printed."""
    return executed(LABS[0], tmp_path_factory.mktemp("lab01"))


@pytest.fixture(scope="module")
def printed_02(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What Lab 02 printed."""
    return executed(LABS[1], tmp_path_factory.mktemp("lab02"))


def executed(lab: Path, folder: Path) -> dict[str, str]:
    """What each code cell printed, by its code; and its seconds of processor time."""
    book = nbformat.read(lab, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("TMPDIR", str(folder))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        place = {"metadata": {"path": str(folder)}}
        NotebookClient(book, timeout=200, kernel_name="python3", resources=place).execute()
        output = {"seconds": str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)}
    for cell in book.cells:
        if cell.cell_type == "code":
            outputs = [o for o in cell.outputs if o.output_type == "stream"]
            output[cell.source] = "".join(o.text for o in outputs if o.name == "stdout")
            output["errors"] = output.get("errors", "") + "".join(o.text for o in outputs if o.name == "stderr")
    return output


def of(printed: dict[str, str], code: str) -> str:
    """What the one cell with this code printed."""
    (output,) = (text for source, text in printed.items() if code in source)
    return output


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
    actual = {line.split("perplexity")[0].strip(): float(line.split()[-3]) for line in lines}
    assert set(actual) == {"this model", "unigram", "5-gram Kneser-Ney"}
    assert actual["this model"] < actual["unigram"] / 10


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


# --- Lab 02 -----------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_lab_02_runs_in_under_a_minute_and_complains_of_nothing(printed_02: dict[str, str]) -> None:
    assert float(printed_02["seconds"]) < 60
    assert printed_02["errors"] == ""


@pytest.mark.process
def test_lab_02_holds_sources_out_that_are_not_learned_from(printed_02: dict[str, str]) -> None:
    output = of(printed_02, "data.facts()")
    assert "held-out sources that are learned from too: 0" in output
    assert re.findall(r"^(\w+) +[\d,]+ pairs", output, re.M) == ["train", "valid", "test"]


@pytest.mark.process
def test_lab_02_states_the_equation_three_times(printed_02: dict[str, str]) -> None:
    output = of(printed_02, "def drawn")
    assert all(float(gap) < 1e-6 for gap in re.findall(r"differ by (\S+)", output))
    assert output.count(" xxxxx\n") == 5 + 6  # encoder and cross
    assert " x.....\n    xx....\n    xxx...\n    xxxx..\n    xxxxx.\n    xxxxxx\n" in output


@pytest.mark.process
def test_lab_02_asks_all_next_words_at_once(printed_02: dict[str, str]) -> None:
    output = of(printed_02, "rule.step()")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", output)]
    assert losses[-1] < losses[0] / 1.5
    assert float(output.split()[-1]) < 1e-4


@pytest.mark.process
def test_lab_02_learns_to_translate(printed_02: dict[str, str]) -> None:
    watched = of(printed_02, "begun").splitlines()
    assert "Je suis étudiant" not in watched[0]
    assert "voiture rouge" in watched[-4]
    actual = {
        line[:22].strip(): float(line.split("bleu")[1].split()[0]) for line in of(printed_02, "rouge_l").splitlines()
    }
    assert actual["this model"] > 60 > 5 > max(score for name, score in actual.items() if name != "this model")
    assert of(printed_02, "'right' if").count("right") >= 3


@pytest.mark.process
def test_lab_02_looks_across_where_the_order_changes(printed_02: dict[str, str]) -> None:
    head, *rows = of(printed_02, "shades =").splitlines()
    columns = {word: head.index(word) for word in ("red", "car")}
    row = {line.split("|")[0].strip(): line for line in rows}
    shades = " .:-=+*#%@"
    for french, english, other in (("voiture", "car", "red"), ("rouge", "red", "car")):
        dark, light = (shades.index(row[french][columns[word]]) for word in (english, other))
        assert dark > light


@pytest.mark.process
def test_lab_02_finds_likelier_texts_with_a_beam(printed_02: dict[str, str]) -> None:
    greedy, beam = (float(score) for score in re.findall(r"mean ln p (\S+)", of(printed_02, "run.alternatives")))
    assert greedy < beam


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lab", "name"), list(zip(LABS, ("TEXT", "PAIRS"), strict=True)))
def test_data_of_your_own_is_one_line_away(lab: Path, name: str) -> None:
    lines = [line for cell in nbformat.read(lab, as_version=4).cells for line in cell.source.splitlines()]
    assert sum(line.startswith(f"{name} = ") for line in lines) == 1


@pytest.mark.parametrize("lab", LABS)
def test_the_labs_are_stored_without_what_they_printed(lab: Path) -> None:
    for cell in nbformat.read(lab, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
