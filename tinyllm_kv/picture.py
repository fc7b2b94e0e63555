"""Pictures of a pool: a cell a block, or one for several blocks where there are more than fit."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 64, 32  # cells of a line, lines at most

# The states as C numbers them: free, used, cached.
_NAMES = ("free", "used", "cached")
_SIGNS = ".#o"
_COLOURS = ("#e4e4e4", "#d9822b", "#5b8fc7")
_BUSY = np.array([0, 2, 1], np.uint8)  # of the blocks of a cell the busiest is shown: used, cached, free


def _lines(states: NDArray[np.uint8]) -> tuple[list[list[int]], str]:
    """Return the cells' states, line by line, and what to say of their scale."""
    a_cell = -(-len(states) // (WIDTH * HEIGHT))
    busiest = np.maximum.reduceat(_BUSY[states], np.arange(0, len(states), a_cell))
    cells = _BUSY[busiest].tolist()  # its own inverse
    lines = [cells[i : i + WIDTH] for i in range(0, len(cells), WIDTH)]
    return lines, "" if a_cell == 1 else f", {a_cell} blocks a cell"


def text(states: NDArray[np.uint8]) -> str:
    """Draw uint8 ``[n_blocks]`` states in characters, with a legend that counts them."""
    lines, scale = _lines(states)
    counts = np.bincount(states, minlength=3)
    legend = "  ".join(f"{_SIGNS[state]} {_NAMES[state]} {counts[state]}" for state in range(3))
    return "\n".join(["".join(_SIGNS[state] for state in line) for line in lines] + [legend + scale])


def html(states: NDArray[np.uint8]) -> str:
    """Draw the same in colours, as HTML without scripts or styles of its own."""
    lines, scale = _lines(states)
    counts = np.bincount(states, minlength=3)
    drawn = "<br>".join(
        "".join(_coloured(state, len(list(run))) for state, run in groupby(line)) for line in lines
    )
    legend = " ".join(f"{_coloured(state, 2)} {_NAMES[state]} {counts[state]}" for state in range(3))
    return f'<div style="font-family:monospace;line-height:1.1">{drawn}</div><div>{legend}{scale}</div>'


def _coloured(state: int, n: int) -> str:
    return f'<span style="background:{_COLOURS[state]}">{"&nbsp;" * n}</span>'
