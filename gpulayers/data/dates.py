"""Dates in many styles and their ISO 8601 form: a mapping to learn, made from nothing but the calendar.

    the day after 2 March 2024     ->     2024-03-03

Each pair is a function of (seed, index). A tenth of all days, by a hash of the day alone, is held out: no style of
them is ever trained on. The years are 1969 to 2068, the ones that POSIX reads from two digits; days come before months
wherever both are numbers. No name comes from the locale: those of `calendar` change with it.
"""

import calendar
import functools
import hashlib
from collections.abc import Callable
from datetime import date, timedelta

from gpulayers.data.batches import DATA_CALL
from gpulayers.data.pairs import Pair
from gpulayers.random import philox
from gpulayers.step import Key

FIRST, LAST = date(1969, 1, 1), date(2068, 12, 31)
HELD_OUT = 10  # one day of so many

MONTHS = (
    "", "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ROMAN = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii")
ORDINALS = (
    "", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    "twentieth", "twenty-first", "twenty-second", "twenty-third", "twenty-fourth", "twenty-fifth", "twenty-sixth",
    "twenty-seventh", "twenty-eighth", "twenty-ninth", "thirtieth", "thirty-first",
)  # fmt: skip


def month(d: date) -> str:
    return MONTHS[d.month]


def weekday(d: date) -> str:
    return WEEKDAYS[d.weekday()]


def ordinal(day: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    suffix = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


def day_month_year(d: date) -> str:
    return f"{d.day} {month(d)} {d.year}"


def weekday_of_month(d: date) -> str:
    """The last week of a month wins over its number."""
    last = d.day > calendar.monthrange(d.year, d.month)[1] - 7
    return f"{'last' if last else ORDINALS[(d.day + 6) // 7]} {weekday(d)} of {month(d)} {d.year}"


# What each style writes for 3 March 2024, a Sunday, is its name.
STYLES: dict[str, Callable[[date], str]] = {
    "3 March 2024": day_month_year,
    "03 Mar 2024": lambda d: f"{d.day:02} {month(d)[:3]} {d.year}",
    "3-Mar-24": lambda d: f"{d.day}-{month(d)[:3]}-{d.year % 100:02}",
    "3 March '24": lambda d: f"{d.day} {month(d)} '{d.year % 100:02}",
    "3rd of March 2024": lambda d: f"{ordinal(d.day)} of {month(d)} {d.year}",
    "the third of March 2024": lambda d: f"the {ORDINALS[d.day]} of {month(d)} {d.year}",
    "March 3, 2024": lambda d: f"{month(d)} {d.day}, {d.year}",
    "March 3rd, 2024": lambda d: f"{month(d)} {ordinal(d.day)}, {d.year}",
    "March the third, 2024": lambda d: f"{month(d)} the {ORDINALS[d.day]}, {d.year}",
    "Mar 3 2024": lambda d: f"{month(d)[:3]} {d.day} {d.year}",
    "2024 Mar 3": lambda d: f"{d.year} {month(d)[:3]} {d.day}",
    "Sunday, 3 March 2024": lambda d: f"{weekday(d)}, {day_month_year(d)}",
    "Sunday, March 3, 2024": lambda d: f"{weekday(d)}, {month(d)} {d.day}, {d.year}",
    "Sunday the 3rd of March 2024": lambda d: f"{weekday(d)} the {ordinal(d.day)} of {month(d)} {d.year}",
    "Sun 3 Mar 24": lambda d: f"{weekday(d)[:3]} {d.day} {month(d)[:3]} {d.year % 100:02}",
    "Sun, 03 Mar 2024": lambda d: f"{weekday(d)[:3]}, {d.day:02} {month(d)[:3]} {d.year}",
    "03/03/2024": lambda d: f"{d.day:02}/{d.month:02}/{d.year}",
    "3/3/24": lambda d: f"{d.day}/{d.month}/{d.year % 100:02}",
    "3.3.2024": lambda d: f"{d.day}.{d.month}.{d.year}",
    "3.iii.2024": lambda d: f"{d.day}.{ROMAN[d.month]}.{d.year}",
    "2024/3/3": lambda d: f"{d.year}/{d.month}/{d.day}",
    "20240303": lambda d: f"{d.year}{d.month:02}{d.day:02}",
}

# These ask for arithmetic on the calendar. A network needs many of them to work that out.
ARITHMETIC: dict[str, Callable[[date], str]] = {
    "the day after 2 March 2024": lambda d: f"the day after {day_month_year(d - timedelta(1))}",
    "the day before 4 March 2024": lambda d: f"the day before {day_month_year(d + timedelta(1))}",
    "day 63 of 2024": lambda d: f"day {d.timetuple().tm_yday} of {d.year}",
    "first Sunday of March 2024": weekday_of_month,
}
ALL_STYLES = STYLES | ARITHMETIC


def is_held_out(d: date) -> bool:
    """Whether no pair to train on is about this day."""
    return int.from_bytes(hashlib.sha256(d.isoformat().encode()).digest()[:8], "little") % HELD_OUT == 0


@functools.cache
def days(held_out: bool) -> list[date]:
    """All days of one part, in order."""
    every = (FIRST + timedelta(n) for n in range((LAST - FIRST).days + 1))
    return [d for d in every if is_held_out(d) == held_out]


def date_pair(seed: int, index: int, held_out: bool = False, arithmetic: float = 0.01) -> Pair:
    """Pair number `index` to train on, or of the held-out days: day, style and (in a quarter) lower case are drawn.

    arithmetic: share of the pairs whose style is one of `ARITHMETIC`.
    """
    words = [int(word) for word in philox(Key(seed, index, DATA_CALL, 0), 0).random_raw(4)]

    def drawn(n: int) -> int:
        return words.pop() * n >> 64  # floor(r n / 2^64)

    possible = days(held_out)
    d = possible[drawn(len(possible))]
    styles = list((ARITHMETIC if drawn(1 << 32) < arithmetic * 2**32 else STYLES).values())
    text = styles[drawn(len(styles))](d)
    return Pair(text if drawn(4) else text.lower(), d.isoformat())


def date_symbols() -> tuple[list[str], list[str]]:
    """All characters of the sources, and of the targets."""
    leap_year = [date(2024, 1, 1) + timedelta(n) for n in range(366)]
    texts = [style(d) for d in leap_year for style in ALL_STYLES.values()]
    return sorted(set("0123456789").union(*texts, *(text.lower() for text in texts))), sorted("0123456789-")


def date_digest(seed: int, arithmetic: float = 0.01) -> str:
    """Of the pairs that a run sees, by a thousand of them: another version of this file has another."""
    pairs = [date_pair(seed, index, held_out, arithmetic) for held_out in (False, True) for index in range(500)]
    return hashlib.sha256(repr((arithmetic, pairs)).encode()).hexdigest()
