"""Surveys of log directories: their numbers as tables, as pictures, and as one page of HTML.

`survey` reads directories, without a lock, also while a broker is running.  `tables` has the columns of its tables.
`page` makes one file of them, with pictures, which any browser opens offline; only this needs `kafkalog[report]`.
"""

from __future__ import annotations

__all__ = ["page", "survey", "tables"]


def __dir__() -> list[str]:
    return __all__
