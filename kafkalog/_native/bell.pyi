from typing import Final, final

TIMEOUT_MAX: Final[float]

@final
class Bell:
    def release(self) -> None: ...
    def wait(self, timeout_s: float) -> bool: ...
