"""The live pages of `kafkalog ui`: the report's pages, kept current, with a browser of records.

They are served on loopback, guarded by a token, and change nothing in the directories.  Needs `kafkalog[ui]`.
"""

from __future__ import annotations
