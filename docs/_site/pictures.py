"""The pictures of the documentation: `python docs/_site/pictures.py` writes docs/pictures/*.svg.

The files are committed, so that GitHub shows them; a test compares them with what this file draws.  Byte layouts come
from the tables of the code, so that a picture cannot differ from the format.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import explained
from architecture_pictures import PICTURES as ARCHITECTURE
from drawing import Picture

PLACE = Path(__file__).parents[1] / "pictures"


def overview() -> Picture:
    """Draws the programs that use a log directory through kafkalog."""
    picture = Picture(860, 330, "Your service, an operator and Spark use log directories through kafkalog")
    users = (
        ("Your service", "kafkalog.open(...)", "append, read, transact"),
        ("An operator", "kafkalog verify ...", "inspect, recover, export"),
        ("PySpark", 'format("kafkalog")', "batch and stream"),
    )
    for number, lines in enumerate(users):
        x = 20 + number * 285
        picture.box(x, 16, 250, 84, lines)
        picture.arrow([(x + 125, 100), (x + 125, 138)])
    picture.box(20, 140, 820, 56, ("kafkalog", "Kafka's storage engine, in your process"), "main")
    picture.arrow([(430, 196), (430, 240)], both=True)
    picture.box(20, 242, 240, 70, ("Tiered storage", "S3, GCS, Azure, files"), "disk")
    picture.box(310, 242, 240, 70, ("Log directory", "the same bytes as Kafka 4.4.0"), "disk")
    picture.box(600, 242, 240, 70, ("Kafka broker", "opens the same directory"))
    picture.arrow([(310, 277), (260, 277)], both=True)
    picture.arrow([(550, 277), (600, 277)], both=True)
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {"overview": overview, **explained.PICTURES, **ARCHITECTURE}


def main() -> None:
    """Writes all pictures."""
    PLACE.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (PLACE / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
