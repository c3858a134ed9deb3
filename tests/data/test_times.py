"""Times of a column: formats, their order, and cells that cannot be read."""

from datetime import datetime

import pytest

from harken.data.times import DATE_FORMATS, parse_times
from harken.errors import BadInput

DAYS = [datetime(2019, 12, 31), datetime(2020, 1, 30), datetime(2021, 2, 13), datetime(2021, 11, 25)]


def parse(*texts):
    return parse_times([(text, f"a.csv:{n}") for n, text in enumerate(texts, 2)], "date")


@pytest.mark.parametrize(
    "form", [*DATE_FORMATS, "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y", "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p"]
)
def test_dates_of_every_format_are_in_order(form):
    days = DAYS[::2] if "%d" not in form and "%m" not in form else DAYS
    times = parse(*(day.strftime(form) for day in days))
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_numbers_are_times():
    assert parse("3", "1e2", " -4 ") == [3.0, 100.0, -4.0]


def test_a_date_with_a_time_zone_is_compared_with_one_in_utc():
    assert parse("2024-03-31T12:00:00+02:00", "2024-03-31T10:00:00Z", "2024-03-31 10:00") == [1711879200.0] * 3


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("2024-03-01", "soon"), r"a.csv:3: 'soon' is not an ISO date .data.time = 'date'.*; fix the row"),
        (("2024-03-01", "2024-02-30"), r"a.csv:3: '2024-02-30' is not an ISO date"),
        (("31.03.2024", "", "30.03.2024"), r"a.csv:3: the time is empty"),
        (("31.03.2024", "2024-03-30", "29.03.2024"), r"a.csv:3: '2024-03-30' is not a date such as 31.03.2024"),
        (("03/04/2021", "05/06/2021"), r"a.csv:2: '03/04/2021' may start with the day or the month"),
        (("1", "nan"), r"a.csv:3: 'nan' is not a number"),
        (("yesterday", "today"), r"a.csv:2: 'yesterday' is not an ISO date"),
    ],
)
def test_an_unreadable_time_is_named_with_its_line(texts, message):
    with pytest.raises(BadInput, match=message):
        parse(*texts)


def test_one_day_above_twelve_decides_the_order_of_day_and_month():
    assert parse("03/04/2021", "13/04/2021") == parse("2021-04-03", "2021-04-13")
    assert parse("03/04/2021", "04/13/2021") == parse("2021-03-04", "2021-04-13")
