import pytest

from harken.data.labelled.tags import TagSource


@pytest.fixture
def conll(tmp_path):
    def write(name, lines):
        rows = ["\n".join(f"{word}{n if word == 'Ada' else ''} X {tag}" for word, tag in lines) for n in range(60)]
        (tmp_path / name).write_text("\n\n".join(rows) + "\n")
        return str(tmp_path / name)

    return write


def test_the_tokenizer_of_another_run_is_reused_and_its_labels_are_replaced(conll):
    path = conll("ner.conll", [("Ada", "I-PER"), ("met", "O"), ("Johnson", "I-PER")])
    data = TagSource(path=path, vocab_size=100).load_data()
    assert TagSource(path=path).load_data(tokenizer=data.processor).processor is data.processor
    other = TagSource(path=conll("pos.conll", [("Ada", "NNP"), ("runs", "VBZ")]))
    processor = other.load_data(tokenizer=data.processor.tokenizer).processor
    assert processor.tokenizer is data.processor.tokenizer
    assert processor.labels == ["NNP", "VBZ"]
