"""Finds sentences that are hard to read: `python -m tests.prose [PATH ...]` lists them.

The text comes from docstrings, comments, messages (strings that are raised, logged or given to click as help) and
Markdown pages.  Code, tables' rules and links' targets are removed first.  `text.py` extracts the sentences and
`rules.py` judges them.
"""

from tests.prose.rules import Finding, findings
from tests.prose.text import Sentence, sentences

__all__ = ["Finding", "Sentence", "findings", "sentences"]
