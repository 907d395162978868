from typing import final

@final
class Collected:
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
