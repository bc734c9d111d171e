"""Deferred imports: quick where nobody needs the modules, the real ones where somebody does."""

from __future__ import annotations

import subprocess
import sys
import textwrap

HEAVY = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp", "sympy")


def run(code: str, **environment: str) -> str:
    import os

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, env={**os.environ, "RUDA_TARGET": "host", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_model_is_built_without_them_and_they_work_afterwards() -> None:
    """Built on meta without the heavy modules; then each of them is the real one."""
    run(
        f"""
        import gc, sys, torch
        from ruda_finetune.loading.architecture import build_on_meta
        from ruda_finetune.loading.quick_import import Deferred, _StandIn, import_transformers
        import_transformers()
        from transformers import LlamaConfig
        config = LlamaConfig(vocab_size=30, hidden_size=16, intermediate_size=32,
                             num_hidden_layers=1, num_attention_heads=2)
        model = build_on_meta(config, torch.float32, "test")
        assert all(p.is_meta for p in model.parameters())
        left = [name for name in {HEAVY!r} if name in sys.modules]
        assert not left, left
        assert not [n for n, m in sys.modules.items() if type(m) is _StandIn]
        assert not hasattr(torch.distributed, "tensor") and gc.isenabled()

        from transformers.distributed import sharding_utils
        assert type(sharding_utils.DTensor) is Deferred
        assert not isinstance(torch.ones(1), sharding_utils.DTensor)
        assert "torch.distributed.tensor" not in sys.modules
        from torch.distributed.tensor import DTensor, Shard
        assert sharding_utils.DTensor.from_local == DTensor.from_local
        assert issubclass(DTensor, sharding_utils.DTensor)
        assert not isinstance(torch.ones(1), sharding_utils.DTensor)

        class Mine(sharding_utils.DTensor):
            pass

        assert Mine.__bases__ == (DTensor,)
        from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES
        assert "colwise" in ALL_PARALLEL_STYLES

        import torch._dynamo
        from transformers import PreTrainedModel, modeling_utils
        compiled = torch.compile(lambda x: torch.randn(2) * 0 + x.sin(), backend="eager")
        assert torch.allclose(compiled(torch.ones(2)), torch.ones(2).sin())
        import sympy
        assert sympy.Symbol("x") + 0 == sympy.Symbol("x")
        """
    )


def test_nothing_is_deferred_where_processes_work_together() -> None:
    run(
        """
        import sys
        from ruda_finetune.loading.quick_import import import_transformers
        import_transformers()
        assert "torch.distributed.tensor" in sys.modules and "torch._dynamo" in sys.modules
        """,
        WORLD_SIZE="2",
    )


def test_it_can_be_switched_off() -> None:
    run(
        """
        import os, sys
        from ruda_finetune import ModelFileError
        from ruda_finetune.loading.quick_import import import_transformers
        os.environ["RUDA_QUICK_IMPORT"] = "no"
        try:
            import_transformers()
        except ModelFileError as error:
            assert "got 'no', wanted 0 or 1" in str(error)
        else:
            raise AssertionError("taken")
        os.environ["RUDA_QUICK_IMPORT"] = "0"
        import_transformers()
        assert "torch.distributed.tensor" in sys.modules and "torch._dynamo" in sys.modules
        """
    )


def test_the_names_of_transformers_are_what_they_are_without_it() -> None:
    names = run(
        """
        from ruda_finetune.loading.quick_import import import_transformers
        import_transformers()
        import transformers
        from transformers.utils import import_utils
        assert import_utils.create_import_structure_from_path.__module__ == import_utils.__name__
        print(len(dir(transformers)), sorted(transformers.models._class_to_module.items())[::97])
        """
    )
    plain = run(
        """
        import transformers, transformers.models
        print(len(dir(transformers)), sorted(transformers.models._class_to_module.items())[::97])
        """
    )
    assert names == plain


def test_help_and_wrong_usage_import_no_torch() -> None:
    run(
        """
        import sys
        from ruda_finetune.cli.app import app
        for arguments in (["--help"], ["train", "--bogus"], ["cache", "list"],
                          ["profile", "missing.gguf"],
                          ["train", "--model", "x", "--data", "missing", "--output", "z"]):
            try:
                app(arguments)
            except (SystemExit, ValueError):
                pass
        assert not {"torch", "transformers"} & set(sys.modules)
        """
    )
