from typing import Any

def walked(
    source: Any, position: int, size: int, expected: int, limit: int
) -> tuple[int, int, int, bool] | None: ...
