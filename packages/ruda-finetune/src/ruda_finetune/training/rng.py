"""Saving and restoring every random state a training step can draw from."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def rng_state(device: torch.device) -> dict[str, Any]:
    """The states of Python's, NumPy's, torch's CPU generator and, on ruda, the device's.

    Plain numbers, lists and tensors only, so that it can be stored and loaded with
    `weights_only=True`.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "cpu": torch.get_rng_state(),
    }
    if device.type == "ruda":
        state["ruda"] = torch.ruda.get_rng_state(device).cpu()  # type: ignore[attr-defined]
    return state


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> list[str]:
    """Restore what `rng_state` saved; returns, in words, what could not be restored here."""
    python, arrays = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    keys = arrays["keys"].numpy().astype(np.uint32)
    np.random.set_state(
        (arrays["name"], keys, arrays["position"], arrays["has_gauss"], arrays["cached"])
    )
    torch.set_rng_state(state["cpu"])
    saved = "ruda" in state
    if saved and device.type == "ruda":
        torch.ruda.set_rng_state(state["ruda"], device)  # type: ignore[attr-defined]
        return []
    if saved or device.type == "ruda":
        there, here = ("ruda", device.type) if saved else ("cpu", "ruda")
        return [
            f"the random state of device {here} (the checkpoint was written on {there}): dropout "
            "masks differ from those of the run that was not stopped"
        ]
    return []
