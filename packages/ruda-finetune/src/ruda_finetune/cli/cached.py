"""`ruda-finetune cache`: what the cache holds, and emptying it. Needs no torch."""

from __future__ import annotations

import time

from ruda_finetune.cache_files import cache_directory, clear, list_entries
from ruda_finetune.errors import FinetuneError


def list_cache() -> None:
    """One line an entry, those used last first."""
    print(f"cache: {cache_directory() or 'none (no home directory; set RUDA_CACHE_DIR)'}")
    try:
        entries = list_entries()
    except OSError as error:
        raise FinetuneError(f"[cache] cannot read {error.filename}: {error.strerror}") from None
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        name = entry.name or f"{entry.path.name} (not readable)"
        detail = f"  ({entry.detail})" if entry.detail else ""
        print(f"{entry.nbytes / 2**20:9.1f} MiB  {used}  {name}{detail}")
    if not entries:
        print("empty")


def clear_cache() -> None:
    """Remove the cache's files; others in its folder stay."""
    try:
        count, freed = clear()
    except OSError as error:
        raise FinetuneError(f"[cache] cannot remove {error.filename}: {error.strerror}") from None
    print(f"removed {count} entries, {freed / 2**20:.1f} MiB")
