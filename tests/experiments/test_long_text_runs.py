"""model.structure=bigbird from the data to the run: text, and texts with labels."""

import harken
from harken.data.synthetic.opinions import opinions
from harken.data.synthetic.tales import tales

SMALL = {"model.d": 32, "model.layers": 1, "model.heads": 2, "train.steps": 4, "train.device": "cpu"}
SPARSE = {"model.structure": "bigbird", "model.block_size": 16, "model.random_blocks": 1, "model.context": 100}


def test_a_block_sparse_language_model_is_trained_audited_and_generates_as_in_a_full_pass(tmp_path):
    (tmp_path / "tales.txt").write_text("\n\n".join(tales(60)))
    run = harken.train(tmp_path / "tales.txt", out=tmp_path / "run", settings=SMALL | SPARSE)
    audit = harken.audit(run.path)
    assert audit.passed, audit.checks
    assert {"causal", "packing", "padding", "cache"} <= {
        check.name for check in audit.checks if check.outcome == "passed"
    }
    text = run.generate("Once", max_new_tokens=60, temperature=0)
    assert [run.next("Once" + text[:n], 1)[0]["text"] for n in (5, 40)] == [text[5], text[40]]


def test_packed_documents_work_with_block_sparse_attention(tmp_path):
    (tmp_path / "tales.txt").write_text("\n\n".join(tales(60)))
    packed = {"data.batching": "packed", "data.documents": "blank"}
    run = harken.train(tmp_path / "tales.txt", out=tmp_path / "run", settings=SMALL | SPARSE | packed)
    assert run.metrics["valid"]["loss"] < 6


def test_long_labelled_texts_are_classified(tmp_path):
    rows = [(" ".join([text] * 8), label) for text, label in opinions(120)]
    (tmp_path / "long.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    settings = SMALL | SPARSE | {"data.max_length": 100, "data.kind": "table"}
    run = harken.train(tmp_path / "long.tsv", out=tmp_path / "run", settings=settings)
    assert run.recipe.model.structure == "bigbird"
    assert abs(sum(label["probability"] for label in run.classify(rows[0][0])) - 1) < 1e-5
