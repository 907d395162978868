"""Docstrings as the site shows them: `Example:` is a section, and internal methods are omitted."""

from __future__ import annotations

import re
from typing import Any

import griffe


class PublicApi(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Griffe knows the section as "Examples:"; it shows "Example:" as running text."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Removes the names in `_inner`, which `dir()` does not list either."""
        inner = cls.members.get("_inner")
        for name in re.findall(r"'(\w+)'", str(getattr(inner, "value", ""))):
            cls.members.pop(name, None)
