"""Quotas of a remote tier: bytes a second over windows, as a broker counts them.

Source class: RLMQuotaManager (4.4.0), whose rate is Kafka's SimpleRate.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from kafkalog._limits import LONG_MAX

if TYPE_CHECKING:
    from kafkalog.engine.files import Clock

LOOK_S = 1.0


class RLMQuotaManager:
    """At most `quota` bytes a second, over `samples` windows of `window_s` seconds.  Thread-safe.

    It uses wall-clock time, as a broker does.  If the clock is set back after the quota was used up, copying waits
    until the clock reaches the old time.
    """

    def __init__(self, clock: Clock, quota: int = LONG_MAX, samples: int = 11, window_s: int = 1) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.quota = quota
        self._samples = samples
        self._window_ms = window_s * 1000
        self._counted: deque[list[int]] = deque()  # (start of the window, bytes)

    def update_quota(self, quota: int) -> None:
        """Changes the quota from now on."""
        self.quota = quota

    def record(self, count: int) -> None:
        """Counts bytes that are sent now."""
        now = self._clock.milliseconds()
        with self._lock:
            if not self._counted or now - self._counted[-1][0] >= self._window_ms:
                self._counted.append([now, 0])
            self._counted[-1][1] += count
            while len(self._counted) > self._samples + 1:
                self._counted.popleft()

    def throttle_time_ms(self) -> int:
        """Returns how many milliseconds to wait before more is sent; 0 below the quota."""
        now = self._clock.milliseconds()
        with self._lock:
            while self._counted and now - self._counted[0][0] >= (self._samples + 1) * self._window_ms:
                self._counted.popleft()
            if not self._counted:
                return 0
            elapsed = max(now - self._counted[0][0], self._window_ms)
            total = sum(count for _, count in self._counted)
        rate = total * 1000 / elapsed
        return int((rate - self.quota) / self.quota * elapsed) if rate > self.quota else 0

    def wait_for_room(self, cancelled: threading.Event) -> None:
        """Returns once the rate is below the quota, or `cancelled` is set."""
        while self.throttle_time_ms() > 0 and not cancelled.wait(LOOK_S):
            pass
