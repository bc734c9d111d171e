"""Graphs: work captured once on a stream, and replayed with one call.

A replay repeats the captured launches and copies on the same addresses; new inputs are written
into the same tensors before it. On a GPU a graph is a CUDA graph of the driver, on the host target
a list that C++ runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ruda_runtime import _native
from ruda_runtime.errors import RudaTypeError
from ruda_runtime.streams import Stream, current_stream
from ruda_runtime.streams import stream as use_stream


class Graph:
    """Captured work; made by ``Graph.capture()``.

    A graph keeps all memory that its work refers to, until ``close()``: blocks of the pool count as
    allocated so long, even when their tensors are gone.
    """

    def __init__(self) -> None:
        self._native = _native.Graph()

    @classmethod
    @contextmanager
    def capture(cls, stream: Stream | None = None) -> Iterator[Graph]:
        """Capture the work of the ``with`` block on ``stream`` (default: the current one).

        The stream is the current one inside the block. Launches of kernels and copies between
        tensors are noted and not run; allocating works as always, except that memory freed inside
        the block is not used again in it. An exception in the block ends the capture: nothing of
        it runs, the graph is closed and the stream works as before.

        Raises:
            RudaTypeError: ``stream`` is no Stream.
            RudaRuntimeError: the calling thread captures already (captures do not nest), or
                another thread captures the stream. Inside the block: waiting for the stream or an
                event of it, events recorded or waited for on it, elements read by or written from
                the host, work for another stream, launches that give a number back to the host.
        """
        target = current_stream() if stream is None else stream
        if not isinstance(target, Stream):
            raise RudaTypeError(f"[graph] stream: got {type(target).__name__}, wanted a Stream")
        target._check_open("graph")
        made = cls()
        with use_stream(target):
            made._native.begin(target.id)
            try:
                yield made
            except BaseException:
                made._native.abandon()
                raise
            made._native.end()

    @property
    def nodes(self) -> tuple[str, ...]:
        """What a replay does, in the order of submission: names of kernels, ``"copy"``, ``"fill"``.

        ``"foreign"`` stands for work that other libraries submitted to the captured CUDA stream.

        Raises:
            RudaRuntimeError: the graph is closed or being captured.
        """
        return tuple(self._native.nodes())

    def replay(self, stream: Stream | None = None) -> None:
        """Do the captured work once more, on ``stream`` (default: the current one).

        Replays of one graph follow each other, whichever streams they are on. The first error
        ends the replay; it is raised as that of any work of the stream, with the node's number.

        Raises:
            RudaTypeError: ``stream`` is no Stream.
            RudaRuntimeError: the graph is closed or being captured, or the stream is.
        """
        target = current_stream() if stream is None else stream
        if not isinstance(target, Stream):
            raise RudaTypeError(f"[graph] stream: got {type(target).__name__}, wanted a Stream")
        target._check_open("graph")
        self._native.replay(target.id)

    def update(self, other: Graph) -> None:
        """Replay with the arguments of ``other`` from now on; ``other`` stays as it is.

        Raises:
            RudaTypeError: ``other`` is no Graph.
            RudaValueError: its nodes are not the same kernels and copies in the same order.
            RudaRuntimeError: one of the two is closed or being captured, or the driver cannot
                update the node.
        """
        if not isinstance(other, Graph):
            raise RudaTypeError(f"[graph] update: got {type(other).__name__}, wanted a Graph")
        self._native.update(other._native)

    def close(self) -> None:
        """Let go of the memory, after replays in flight. Closing twice is allowed.

        A graph that is no longer referenced is closed.
        """
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether the graph was closed, or its capture ended with an exception."""
        return self._native.closed

    def __repr__(self) -> str:
        return f"Graph({'closed' if self.closed else 'open'})"
