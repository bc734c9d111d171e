"""Compiled kernels, in memory and as files."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

_MAGIC = b"RUDAKRN1"


@dataclass(frozen=True)
class Artifact:
    """One kernel for one specialisation and architecture.

    Attributes:
        image: a cubin, or PTX text.
        kind: ``"cubin"`` or ``"ptx"``.
        entry: the symbol to launch.
        architecture: 90 for sm_90.
        num_warps: warps of a block, 32 threads each.
        shared_bytes: dynamic shared memory of a block.
        scratch_pointers: trailing pointer parameters of the compiler's own.
        scratch_bytes, profile_bytes: memory of a program behind the first and the second of them.
        compiler: name and version.
    """

    image: bytes
    kind: str
    entry: str
    architecture: int
    num_warps: int
    shared_bytes: int
    scratch_pointers: int
    scratch_bytes: int
    profile_bytes: int
    compiler: str

    @property
    def image_hash(self) -> str:
        return hashlib.sha256(self.image).hexdigest()

    def header(self) -> dict[str, Any]:
        """Everything but the image."""
        fields = asdict(self)
        del fields["image"]
        return fields


def pack(artifact: Artifact, key: str) -> bytes:
    """A file of the kernel cache: checksum, header with the whole key, image."""
    header = json.dumps({"key": key, **artifact.header()}, sort_keys=True).encode()
    body = struct.pack("<I", len(header)) + header + artifact.image
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes, key: str) -> Artifact | None:
    """The kernel of a file written for ``key``; ``None`` for anything else, damage included."""
    body = data[len(_MAGIC) + 32 :]
    if data[: len(_MAGIC)] != _MAGIC or len(body) < 4:
        return None
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : len(_MAGIC) + 32]:
        return None
    (length,) = struct.unpack_from("<I", body)
    try:
        header = json.loads(body[4 : 4 + length])
        if header.pop("key") != key:
            return None
        return Artifact(image=body[4 + length :], **header)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
