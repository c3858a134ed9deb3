"""The query of the nearest training question, with the names of another schema."""

from harken.tasks.baselines.query_template import QueryTemplates

PAIRS = [
    ("table hat (red, old): how many hat have old above 3 ?", "select count(*) from hat where old > 3"),
    ("table hat (red, old): show the red of every hat", "select red from hat"),
] * 1000


def test_names_and_values_are_those_of_the_new_question():
    templates = QueryTemplates(PAIRS)
    source = "table dog (size, age, name): how many dog have size above 77 ?"
    assert templates.predict(source) == "select count(*) from dog where size > 77"
    assert templates.predict("table dog (size, name): show the name of each dog") == "select name from dog"
    assert len(templates.queries) == 2
