import calendar
import re
import subprocess
import sys
from datetime import date, datetime, timedelta

import pytest

from gpulayers.data.dates import (
    ALL_STYLES,
    ARITHMETIC,
    FIRST,
    LAST,
    MONTHS,
    ORDINALS,
    STYLES,
    WEEKDAYS,
    date_digest,
    date_pair,
    date_symbols,
    days,
    is_held_out,
)

# How `datetime` reads a style back; the others are read by `by_hand`.
FORMATS = {
    "3 March 2024": "%d %B %Y",
    "03 Mar 2024": "%d %b %Y",
    "3-Mar-24": "%d-%b-%y",
    "3 March '24": "%d %B '%y",
    "March 3, 2024": "%B %d, %Y",
    "Mar 3 2024": "%b %d %Y",
    "2024 Mar 3": "%Y %b %d",
    "Sunday, 3 March 2024": "%A, %d %B %Y",
    "Sunday, March 3, 2024": "%A, %B %d, %Y",
    "Sun 3 Mar 24": "%a %d %b %y",
    "Sun, 03 Mar 2024": "%a, %d %b %Y",
    "03/03/2024": "%d/%m/%Y",
    "3/3/24": "%d/%m/%y",
    "3.3.2024": "%d.%m.%Y",
    "2024/3/3": "%Y/%m/%d",
    "20240303": "%Y%m%d",
    "day 63 of 2024": "day %j of %Y",
}
EVERY_DAY = [FIRST + timedelta(n) for n in range((LAST - FIRST).days + 1)]


def read(text: str, format: str) -> date:
    return datetime.strptime(text, format).date()


def by_hand(name: str, text: str) -> date:
    """The day that `text` names, found in another way than it was written."""
    words = text.replace(",", "").split()
    if name.startswith("the day"):
        shift = {"after": timedelta(1), "before": timedelta(-1)}[words[2]]
        return read(" ".join(words[3:]), "%d %B %Y") + shift
    if name == "first Sunday of March 2024":
        which, weekday, _, month, year = words
        weeks = calendar.monthcalendar(int(year), list(calendar.month_name).index(month))
        all_of_them = [week[list(calendar.day_name).index(weekday)] for week in weeks]
        all_of_them = [day for day in all_of_them if day]
        index = -1 if which == "last" else ["first", "second", "third", "fourth"].index(which)
        return date(int(year), list(calendar.month_name).index(month), all_of_them[index])
    if name == "3.iii.2024":
        day, roman, year = text.split(".")
        values = {"i": 1, "v": 5, "x": 10}
        digits = [values[c] for c in roman]
        month = sum(-a if a < b else a for a, b in zip(digits, [*digits[1:], 0], strict=True))
        return date(int(year), month, int(day))
    month = next(w for w in words if w in calendar.month_name)
    named = next((w for w in words if w in ORDINALS), None)
    day = ORDINALS.index(named) if named else int(re.findall(r"(\d+)(?:st|nd|rd|th)", text)[0])
    found = read(f"{day} {month} {words[-1]}", "%d %B %Y")
    if words[0] in calendar.day_name:
        assert calendar.day_name[found.weekday()] == words[0]
    return found


@pytest.mark.parametrize("name", ALL_STYLES)
def test_every_style_reads_back_as_its_day(name):
    """Every day of three years, a leap year and both ends among them, and every 90th of all."""
    for d in [*EVERY_DAY[:366], *EVERY_DAY[-366:], *EVERY_DAY[20_088:20_454], *EVERY_DAY[::90]]:
        text = ALL_STYLES[name](d)
        assert (read(text, FORMATS[name]) if name in FORMATS else by_hand(name, text)) == d
        if "%a" in FORMATS.get(name, "").lower():  # strptime does not compare the weekday with the day
            assert text.startswith(calendar.day_name[d.weekday()][:3])


def test_a_style_is_called_what_it_writes():
    assert all(style(date(2024, 3, 3)) == name for name, style in ALL_STYLES.items())


def test_names_and_ordinals():
    assert list(MONTHS) == list(calendar.month_name)
    assert list(WEEKDAYS) == list(calendar.day_name)
    texts = [STYLES["3rd of March 2024"](date(2023, 1, d)).split()[0] for d in range(1, 32)]
    assert texts[:4] == ["1st", "2nd", "3rd", "4th"]
    assert texts[10:13] == ["11th", "12th", "13th"]
    assert texts[20:24] == ["21st", "22nd", "23rd", "24th"]
    assert texts[29:] == ["30th", "31st"]


def test_two_digit_years_mean_what_posix_says():
    for d in EVERY_DAY[::97]:
        assert datetime.strptime(f"{d.year % 100:02}", "%y").year == d.year


def test_the_locale_changes_nothing():
    code = """
import contextlib, locale
from gpulayers.data.dates import date_digest
for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "es_ES.UTF-8", "C.UTF-8"):  # the last is left where a machine has no other
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, name)
        break
print(date_digest(0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == date_digest(0)


# ------------------------------------------------------------------------------------------------- pairs


def test_a_pair_is_a_function_of_seed_and_index():
    pairs = [date_pair(3, i) for i in range(50)]
    assert pairs == [date_pair(3, i) for i in reversed(range(50))][::-1]
    assert pairs != [date_pair(4, i) for i in range(50)]
    assert pairs != [date_pair(3, i, held_out=True) for i in range(50)]
    assert date_pair(0, 0) == ("17/7/16", "2016-07-17")


def test_held_out_days_never_occur_in_training():
    held_out, trained = set(days(True)), set(days(False))
    assert held_out | trained == set(EVERY_DAY)
    assert not held_out & trained
    assert 0.09 < len(held_out) / len(EVERY_DAY) < 0.11
    assert all(is_held_out(d) for d in list(held_out)[:20])
    seen = {date_pair(1, i).target for i in range(4000)}
    measured = {date_pair(1, i, held_out=True).target for i in range(1000)}
    assert not seen & measured
    assert {date.fromisoformat(text) in held_out for text in measured} == {True}


def test_all_days_styles_and_cases_occur():
    pairs = [date_pair(0, i) for i in range(3000)]
    shapes = {re.sub(r"\d", "0", p.source) for p in pairs}
    assert len(shapes) > 400
    assert len({p.target[:4] for p in pairs}) == 100
    assert len({p.target[5:7] for p in pairs}) == 12
    assert len({p.target[8:] for p in pairs}) == 31
    worded = [p.source for p in pairs if re.search("[A-Za-z]{3}", p.source) and not p.source.startswith("day")]
    assert 0.2 < sum(text == text.lower() for text in worded) / len(worded) < 0.3


def test_arithmetic_is_a_share_of_the_pairs():
    def count(share):
        texts = [date_pair(0, i, arithmetic=share).source.lower() for i in range(2000)]
        return sum(bool(re.match("the day |day |(first|second|third|fourth|last) ", text)) for text in texts)

    assert count(0.0) == 0
    assert 5 < count(0.01) < 40
    assert 540 < count(0.3) < 660
    assert count(1.0) == 2000
    assert len(ARITHMETIC) == 4
    assert date_digest(0, 0.01) != date_digest(0, 0.02)


def test_no_source_has_two_targets():
    targets = {}
    for d in EVERY_DAY[::11]:
        for style in ALL_STYLES.values():
            assert targets.setdefault(style(d).lower(), d) == d


def test_symbols_are_those_of_all_pairs():
    sources, targets = date_symbols()
    assert len(sources) == 49
    assert "".join(targets) == "-0123456789"
    for held_out in (False, True):
        for i in range(500):
            pair = date_pair(9, i, held_out)
            assert set(pair.source) <= set(sources)
            assert set(pair.target) <= set(targets)


def test_digest():
    assert date_digest(0) == date_digest(0)
    assert date_digest(0) != date_digest(1)
