"""Stories with questions: splits and encoding."""

from pathlib import Path

import numpy as np
import pytest

from harken.data.batch import IGNORE
from harken.data.stories.babi import parse_questions
from harken.data.stories.source import StoryProcessor, StorySource, answer_token, encode_stories
from harken.data.synthetic.stories import stories
from harken.errors import BadInput, BadRun

TEXT = """1 Joe went to the kitchen.
2 Joe picked up the milk.
3 Where is the milk?\tkitchen\t2 1
4 Joe went to the bathroom.
5 Where is Joe? \tbathroom\t4
1 Mary is hungry.
2 What is Mary carrying?\tmilk,apple\t
"""


def make_source(tmp_path: Path, text: str = TEXT, **settings) -> StorySource:
    (tmp_path / "qa2_train.txt").write_text(text)
    return StorySource(path=str(tmp_path / "qa2_train.txt"), **{"valid": 0, "test": 0, **settings})


def stories_of(part) -> set[str]:
    return {q.story for q in part.questions}


def test_a_question_without_an_answer_is_skipped_with_a_notice(tmp_path):
    texts = []
    source = make_source(tmp_path, TEXT + "3 Where is Mary?\n")
    assert len(source.load_data(listen=lambda event, **facts: texts.append(facts.get("text"))).train) == 3
    (notice,) = [text for text in texts if text]
    path = tmp_path / "qa2_train.txt"
    assert notice == f"skipped 1 row (not a line of a story): {path}:8: the question has no answer"


def test_a_file_without_a_question_is_refused_in_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"qa2_train.txt: no question with an answer; add lines with") as error:
        make_source(tmp_path, "1 Joe went out.\n2 Joe slept.\n").load_data()
    assert "\n" not in str(error.value)


def test_an_answer_is_one_word():
    answers = ("Kitchen", "milk,apple", "s,e", "?")
    assert [answer_token(answer) for answer in answers] == ["kitchen", "milk,apple", "s,e", "?"]


# --- splits -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path) -> Path:
    for n in (1, 2, 12):
        for seed, split in enumerate(("train", "test")):
            (tmp_path / f"qa{n}_some-kind_{split}.txt").write_text("".join(stories(n, 60, seed)))
    return tmp_path


def test_the_tasks_of_a_folder_are_trained_together_and_questions_know_their_task(folder):
    data = StorySource(path=str(folder)).load_data()
    assert {q.task for q in data.train.questions} == {"task 1", "task 2", "task 12"}
    assert len(data.splits["test"]) == 180
    facts = data.facts()
    assert facts["unit"] == "questions"
    assert sum(facts["questions"].values()) == 360
    assert facts["summary"].startswith("3 tasks, ")


def test_every_story_is_in_one_fold(tmp_path):
    path = tmp_path / "qa2_train.txt"
    path.write_text("".join(stories(2, 20, 0)))
    folds = [StorySource(path=str(path), fold=f"{n}/3").load_data().splits["test"] for n in (1, 2, 3)]
    questions = parse_questions(path, enumerate(path.read_text().splitlines(), 1), lambda *_: None)
    assert sorted(q.location for fold in folds for q in fold.questions) == sorted(q.location for q in questions)
    assert sum(len(stories_of(fold)) for fold in folds) == len({q.story for q in questions})


@pytest.mark.parametrize(("tasks", "names"), [(1, {"task 1"}), ([2, 12], {"task 2", "task 12"})])
def test_tasks_of_a_folder_can_be_selected(folder, tasks, names):
    data = StorySource(path=str(folder), tasks=tasks).load_data()
    assert {q.task for part in (data.train, data.splits["test"]) for q in part.questions} == names


def test_a_missing_task_is_reported_with_the_available_ones(folder):
    with pytest.raises(BadInput, match=r"data.tasks = 3: .* has no file qa3_...; its tasks are 1, 2, 12"):
        StorySource(path=str(folder), tasks=3).load_data()


def test_all_questions_about_a_story_are_in_one_split(folder):
    data = StorySource(path=str(folder), tasks=1, valid=0.3).load_data()
    assert stories_of(data.splits["valid"])
    assert not stories_of(data.train) & stories_of(data.splits["valid"])


@pytest.mark.parametrize(("duplicates", "count"), [("drop", 60), ("keep", 120)])
def test_training_stories_that_recur_in_the_test_file_are_dropped_by_default(folder, duplicates, count):
    train, test = (folder / f"qa1_some-kind_{split}.txt" for split in ("train", "test"))
    train.write_text(train.read_text() + test.read_text())
    data = StorySource(path=str(folder), tasks=1, valid=0.3, duplicate_questions=duplicates).load_data()
    assert len(data.train) + len(data.splits["valid"]) == count
    assert stories_of(data.splits["valid"])
    assert not stories_of(data.train) & stories_of(data.splits["valid"])


def test_a_held_out_question_about_the_same_lines_is_not_trained_on(tmp_path):
    (tmp_path / "qa2_train.txt").write_text(TEXT)
    (tmp_path / "qa2_test.txt").write_text(
        TEXT.replace("5 Where is Joe? \tbathroom\t4\n", "5 Where is the milk?\tbathroom\t2 4\n")
    )
    dropped, complete = (
        StorySource(path=str(tmp_path), valid=0, duplicate_questions=duplicates).load_data().train.questions
        for duplicates in ("drop", "keep")
    )
    # the others recur in the test file, in a story with another end
    assert [(len(q.lines), q.question) for q in dropped] == [(3, "Where is Joe?")]
    assert len(complete) == 3


def test_a_held_out_split_ends_with_a_complete_story(tmp_path, monkeypatch):
    monkeypatch.setattr("harken.data.split.MAX_HELD_OUT", 3)
    data = make_source(tmp_path, "".join(stories(1, 200)), valid=0.5).load_data()
    assert 3 <= len(data.splits["valid"]) < 8
    assert not stories_of(data.train) & stories_of(data.splits["valid"])


# --- encoding ---------------------------------------------------------------------------------------------------------


def test_lines_are_rows_of_word_ids_and_answers_are_words(tmp_path):
    data = make_source(tmp_path).load_data()
    processor, part = data.processor, data.train
    ids = {word: n + 1 for n, word in enumerate(processor.tokenizer.token_texts(range(processor.tokenizer.vocab)))}
    lines = [[n for n in row if n] for row in part.table[part.story[0]].tolist()]
    assert lines == [[ids[w] for w in line.split()] for line in ("joe went to the kitchen", "joe picked up the milk")]
    assert not part.table[0].any()
    assert processor.labels == ["bathroom", "kitchen", "milk,apple"]
    assert processor.vocab.answer_ids == tuple(ids[word] for word in processor.labels)
    assert part.targets.tolist() == [1, 0, 2]


def test_a_story_as_one_text_ends_with_its_question_and_loses_its_oldest_words(tmp_path):
    data = make_source(tmp_path).load_data()
    texts, tokenizer = data.train.texts, data.processor.tokenizer

    def first_text(tokens) -> str:
        return " ".join(tokenizer.token_texts(tokens.ids[: tokens.starts[1]]))

    text = "<eos> joe went to the kitchen <eos> joe picked up the milk <eos> where is the milk"
    assert first_text(texts.tokens) == text
    assert texts.segment_starts[0, 0] == 13  # first word of the question
    truncated = encode_stories(data.train.questions, data.processor, 9).texts.tokens
    assert first_text(truncated) == "up the milk <eos> where is the milk"
    assert texts.lengths.max() <= 512


def test_an_unknown_answer_is_ignored_as_a_target(tmp_path):
    data = make_source(tmp_path).load_data()
    questions = [q._replace(answer="moon") for q in data.train.questions]
    assert encode_stories(questions, data.processor, 64).targets.tolist() == [IGNORE] * 3


def test_the_tokenizer_is_trained_on_the_lines_in_order(tmp_path):
    """In the order of a set, word ids would depend on the hash seed of the process."""
    lines = [f"w{n} ran" for n in range(1, 9)]
    rows = [*(f"{n} {line}" for n, line in enumerate(lines, 1)), "9 Who ran?\tw1\t1"]
    questions = parse_questions(Path("a.txt"), enumerate(rows, 1), pytest.fail)
    assert [*make_source(tmp_path).texts(questions)] == ["w1", *lines, "who ran"]


def test_a_processor_is_saved_and_loaded_and_a_damaged_one_refused(tmp_path):
    processor = make_source(tmp_path).load_data().processor
    for name, content in processor.files().items():
        (tmp_path / name).write_bytes(content)
    loaded = StorySource().load_processor(tmp_path)
    assert isinstance(loaded, StoryProcessor)
    assert loaded.vocab == processor.vocab
    (tmp_path / "labels.json").write_text("{}")
    with pytest.raises(BadRun, match=r"labels.json: cannot read the processor"):
        StorySource().load_processor(tmp_path)


def test_selected_questions_have_their_stories_lines_and_answers(folder):
    train = StorySource(path=str(folder)).load_data().train
    indices = np.arange(len(train))[::-2]
    chosen = train.select(indices)
    assert chosen.questions == [train.questions[n] for n in indices]
    for k, n in enumerate(indices):
        assert chosen.story[k].tolist() == train.story[n].tolist()
        assert chosen.texts.tokens[k].tolist() == train.texts.tokens[n].tolist()
    assert (chosen.targets == train.targets[indices]).all()
    assert (chosen.question == train.question[indices]).all()
