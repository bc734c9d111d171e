"""The tuner: looks decisions up, makes them by measurement, and keeps them."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ruda_runtime import _native
from ruda_runtime.cachefiles import cache_directory
from ruda_runtime.devices import device_of
from ruda_runtime.errors import RudaValueError, UnsupportedError
from ruda_runtime.tune.errors import TuningError, WrongNumbersError
from ruda_runtime.tune.fingerprint import fingerprint
from ruda_runtime.tune.measure import Measurement, choose, measure_pairs
from ruda_runtime.tune.policy import Policy, check_mode, mode_from_environment
from ruda_runtime.tune.records import FOLDER, DiskRecords, MemoryRecords, Record
from ruda_runtime.tune.timing import TIMERS, Timer

Run = Callable[[str], Any]
_T = TypeVar("_T")

_tuning = threading.Lock()  # one tune at a time in the process: two would time each other
_tuners: weakref.WeakSet[Tuner] = weakref.WeakSet()


class Tuner:
    """Chooses among candidates of one operation by the rules of a policy, and remembers.

    A program needs one, ``ruda_runtime.tune.tuner()``; several are independent but for the rule of
    one tune at a time in a process. All methods may be called from any thread.

    Args:
        policy: the rules; by default ``Policy()``.
        mode: one of ``MODES``; by default what RUDA_AUTOTUNE says, else ``"explore"``.
        timer: measures one run; by default that of the current target (``TIMERS``).
        disk: whether records are read from and written to a folder.
        folder: that folder; by default ``tuning`` in the cache's (RUDA_CACHE_DIR).
        clock: seconds, for the budget.
        now: seconds since 1970, for the age of records.
        environment: in place of ``os.environ``.

    Raises:
        RudaValueError: an unknown mode.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        mode: str | None = None,
        *,
        timer: Timer | None = None,
        disk: bool = True,
        folder: Path | str | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self.policy = Policy() if policy is None else policy
        self.mode = (
            mode_from_environment(self._environment) if mode is None else check_mode(mode, "mode")
        )
        self._timer = timer
        self._clock = clock
        self._now = now
        place = Path(folder) if folder is not None else cache_directory(self._environment)
        if place is not None and folder is None:
            place = place / FOLDER
        self._disk = DiskRecords(
            place if disk else None, self.policy.max_records, self.policy.max_age_seconds, now
        )
        self._memory = MemoryRecords(self.policy.max_records)
        self._absent: set[Any] = set()  # keys that the disk has no record of, in cache_only
        self._counts = dict.fromkeys(("memory", "disk", "tuned", "busy", "reference"), 0)
        self._counting = threading.Lock()
        _tuners.add(self)

    @property
    def folder(self) -> Path | None:
        """Where records are kept on disk; ``None``: in memory only."""
        return self._disk.folder

    def execute(
        self,
        kernel: str,
        key: Mapping[str, Any],
        reference: str,
        candidates: Sequence[str],
        run: Run,
        trial: Run | None = None,
    ) -> Any:
        """Choose, then run the choice once and return its result.

        An exception of that run passes through: what failed is not computed again on another path.

        Args:
            trial: in place of ``run`` while candidates are tried, for an operation that reads what
                it writes. It must leave the operands as they are and do the same work.

        The rest, and the errors of tuning, are as in ``choose``.
        """
        choice = self.choose(kernel, key, reference, candidates, run if trial is None else trial)
        return run(choice)

    def choose(
        self,
        kernel: str,
        key: Mapping[str, Any],
        reference: str,
        candidates: Sequence[str],
        run: Run,
    ) -> str:
        """The name of the candidate to run: from memory, from the disk, or measured now.

        Args:
            kernel: the operation, with a number that changes when its candidates do, for example
                ``"gemm.matmul/1"``.
            key: what the choice depends on (shapes, strides, dtypes, options): strings, numbers,
                booleans, None, and tuples of them.
            reference: the candidate that is always right; it is taken where nothing better is
                known: in the modes ``disabled`` and (without a record) ``cache_only``, and while
                another tune is running in the process.
            candidates: the other ones, the most promising first.
            run: runs the candidate of that name on the caller's operands and returns its outputs
                (a Tensor, an array, or a tuple, list or dict of them). Called more than once where
                the choice is measured; two calls must give the same numbers.

        Raises:
            RudaValueError: a name that occurs twice.
            WrongNumbersError: a candidate gave other numbers than the reference.
            TuningError: a candidate failed. UnsupportedError does not count: that candidate is
                left out. Nothing is recorded in either case.

        An exception of the reference passes through unchanged.
        """
        if self.mode == "disabled":
            self._count("reference")
            return reference
        known = (kernel, tuple(key.items()), reference, tuple(candidates), _native.num_threads())
        record = self._recall(known)
        if record is None:
            record = self._look_up(known, kernel, key, reference, candidates, run)
        return reference if record is None else record.choice

    def records(self) -> list[Record]:
        """The records in memory, those put in first at the beginning."""
        return self._memory.values()

    def statistics(self) -> dict[str, int]:
        """How calls were answered so far, by numbers of calls.

        Keys: ``memory`` and ``disk`` (by a record), ``tuned`` (measured), ``busy`` (the reference,
        while another tune ran), ``reference`` (the reference, because of the mode).
        """
        with self._counting:
            return dict(self._counts)

    def forget(self) -> None:
        """Empty the table in memory; the disk keeps its records."""
        self._memory.clear()
        self._absent.clear()

    def _count(self, how: str) -> None:
        with self._counting:
            self._counts[how] += 1

    def _recall(self, known: Any) -> Record | None:
        record = self._memory.get(known)
        if record is None:
            return None
        if record.fresh(self._now(), self.policy.max_age_seconds):
            self._count("memory")
            return record
        self._memory.remove(known)
        return None

    def _look_up(
        self,
        known: Any,
        kernel: str,
        key: Mapping[str, Any],
        reference: str,
        candidates: Sequence[str],
        run: Run,
    ) -> Record | None:
        """From the disk or by measurement; ``None``: take the reference."""
        if known in self._absent:
            self._count("reference")
            return None
        full = self._full_key(kernel, key, reference, candidates)
        record = self._disk.load(full)
        if record is not None:
            self._count("disk")
            self._memory.put(known, record)
            return record
        if self.mode == "cache_only":
            if len(self._absent) >= 4 * self.policy.max_records:
                self._absent.clear()
            self._absent.add(known)
            self._count("reference")
            return None
        turn = _tuning  # a fork while it is held puts another one in its place
        if not turn.acquire(blocking=False):
            self._count("busy")
            return None
        try:
            record = self._recall(known)  # another thread may just have finished it
            if record is not None:
                return record
            record = self._tune(full, run)
            self._memory.put(known, record)
        finally:
            turn.release()
        self._count("tuned")
        self._disk.store(record)
        return record

    def _full_key(
        self, kernel: str, key: Mapping[str, Any], reference: str, candidates: Sequence[str]
    ) -> dict[str, Any]:
        names = [reference, *candidates]
        if len(set(names)) != len(names):
            raise RudaValueError(f"[{kernel}] candidates: got {names}, wanted different names")
        return {
            "kernel": kernel,
            "key": dict(key),
            "reference": reference,
            "candidates": list(candidates),
            "policy": self.policy.key(),
            "environment": fingerprint(device_of(), self._environment),
        }

    def _tune(self, full: Mapping[str, Any], run: Run) -> Record:
        from ruda_runtime.tune import validate  # NumPy, which the warm path does not need

        policy, reference = self.policy, full["reference"]
        deadline = self._clock() + policy.budget_seconds
        timer = self._timer if self._timer is not None else TIMERS[device_of().target]()
        names = full["candidates"][: policy.max_candidates]
        left_out = dict.fromkeys(full["candidates"][policy.max_candidates :], "max_candidates")
        measured: dict[str, Measurement] = {}

        wanted = None
        if policy.validate:
            outputs = validate.outputs_of(run(reference))
            if validate.size_of(outputs) > policy.readback_limit:
                left_out.update(dict.fromkeys(names, "readback_limit"))
                names = []
            else:
                wanted = validate.read_back(outputs)
            del outputs

        def out_of_time() -> bool:
            return self._clock() >= deadline

        for name in names:
            if out_of_time():
                left_out[name] = "budget"
                continue
            attempt = _Attempt(full["kernel"], reference, name, run, timer)
            try:
                if wanted is not None:
                    attempt.check_numbers(wanted, policy)
                measurement = measure_pairs(
                    lambda: timer.measure(lambda: run(reference)),
                    attempt.measure,
                    policy,
                    out_of_time,
                )
            except UnsupportedError:
                left_out[name] = "unsupported"
                continue
            if measurement is None:
                left_out[name] = "budget"
            else:
                measured[name] = measurement
        choice = choose(reference, measured, policy)
        return Record(full, choice, self._now(), measured, left_out)


class _Attempt:
    """One candidate while it is tried: its failures carry its name."""

    def __init__(self, kernel: str, reference: str, name: str, run: Run, timer: Timer) -> None:
        self._kernel, self._reference, self._name = kernel, reference, name
        self._run, self._timer = run, timer

    def check_numbers(self, wanted: list[Any], policy: Policy) -> None:
        from ruda_runtime.tune import validate

        def read() -> list[Any]:
            return validate.read_back(validate.outputs_of(self._run(self._name)))

        problem = validate.difference(self._guard(read), wanted, policy)
        if problem is not None:
            raise WrongNumbersError(
                f"[{self._kernel}] candidate {self._name!r} gives other numbers than the reference "
                f"{self._reference!r}: {problem}. {self._advice()}"
            )

    def measure(self) -> int:
        return self._guard(lambda: self._timer.measure(lambda: self._run(self._name)))

    def _guard(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except UnsupportedError:
            raise
        except Exception as error:
            raise TuningError(
                f"[{self._kernel}] candidate {self._name!r} failed while it was tried: "
                f"{type(error).__name__}: {error}. {self._advice()}"
            ) from error

    def _advice(self) -> str:
        return (
            f"Please report it; RUDA_AUTOTUNE=disabled computes with {self._reference!r} and tries "
            "no candidate"
        )


def _after_fork() -> None:
    """A thread of the parent may have held a lock that nobody in the child would release."""
    global _tuning
    _tuning = threading.Lock()
    for tuner in list(_tuners):
        tuner._counting = threading.Lock()
        tuner._memory.reset_lock()


os.register_at_fork(after_in_child=_after_fork)
