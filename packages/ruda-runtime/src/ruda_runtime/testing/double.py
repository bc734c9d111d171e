"""Choosing, loading and asking the driver double."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruda_runtime.errors import DeviceError, RudaValueError

LIBRARY = Path(__file__).with_name("libcuda.so.1")
PREFIX = "RUDA_DOUBLE_"

_loaded: ctypes.CDLL | None = None


def use_driver_double(
    *,
    compute_capability: tuple[int, int] = (9, 0),
    memory: int = 8 << 30,
    devices: int = 1,
    driver_version: int = 13040,
    record_only: bool = False,
    seed: int = 0,
    delay_us: int = 0,
    shuffle: bool = True,
    leaks: bool = True,
    python: str | None = None,
) -> None:
    """Make the driver double this process's CUDA driver; call it before the first use of CUDA.

    The settings go to the environment (``RUDA_DOUBLE_*``), so that child processes have them too;
    ``RUDA_CUDA_DRIVER`` becomes ``double`` and ``RUDA_TARGET``, where it is not set, ``cuda``.

    Args:
        compute_capability: major and minor version of the pretended GPU.
        memory: bytes of device memory; it becomes real when it is allocated.
        devices: number of GPUs, 0 to 8; with 0, ``cuInit`` finds none.
        driver_version: as ``cuDriverGetVersion`` gives it, 13040 for 13.4; newer entry points and
            newer PTX are refused.
        record_only: check launches and do not run them; for measuring overheads.
        seed: of the programs' order, of the delays and of the nodes' order in graphs.
        delay_us: the longest random pause before each piece of a stream's work, in microseconds.
        shuffle: run the programs of a grid in random order; False: in ascending order.
        leaks: write what is alive at exit to stderr.
        python: the interpreter of the server; default: the running one.

    Raises:
        DeviceError: a CUDA driver is loaded already, or the double with other settings.
    """
    settings = {
        "COMPUTE_CAPABILITY": f"{compute_capability[0]}.{compute_capability[1]}",
        "MEMORY": str(memory),
        "DEVICES": str(devices),
        "DRIVER_VERSION": str(driver_version),
        "RECORD_ONLY": str(int(record_only)),
        "SEED": str(seed),
        "DELAY_US": str(delay_us),
        "SHUFFLE": str(int(shuffle)),
        "LEAKS": str(int(leaks)),
    }
    if python is not None:
        settings["PYTHON"] = python
    wanted = {PREFIX + name: value for name, value in settings.items()}
    if _loaded is not None:
        different = [name for name, value in wanted.items() if os.environ.get(name) != value]
        if different:
            raise DeviceError(
                f"[use_driver_double] the double is loaded with another {different[0]}: "
                f"got {wanted[different[0]]}, has {os.environ.get(different[0])}; a process has "
                "one driver, so use a fresh process"
            )
    os.environ.update(wanted)
    os.environ["RUDA_CUDA_DRIVER"] = "double"
    os.environ.setdefault("RUDA_TARGET", "cuda")
    load_driver_double()


def load_driver_double() -> ctypes.CDLL:
    """Load the double as the process's ``libcuda.so.1``, once, with the environment's settings.

    Raises:
        DeviceError: another CUDA driver is loaded already, or the package was built without the
            double.
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    try:
        other = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        pass
    else:
        if not hasattr(other, "ruda_double_last_report"):
            raise DeviceError(
                "[use_driver_double] a CUDA driver is loaded in this process already: choose the "
                "double before the first use of CUDA"
            )
    if not LIBRARY.exists():
        raise DeviceError(f"[use_driver_double] {LIBRARY.name} is not beside ruda_runtime.testing")
    # /proc/self/exe would lose the virtual environment, so the library cannot find out by itself.
    if os.environ.setdefault(PREFIX + "PYTHON", sys.executable) == sys.executable:
        # The server imports kernels by the names of their modules.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        os.environ.setdefault(PREFIX + "PYTHONPATH", path)
    library = ctypes.CDLL(str(LIBRARY), mode=ctypes.RTLD_GLOBAL)
    library.ruda_double_last_report.restype = ctypes.c_char_p
    library.ruda_double_report.restype = ctypes.c_char_p
    library.ruda_double_report.argtypes = (ctypes.c_int64,)
    library.ruda_double_report_count.restype = ctypes.c_int64
    library.ruda_double_clear_reports.restype = None
    library.ruda_double_wait.restype = None
    library.ruda_double_counter.restype = ctypes.c_int64
    library.ruda_double_counter.argtypes = (ctypes.c_char_p,)
    library.ruda_double_counter_name.restype = ctypes.c_char_p
    library.ruda_double_counter_name.argtypes = (ctypes.c_int64,)
    library.ruda_double_describe.argtypes = (ctypes.c_char_p,)
    _loaded = library
    return library


def _library() -> ctypes.CDLL:
    if _loaded is None:
        raise DeviceError("[ruda_runtime.testing] the driver double is not loaded in this process")
    return _loaded


def image_digest(image: bytes) -> str:
    """The name of a kernel image: SHA-256 of its bytes, in hexadecimal.

    A cubin's length is in its ELF header, PTX ends before its NUL; what lies behind does not count.
    """
    return hashlib.sha256(image[: _image_length(image)]).hexdigest()


def _image_length(image: bytes) -> int:
    if not image.startswith(b"\x7fELF"):
        end = image.find(b"\0")
        return len(image) if end < 0 else end
    programs, sections = struct.unpack_from("<QQ", image, 32)
    header, program_size, program_count, section_size, section_count = struct.unpack_from(
        "<5H", image, 52
    )
    length = max(
        64, header, programs + program_size * program_count, sections + section_size * section_count
    )
    for i in range(section_count):
        kind = struct.unpack_from("<I", image, sections + i * section_size + 4)[0]
        offset, size = struct.unpack_from("<QQ", image, sections + i * section_size + 24)
        if kind != 8:  # a section without contents in the file
            length = max(length, offset + size)
    return length


def describe(image: bytes, description: Mapping[str, Any]) -> None:
    """Tell the double what a kernel of an image is; before the module is loaded.

    Args:
        image: the cubin or PTX as it will be loaded.
        description: ``entry`` (symbol), ``function`` (``module:name`` of the ``@triton.jit``
            function), ``parameters`` (in the order of the Python signature: ``name`` and ``type``,
            ``*fp32``, ``i32``, ..., or ``constexpr`` with its ``value``), and optionally ``name``
            (in reports), ``source`` (the file of the function), ``divisible_by_16`` (names),
            ``scratch_pointers``, ``num_warps`` (4), ``threads_per_warp`` (32), ``shared`` (bytes).

    Raises:
        RudaValueError: a member is missing or has a type that the double does not know.
    """
    text = json.dumps({"image": image_digest(image), **description})
    if _library().ruda_double_describe(text.encode()) != 0:
        raise RudaValueError(last_report())


def last_report() -> str:
    """The newest violation in words; empty where there was none."""
    return str(_library().ruda_double_last_report().decode(errors="replace"))


def reports() -> list[str]:
    """The violations since the last ``clear_reports()``, the first thousand of them."""
    library = _library()
    found: list[str] = []
    while (text := library.ruda_double_report(len(found))) is not None:
        found.append(text.decode(errors="replace"))
    return found


def wait() -> None:
    """Return when all submitted work is done; streams keep their errors."""
    _library().ruda_double_wait()


def clear_reports() -> None:
    """Forget all violations."""
    _library().ruda_double_clear_reports()


def counters() -> dict[str, int]:
    """Work done so far (``launches``, ``copies``, …) and objects alive (``live_streams``, …)."""
    library = _library()
    found: dict[str, int] = {}
    while (name := library.ruda_double_counter_name(len(found))) is not None:
        found[name.decode()] = library.ruda_double_counter(name)
    return found
