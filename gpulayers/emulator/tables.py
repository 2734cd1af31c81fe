"""The shadow tables of very large arrays: pages that are made when an access first touches them."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
PAGE_BITS = 20
DENSE = 1 << 24  # cells; smaller tables are one array


class PagedTable:
    """A table of words, 0 where nothing was entered, with the three operations that the shadow memory needs."""

    def __init__(self) -> None:
        self.pages: dict[int, Array] = {}

    def _page(self, number: int) -> Array:
        if number not in self.pages:
            self.pages[number] = np.zeros(1 << PAGE_BITS, np.int64)
        return self.pages[number]

    def take(self, cell: Array) -> Array:
        """The words of the cells."""
        page, inside = cell >> np.int64(PAGE_BITS), cell & np.int64((1 << PAGE_BITS) - 1)
        result = np.zeros(cell.shape, np.int64)
        for number in np.unique(page):
            here = page == number
            result[here] = self._page(int(number)).take(inside[here])
        return result

    def __setitem__(self, cell: Array, word: Array | int) -> None:
        page, inside = cell >> np.int64(PAGE_BITS), cell & np.int64((1 << PAGE_BITS) - 1)
        words = np.broadcast_to(word, cell.shape)
        for number in np.unique(page):
            here = page == number
            self._page(int(number))[inside[here]] = words[here]

    def repeat(self, times: int) -> PagedTable:
        """A table in which every cell stands `times` times."""
        finer = PagedTable()
        for number, words in self.pages.items():
            for part, piece in enumerate(np.split(np.repeat(words, times), times)):
                finer.pages[number * times + part] = piece
        return finer


Table = Array | PagedTable


def new_table(cells: int) -> Table:
    """A table of zeros."""
    return np.zeros(cells, np.int64) if cells <= DENSE else PagedTable()
