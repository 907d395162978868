"""The places of a treemap: rectangles of given areas that fill a rectangle, each as square as possible.

This is the squarified layout of Bruls, Huizing and van Wijk.  Vega-Lite has no treemap, so the places are computed
here.  Knows only numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[float, float, float, float]  # x, y, x2, y2


def places(areas: Sequence[float], width: float, height: float) -> list[Place]:
    """Returns the place of each area, which must be positive and in descending order.  They are scaled to fill all."""
    scale = width * height / sum(areas) if areas else 0.0
    left = [area * scale for area in areas]
    x, y, x2, y2 = 0.0, 0.0, width, height
    found: list[Place] = []
    while left:
        side = min(x2 - x, y2 - y)
        count = 1
        while count < len(left) and _worst(left[: count + 1], side) <= _worst(left[:count], side):
            count += 1
        row, left = left[:count], left[count:]
        depth = sum(row) / side if side else 0.0
        at = y if x2 - x >= y2 - y else x
        for area in row:
            length = area / depth if depth else 0.0
            found.append((x, at, x + depth, at + length) if x2 - x >= y2 - y else (at, y, at + length, y + depth))
            at += length
        if x2 - x >= y2 - y:
            x = min(x + depth, x2)
        else:
            y = min(y + depth, y2)
    return found


def _worst(row: Sequence[float], side: float) -> float:
    """Returns the worst ratio of sides in a row of areas along `side`."""
    total = sum(row)
    return max(side * side * row[0] / (total * total), total * total / (side * side * row[-1])) if side else 0.0
