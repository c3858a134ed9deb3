"""The examples in the docstrings of harken.train, compare, audit, cluster and their return types run on tiny data."""

import doctest

import pytest

import harken
from harken.data.synthetic.tales import tales

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.steps": 2, "train.batch": 4}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with text.txt and the run runs/text."""
    home = tmp_path_factory.mktemp("doctests")
    (home / "text.txt").write_text("\n\n".join(tales(12)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
        patch.chdir(home)
        harken.train("text.txt", out="runs/text", settings=TINY)
        yield home


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("name", ["train", "compare", "audit", "cluster", "Audit", "Clustering", "Comparison"])
def test_the_example_in_the_docstring_runs(name):
    function = getattr(harken, name)
    examples = doctest.DocTestParser().get_doctest(function.__doc__, {"harken": harken}, name, None, None)
    assert examples.examples
    report: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert outcome.failed == 0, "".join(report)
