"""A few shapes as SVG: boxes, arrows and rows of bytes, readable on light and on dark pages.

A picture is a text file that browsers, GitHub and editors show.  Colours follow the reader's theme by a media query,
and nothing is fetched.  Lengths are in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2430; }
  .title { font-weight: 600; }
  .small { font-size: 12px; fill: #5b6472; }
  .mono { font-family: ui-monospace, monospace; font-size: 12px; }
  .cell { font-family: ui-monospace, monospace; font-size: 11px; }
  .strong { font-weight: 700; }
  .box { fill: #f4f6fb; stroke: #8a94a6; }
  .main { fill: #e3e8fb; stroke: #4c5fc4; }
  .disk { fill: #e5f4ea; stroke: #3b8f5a; }
  .warn { fill: #fdeed8; stroke: #c9822b; }
  .arrow { stroke: #5b6472; fill: none; stroke-width: 1.5; }
  .head { fill: #5b6472; }
  .thin { stroke-width: 1; opacity: 0.6; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9f0; } .small { fill: #a7b0c0; }
    .box { fill: #262b36; stroke: #6b7587; } .main { fill: #2b3468; stroke: #8c9cf0; }
    .disk { fill: #1f3d2b; stroke: #5fb880; } .warn { fill: #4a3616; stroke: #e0a456; }
    .arrow { stroke: #a7b0c0; } .head { fill: #a7b0c0; }
  }
"""


class Picture:
    """A drawing with a title that screen readers say."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, lines: Sequence[str], kind: str = "box") -> None:
        """A rectangle with centred lines, of which the first is its title."""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6"/>')
        step = 18
        top = y + h / 2 - step * (len(lines) - 1) / 2 + 5
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + number * step, line, "title" if number == 0 else "small")

    def rect(self, x: float, y: float, w: float, h: float, kind: str = "box") -> None:
        """A rectangle without words."""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}"/>')

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        """A line through some points, without a head."""
        path = " ".join(f"{'L' if number else 'M'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
        self._parts.append(f'<path class="arrow thin" d="{path}"/>')

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        """One line; `y` is its base line."""
        name = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text{name} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def arrow(self, points: Sequence[tuple[float, float]], label: str = "", *, both: bool = False) -> None:
        """A line through some points with a head at its end; the label stands at its middle."""
        path = " ".join(f"{'M' if number == 0 else 'L'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
        start = ' marker-start="url(#head)"' if both else ""
        self._parts.append(f'<path class="arrow" d="{path}" marker-end="url(#head)"{start}/>')
        if label:
            (x1, y1), (x2, y2) = points[len(points) // 2 - 1], points[len(points) // 2]
            level = abs(y1 - y2) < 1
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
            self.text(x if level else x + 8, y - 6 if level else y + 4, label, "small", "middle" if level else "start")

    def fields(self, x: float, y: float, scale: float, fields: Sequence[tuple[str, int]], kind: str = "main") -> float:
        """A row of fields as wide as their bytes; the x behind the last.  Names that do not fit are put above."""
        for name, size in fields:
            w = size * scale
            self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="34"/>')
            if len(name) * 7.4 + 6 <= w:
                self.text(x + w / 2, y + 21, name, "mono")
            else:
                middle = x + w / 2
                self._parts.append(
                    f'<text class="mono" text-anchor="start" transform="translate({middle:g} {y - 6:g}) rotate(-35)">'
                    f"{escape(name)}</text>"
                )
            self.text(x + w / 2, y + 50, str(size), "small")
            x += w
        return x

    def svg(self) -> str:
        """The text of the file."""
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">\n'
            f"<title>{escape(self._title)}</title>\n<style>{STYLE}</style>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
            'orient="auto-start-reverse"><path class="head" d="M0 0L10 5L0 10z"/></marker></defs>\n'
        )
        return head + "\n".join(self._parts) + "\n</svg>\n"
