"""The lectures' labs with this library: the notebooks run from top to bottom and print the expected output."""

import re
import resource
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

# the notebook client and its sockets are not part of harken
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
LABS = sorted((Path(__file__).resolve().parents[2] / "labs").glob("lab*.ipynb"))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of each cell of Lab 01."""
    return execute(LABS[0], tmp_path_factory.mktemp("lab01"))


@pytest.fixture(scope="module")
def printed_02(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of each cell of Lab 02."""
    return execute(LABS[1], tmp_path_factory.mktemp("lab02"))


def execute(lab: Path, folder: Path) -> dict[str, str]:
    """The output of each code cell by its code, and the seconds of processor time."""
    book = nbformat.read(lab, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("TMPDIR", str(folder))
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(book, timeout=200, kernel_name="python3", resources=resources).execute()
        output = {"seconds": str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)}
    for cell in book.cells:
        if cell.cell_type == "code":
            outputs = [o for o in cell.outputs if o.output_type == "stream"]
            output[cell.source] = "".join(o.text for o in outputs if o.name == "stdout")
            output["errors"] = output.get("errors", "") + "".join(o.text for o in outputs if o.name == "stderr")
    return output


def cell_output(printed: dict[str, str], code: str) -> str:
    """The output of the only cell that contains this code."""
    (output,) = (text for source, text in printed.items() if code in source)
    return output


@pytest.mark.process
@pytest.mark.slow
def test_lab_01_runs_in_under_a_minute_and_prints_seconds_per_epoch(printed: dict[str, str]) -> None:
    epoch = cell_output(printed, "seconds per epoch")
    assert re.search(r"here: +[\d.]+ seconds per epoch", epoch)
    assert "48 seconds per epoch of 929,589 words" in epoch
    assert float(printed["seconds"]) < 60
    assert printed["errors"] == ""


@pytest.mark.process
@pytest.mark.slow
def test_lab_01_draws_the_mask(printed: dict[str, str]) -> None:
    drawn = [line.split()[1] for line in cell_output(printed, "CAUSAL.mask").splitlines()]
    assert drawn == ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]


@pytest.mark.process
@pytest.mark.slow
def test_the_four_steps_of_lab_01_equal_attend(printed: dict[str, str]) -> None:
    assert float(cell_output(printed, "o = A @ v").splitlines()[0].split()[-1]) < 1e-6
    assert "sums of the rows: 1.00 1.00 1.00 1.00 1.00" in cell_output(printed, "masked.softmax")
    assert "0 of 5" not in cell_output(printed, "printed = scores")


@pytest.mark.process
@pytest.mark.slow
def test_lab_01_shows_that_a_changed_word_has_no_effect_on_earlier_ones(printed: dict[str, str]) -> None:
    moved = [float(line.split()[-1]) for line in cell_output(printed, "moved by").splitlines()]
    assert moved[:4] == [0, 0, 0, 0]
    assert moved[4] > 0


@pytest.mark.process
@pytest.mark.slow
def test_the_model_of_lab_01_is_better_than_a_unigram(printed: dict[str, str]) -> None:
    lines = cell_output(printed, "perplexity").splitlines()
    actual = {line.split("perplexity")[0].strip(): float(line.split()[-3]) for line in lines}
    assert set(actual) == {"this model", "unigram", "5-gram Kneser-Ney"}
    assert actual["this model"] < actual["unigram"] / 10


@pytest.mark.process
@pytest.mark.slow
def test_lab_01_prints_next_word_probabilities_and_generates_text(printed: dict[str, str]) -> None:
    probabilities = [float(line.split()[1]) for line in cell_output(printed, "run.next").splitlines()[1:]]
    assert len(probabilities) == 8
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 < sum(probabilities) <= 1
    assert len(cell_output(printed, "run.generate").split()) > 40


@pytest.mark.process
@pytest.mark.slow
def test_the_attention_printed_by_lab_01_is_causal(printed: dict[str, str]) -> None:
    rows = [line.split("|")[1] for line in cell_output(printed, "shades =").splitlines()[1:]]
    assert len(rows) == 12
    assert rows[0].startswith("@@")
    assert all(not row[2 * n + 2 :].strip() for n, row in enumerate(rows))


# --- Lab 02 -----------------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.slow
def test_lab_02_runs_in_under_a_minute_without_errors(printed_02: dict[str, str]) -> None:
    assert float(printed_02["seconds"]) < 60
    assert printed_02["errors"] == ""


@pytest.mark.process
@pytest.mark.slow
def test_held_out_sources_of_lab_02_are_not_in_the_training_split(printed_02: dict[str, str]) -> None:
    output = cell_output(printed_02, "data.facts()")
    assert "held-out sources that are in the training split: 0" in output
    assert re.findall(r"^(\w+) +[\d,]+ pairs", output, re.M) == ["train", "valid", "test"]


@pytest.mark.process
@pytest.mark.slow
def test_lab_02_shows_encoder_decoder_and_cross_attention(printed_02: dict[str, str]) -> None:
    output = cell_output(printed_02, "def draw")
    assert all(float(gap) < 1e-6 for gap in re.findall(r"differ by (\S+)", output))
    assert output.count(" xxxxx\n") == 5 + 6  # encoder and cross
    assert " x.....\n    xx....\n    xxx...\n    xxxx..\n    xxxxx.\n    xxxxxx\n" in output


@pytest.mark.process
@pytest.mark.slow
def test_lab_02_trains_on_all_next_words_in_parallel(printed_02: dict[str, str]) -> None:
    output = cell_output(printed_02, "optimizer.step()")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", output)]
    assert losses[-1] < losses[0] / 1.5
    assert float(output.split()[-1]) < 1e-4


@pytest.mark.process
@pytest.mark.slow
def test_lab_02_learns_to_translate(printed_02: dict[str, str]) -> None:
    watched = cell_output(printed_02, "started_runs").splitlines()
    assert "Je suis étudiant" not in watched[0]
    assert "voiture rouge" in watched[-4]
    actual = {
        line[:22].strip(): float(line.split("bleu")[1].split()[0])
        for line in cell_output(printed_02, "rouge_l").splitlines()
    }
    assert actual["this model"] > 60 > 5 > max(score for name, score in actual.items() if name != "this model")
    assert cell_output(printed_02, "'right' if").count("right") >= 3


@pytest.mark.process
@pytest.mark.slow
def test_the_cross_attention_of_lab_02_follows_the_word_order(printed_02: dict[str, str]) -> None:
    head, *rows = cell_output(printed_02, "shades =").splitlines()
    columns = {word: head.index(word) for word in ("red", "car")}
    row = {line.split("|")[0].strip(): line for line in rows}
    shades = " .:-=+*#%@"
    for french, english, wrong_english in (("voiture", "car", "red"), ("rouge", "red", "car")):
        dark, light = (shades.index(row[french][columns[word]]) for word in (english, wrong_english))
        assert dark > light


@pytest.mark.process
@pytest.mark.slow
def test_a_beam_in_lab_02_finds_texts_of_higher_score(printed_02: dict[str, str]) -> None:
    greedy, beam = (
        float(score) for score in re.findall(r"mean ln p (\S+)", cell_output(printed_02, "run.alternatives"))
    )
    assert greedy < beam


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lab", "name"), list(zip(LABS, ("TEXT", "PAIRS"), strict=True)))
def test_your_own_data_needs_one_changed_line(lab: Path, name: str) -> None:
    lines = [line for cell in nbformat.read(lab, as_version=4).cells for line in cell.source.splitlines()]
    assert sum(line.startswith(f"{name} = ") for line in lines) == 1


@pytest.mark.parametrize("lab", LABS)
def test_the_labs_are_stored_without_output(lab: Path) -> None:
    for cell in nbformat.read(lab, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
