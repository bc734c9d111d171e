"""Training data: record files, chat templates, the collator, data sets and batches.

Every public name is loaded at first use: reading a record file needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batches import TrainingBatches as TrainingBatches
    from .batches import epoch_order as epoch_order
    from .batches import evaluation_batches as evaluation_batches
    from .collator import SFTCollator as SFTCollator
    from .collator import pad_rows as pad_rows
    from .dataset import SFTDataset as SFTDataset
    from .encoding import EncodedRow as EncodedRow
    from .encoding import describe_row as describe_row
    from .lengths import DataWarning as DataWarning
    from .lengths import LengthReport as LengthReport
    from .records import RecordFile as RecordFile
    from .records import read_records as read_records
    from .records import validate_record as validate_record
    from .templates import CHATML_TRAINING_TEMPLATE as CHATML_TRAINING_TEMPLATE
    from .templates import chatml_training_template as chatml_training_template
    from .templates import generation_blocks as generation_blocks
    from .templates import own_template_is_chatml as own_template_is_chatml

_EXPORTS: dict[str, str] = {
    "RecordFile": "records",
    "read_records": "records",
    "validate_record": "records",
    "CHATML_TRAINING_TEMPLATE": "templates",
    "chatml_training_template": "templates",
    "generation_blocks": "templates",
    "own_template_is_chatml": "templates",
    "EncodedRow": "encoding",
    "describe_row": "encoding",
    "DataWarning": "lengths",
    "LengthReport": "lengths",
    "SFTCollator": "collator",
    "pad_rows": "collator",
    "SFTDataset": "dataset",
    "TrainingBatches": "batches",
    "epoch_order": "batches",
    "evaluation_batches": "batches",
}

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
