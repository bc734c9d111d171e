"""Turning Ctrl-C into a wish that the training loop can grant after a whole step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class SignalGuard:
    """While entered, the first SIGINT or SIGTERM is only noted in `received`.

    The second one acts at once (`KeyboardInterrupt`, or the process ends). Outside the main
    thread, where Python allows no handlers, signals keep their usual effect.
    """

    def __init__(self, signals: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.signals = signals
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not installed from Python and cannot be put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
