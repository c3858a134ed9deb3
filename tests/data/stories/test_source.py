"""Stories with questions: read as bAbI writes them, split, encoded for models by line and for models of one text."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from harken.data.batch import IGNORE
from harken.data.stories.babi import Told, statements, task_of, told, words_of
from harken.data.stories.batch import Shelf, StoryBatches
from harken.data.stories.source import StorySource, StoryWords, as_word, encoded
from harken.data.synthetic.stories import stories
from harken.data.tokenizers.tokenizer import train as learned
from harken.errors import BadInput, BadRun

TEXT = """1 Joe went to the kitchen.
2 Joe picked up the milk.
3 Where is the milk?\tkitchen\t2 1
4 Joe went to the bathroom.
5 Where is Joe? \tbathroom\t4
1 Mary is hungry.
2 What is Mary carrying?\tmilk,apple\t
"""


def read(text: str, name: str = "qa2_train.txt") -> list[Told]:
    return told(Path(name), enumerate(text.splitlines(), 1), pytest.fail)


def some(tmp_path: Path, text: str = TEXT, **settings):
    (tmp_path / "qa2_train.txt").write_text(text)
    return StorySource(path=str(tmp_path / "qa2_train.txt"), **{"valid": 0, "test": 0, **settings})


# --- read -------------------------------------------------------------------------------------------------------------


def test_a_question_knows_the_lines_before_it_its_answer_and_its_facts():
    first, second, third = read(TEXT)
    assert first.lines == ("Joe went to the kitchen.", "Joe picked up the milk.")
    assert (first.question, first.answer, first.facts) == ("Where is the milk?", "kitchen", (1, 0))
    assert second.lines == (*first.lines, "Joe went to the bathroom.")  # questions are no lines of a story
    assert (second.question, second.answer, second.facts) == ("Where is Joe?", "bathroom", (2,))
    assert (third.lines, third.answer, third.facts) == (("Mary is hungry.",), "milk,apple", ())
    assert first.story == second.story != third.story
    assert [q.place for q in (first, third)] == ["qa2_train.txt:3", "qa2_train.txt:7"]


def test_a_story_without_numbers_is_read_and_a_blank_line_begins_the_next():
    plain = "Joe went out.\nWhere is Joe?\n\nMary slept.\nIs Mary awake?"
    assert [(q.lines, q.question, q.answer) for q in read(plain)] == [
        (("Joe went out.",), "Where is Joe?", ""),
        (("Mary slept.",), "Is Mary awake?", ""),
    ]
    assert statements(plain.splitlines()) == [["Joe went out."], ["Mary slept."]]
    assert statements(TEXT.splitlines())[1] == ["Mary is hungry."]


def test_a_number_is_a_line_number_only_where_every_line_has_one():
    plain = ["Joe went out.", "3 apples lay there.", "1 pear too.", "---", "How many pears were there?"]
    assert statements(plain) == [["Joe went out.", "3 apples lay there.", "1 pear too."]]
    numbered = ["1 Joe went out.", "2 ---", "3 3 apples lay there.", "1 Mary slept."]
    assert statements(numbered) == [["Joe went out.", "3 apples lay there."], ["Mary slept."]]


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("2 Joe picked", "Joe picked"), "".join(stories(7, 30))])
def test_what_is_stated_is_what_a_question_at_the_end_knows(text):
    last = {q.story: q.lines for q in read(text)}  # of each story the last question
    assert [tuple(lines) for lines in statements(text.splitlines())] == [*last.values()]


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("qa10_indefinite-knowledge_train.txt", "task 10"),
        ("qa1_test.txt", "task 1"),
        ("my-stories_train.txt", "my-stories"),
        ("train.txt", "train"),
    ],
)
def test_the_name_of_a_file_tells_its_task(name, task):
    assert task_of(Path(name)) == task


def test_words_are_small_and_without_signs_and_an_answer_is_one_word():
    assert words_of("  Joe's half-eaten Apple, (red)? ") == "joe's half-eaten apple red"
    assert [as_word(answer) for answer in ("Kitchen", "milk,apple", "s,e", "?")] == [
        "kitchen",
        "milk,apple",
        "s,e",
        "?",
    ]


def test_a_question_without_an_answer_is_left_out_and_told(tmp_path):
    heard = []
    source = some(tmp_path, TEXT + "3 Where is Mary?\n")
    assert len(source.open(listen=lambda event, **facts: heard.append(facts.get("text"))).train) == 3
    (notice,) = [text for text in heard if text]
    assert "lines left out because they are no line of a story: 1" in notice
    assert "qa2_train.txt:8: the question has no answer" in notice


def test_a_file_without_a_question_is_refused_in_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"qa2_train.txt: there is no question with an answer in it; a line with"):
        some(tmp_path, "1 Joe went out.\n2 Joe slept.\n").open()


# --- split ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path) -> Path:
    for n in (1, 2, 12):
        for seed, split in enumerate(("train", "test")):
            (tmp_path / f"qa{n}_some-kind_{split}.txt").write_text("".join(stories(n, 60, seed)))
    return tmp_path


def test_a_folder_of_tasks_is_learned_together_and_questions_know_their_task(folder):
    opened = StorySource(path=str(folder)).open()
    assert {q.task for q in opened.train.asked} == {"task 1", "task 2", "task 12"}
    assert len(opened.splits["test"]) == 180
    facts = opened.facts()
    assert facts["unit"] == "questions"
    assert sum(facts["questions"].values()) == 360
    assert facts["told"].startswith("3 tasks, ")


@pytest.mark.parametrize(("tasks", "found"), [(1, {"task 1"}), ([2, 12], {"task 2", "task 12"})])
def test_some_tasks_of_a_folder_may_be_chosen(folder, tasks, found):
    opened = StorySource(path=str(folder), tasks=tasks).open()
    assert {q.task for part in (opened.train, opened.splits["test"]) for q in part.asked} == found


def test_a_task_that_is_not_there_is_named_beside_those_that_are(folder):
    with pytest.raises(BadInput, match=r"data.tasks = 3: .* has no file qa3_...; the tasks here are 1, 2, 12"):
        StorySource(path=str(folder), tasks=3).open()


def test_all_questions_about_a_story_stand_on_one_side(folder):
    opened = StorySource(path=str(folder), tasks=1, valid=0.3).open()
    learned_from, held = ({q.story for q in part.asked} for part in (opened.train, opened.splits["valid"]))
    assert held
    assert not learned_from & held


def test_a_training_story_that_recurs_in_the_test_file_is_left_out_unless_it_is_kept(folder):
    train, test = (folder / f"qa1_some-kind_{split}.txt" for split in ("train", "test"))
    train.write_text(train.read_text() + test.read_text())
    for recurring, many in (("drop", 60), ("keep", 120)):
        opened = StorySource(path=str(folder), tasks=1, valid=0.3, duplicate_questions=recurring).open()
        learned_from, held = ({q.story for q in part.asked} for part in (opened.train, opened.splits["valid"]))
        assert len(opened.train) + len(opened.splits["valid"]) == many
        assert held
        assert not learned_from & held


def test_no_question_is_learned_from_that_is_held_out_about_the_same_lines(tmp_path):
    told_twice = TEXT.replace("5 Where is Joe? \tbathroom\t4\n", "5 Where is the milk?\tbathroom\t2 4\n")
    (tmp_path / "qa2_train.txt").write_text(TEXT)
    (tmp_path / "qa2_test.txt").write_text(told_twice)
    asked = {
        recurring: [
            (len(q.lines), q.question)
            for q in StorySource(path=str(tmp_path), valid=0, duplicate_questions=recurring).open().train.asked
        ]
        for recurring in ("drop", "keep")
    }
    assert asked["drop"] == [(3, "Where is Joe?")]  # the others recur, in a story that ends otherwise
    assert len(asked["keep"]) == 3


def test_a_held_out_share_ends_with_a_whole_story(tmp_path, monkeypatch):
    monkeypatch.setattr("harken.data.split.MOST", 3)
    opened = some(tmp_path, "".join(stories(1, 200)), valid=0.5).open()
    learned_from, held = ({q.story for q in part.asked} for part in (opened.train, opened.splits["valid"]))
    assert 3 <= len(opened.splits["valid"]) < 8
    assert not learned_from & held


# --- encode -----------------------------------------------------------------------------------------------------------


def test_lines_are_rows_of_word_numbers_and_answers_are_words(tmp_path):
    opened = some(tmp_path).open()
    words, part = opened.words, opened.train
    number = {word: n + 1 for n, word in enumerate(words.tokenizer.words(range(words.tokenizer.vocab)))}
    lines = [[n for n in row if n] for row in part.table[part.story[0]].tolist()]
    assert lines == [
        [number[w] for w in line.split()] for line in ("joe went to the kitchen", "joe picked up the milk")
    ]
    assert not part.table[0].any()
    assert words.labels == ["bathroom", "kitchen", "milk,apple"]
    assert words.vocab.words == tuple(number[word] for word in words.labels)
    assert part.targets.tolist() == [1, 0, 2]


def test_as_one_text_a_story_ends_with_its_question_and_the_oldest_words_are_cut(tmp_path):
    opened = some(tmp_path).open()
    whole = opened.train.texts.side
    tokenizer = opened.words.tokenizer
    said = tokenizer.words(whole.ids[: whole.starts[1]])
    assert " ".join(said) == "<eos> joe went to the kitchen <eos> joe picked up the milk <eos> where is the milk"
    assert opened.train.texts.second[0] == 13  # where the question begins
    short = encoded(opened.train.asked, opened.words, 9).texts.side
    cut = tokenizer.words(short.ids[: short.starts[1]])
    assert " ".join(cut) == "up the milk <eos> where is the milk"
    assert opened.train.texts.lengths.max() <= 512


def test_an_answer_that_was_not_learned_is_no_target_and_no_error(tmp_path):
    opened = some(tmp_path).open()
    other = [q._replace(answer="moon") for q in opened.train.asked]
    assert encoded(other, opened.words, 64).targets.tolist() == [IGNORE] * 3


def test_the_lines_of_a_story_are_learned_from_in_their_order(tmp_path):
    """As a set they would number the words by the hashes of strings: another training in every process."""
    lines = [f"w{n} ran" for n in range(1, 9)]
    text = "".join(f"{n} {line}\n" for n, line in enumerate(lines, 1)) + "9 Who ran?\tw1\t1\n"
    assert [*some(tmp_path).texts(read(text))] == ["w1", *lines, "who ran"]


def test_words_and_answers_are_kept_and_read_again(tmp_path):
    words = some(tmp_path).open().words
    for name, content in words.files().items():
        (tmp_path / name).write_bytes(content)
    again = StorySource().words(tmp_path)
    assert isinstance(again, StoryWords)
    assert again.vocab == words.vocab
    (tmp_path / "labels.json").write_text("{}")
    with pytest.raises(BadRun, match=r"labels.json: is no list of labels"):
        StorySource().words(tmp_path)


# --- batches ----------------------------------------------------------------------------------------------------------


def part_of(many: int = 40):
    asked = read("".join(stories(2, many)))
    text = " ".join(words_of(said) for q in asked for said in (*q.lines, q.question, q.answer))
    tokenizer = learned("word", lambda: [text], 99)
    return encoded(asked, StoryWords(tokenizer, sorted({q.answer for q in asked})), 512)


def batches(part, memory: int = 8, **how) -> StoryBatches:
    return StoryBatches(Shelf(part, memory), 7, memory, **{"seed": 3, "noise": 0.0, "linear": 0, **how})


def given_by(found: StoryBatches, epoch: int = 0, step: int = 0) -> dict[str, torch.Tensor]:
    """A batch as the model is told of it."""
    batch = found.batch(epoch, step)
    return found.shelf.told(batch.tokens[:, 0], batch.blanks)


def test_an_epoch_asks_every_question_at_most_once_and_another_in_another_order():
    found = batches(part_of())
    epochs = [[found.batch(epoch, step).tokens[:, 0].tolist() for step in range(found.steps)] for epoch in (0, 1, 0)]
    assert found.steps == 5
    assert epochs[0] == epochs[2] != epochs[1]
    assert len({n for some in epochs[0] for n in some}) == 35


def test_the_latest_lines_are_kept_and_ages_count_back_from_the_latest():
    part = part_of()
    shelf = Shelf(part, 8)
    long = next(n for n, rows in enumerate(part.story) if len(rows) > 8)
    short = next(n for n, rows in enumerate(part.story) if len(rows) == 3)
    given = shelf.told(torch.tensor([long, short]))  # too few for lines that are read once
    assert given["lines"].tolist() == part.table[[part.story[long][-8:], [*part.story[short], *[0] * 5]]].tolist()
    assert given["ages"].tolist() == [[7, 6, 5, 4, 3, 2, 1, 0], [2, 1, 0, 0, 0, 0, 0, 0]]
    assert given["question"].tolist() == part.table[part.question[[long, short]]].tolist()


def test_many_questions_are_told_by_rows_of_the_same_lines():
    shelf = Shelf(part_of(), 8)
    few, every = shelf.told(torch.tensor([0])), shelf.told(torch.arange(40))
    assert every["lines"].shape == shelf.table.shape
    assert torch.equal(every["lines"][every["rows"][:1]], few["lines"])


def test_a_batch_counts_its_questions_and_the_words_that_are_read():
    found = batches(part := part_of())
    batch = found.batch(0, 0)
    lines = [line for n in batch.tokens[:, 0].tolist() for line in [*part.story[n][-8:], part.question[n]]]
    assert (batch.count, batch.size) == (7, int((part.table[lines] > 0).sum()))


def test_noise_makes_lines_look_older_and_keeps_their_order():
    part = part_of()
    plain, shaken = (given_by(batches(part, 30, noise=noise)) for noise in (0.0, 0.5))
    assert set(plain) == set(shaken)
    assert torch.equal(plain["lines"], shaken["lines"])
    assert (shaken["ages"] >= plain["ages"]).all()
    assert (shaken["ages"] > plain["ages"]).any()
    assert shaken["ages"].max() < 30
    counts = Shelf(part, 30).counts[batches(part, 30).batch(0, 0).tokens[:, 0]]
    for ages, count in zip(shaken["ages"].tolist(), counts.tolist(), strict=True):
        assert all(a > b for a, b in pairwise(ages[:count]))
        assert max(ages) < count + math.ceil(count / 2)
    assert torch.equal(given_by(batches(part, 30, noise=0.5))["ages"], shaken["ages"])


def test_a_story_that_fills_the_memory_has_no_room_for_noise():
    part = part_of()
    shelf = Shelf(part, 4)
    full = shelf.counts == 4
    drawn = StoryBatches(shelf, 40, 4, seed=0, noise=1.0, linear=0).batch(0, 0)
    assert full.any()
    assert (drawn.blanks[full[drawn.tokens[:, 0]]] == -1).all()


def test_only_the_first_epochs_are_linear():
    found = batches(part_of(), linear=2)
    assert [found.batch(epoch, 0).linear for epoch in range(4)] == [True, True, False, False]
    assert [found.batch(epoch, 0).steady for epoch in (1, 2)] == [False, True]
