"""The interpreting server of the driver double: ``python -m ruda_runtime.testing.server``.

Started by the double at the first launch, with its end of a socket as file descriptor 3 and the
memory of the devices as 4. It ends when the socket is closed or the process that uses the double
ends. The messages are those of ``double/server_link.cpp``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import struct
import sys
import traceback
from typing import Any

SOCKET, MEMORY = 3, 4
DESCRIBE, LAUNCH = 1, 2
LAUNCH_FAILED = 719


def main(arguments: list[str]) -> None:
    address, size, seed, shuffle = (int(text) for text in arguments)
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the client's to handle
    connection = socket.socket(fileno=SOCKET)
    map_memory(address, size)
    serve(connection, seed, bool(shuffle))


def end_with_parent() -> None:
    """Have the kernel end this process when the client's thread for it ends."""
    set_parent_death_signal = 1
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)


def map_memory(address: int, size: int) -> None:
    """Map the device memory where the client has its addresses."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    fixed_and_free, no_reserve = 0x100000, 0x4000
    flags = mmap.MAP_SHARED | fixed_and_free | no_reserve
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    got = library.mmap(address, size, protection, flags, MEMORY, 0)
    if got != address:
        reason = os.strerror(ctypes.get_errno())
        sys.exit(f"[driver double] the server cannot map device memory at 0x{address:x}: {reason}")


def serve(connection: socket.socket, seed: int, shuffle: bool) -> None:
    """Answer until the client is gone."""
    interpreter: Any = None
    texts: dict[int, str] = {}
    kernels: dict[int, Any] = {}
    while (head := receive(connection, 8)) is not None:
        kind, count = struct.unpack("<II", head)
        if kind == DESCRIBE:
            (number,) = struct.unpack("<Q", need(connection, 8))
            texts[number] = need(connection, count).decode()
            continue
        assert kind == LAUNCH, kind
        number, launch, x, y, z, value_count = struct.unpack("<QQ4I", need(connection, 32))
        changes = struct.unpack(f"<{3 * count}Q", need(connection, 24 * count))
        values = struct.unpack(f"<{value_count}Q", need(connection, 8 * value_count))
        try:
            if interpreter is None:
                from ruda_runtime.testing import interpret

                interpreter = interpret.Interpreter(seed, shuffle)
            for start, size, serial in zip(*[iter(changes)] * 3):
                if size:
                    interpreter.ranges.allocated(start, size, serial)
                else:
                    interpreter.ranges.freed(start)
            if number not in kernels:
                kernels[number] = interpret.Kernel(texts[number])
            code, text = interpreter.launch(kernels[number], (x, y, z), launch, values)
        except Exception as error:
            code, text = LAUNCH_FAILED, "".join(traceback.format_exception(error)[-4:]).strip()
        sys.stdout.flush()
        reply = text.encode(errors="replace")
        connection.sendall(struct.pack("<II", code, len(reply)) + reply)


def receive(connection: socket.socket, size: int) -> bytes | None:
    """Exactly ``size`` bytes, or None where the client is gone."""
    if size == 0:
        return b""
    parts = b""
    while len(parts) < size:
        try:
            part = connection.recv(size - len(parts))
        except ConnectionResetError:
            return None
        if not part:
            return None
        parts += part
    return parts


def need(connection: socket.socket, size: int) -> bytes:
    received = receive(connection, size)
    if received is None:
        sys.exit(0)
    return received


if __name__ == "__main__":
    main(sys.argv[1:])
