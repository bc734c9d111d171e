"""AdamW with float32 masters and moments; every step is one launch for all parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from . import checkpoint
from .parameters import check_gradient, check_numbers, check_overlap, check_parameter

# What torch calls clip_grad_norm_'s guard against a division by zero.
_CLIP_EPSILON = 1e-6
_REFUSED = checkpoint.REFUSED_OPTIONS


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of torch's optimiser without its decorator, whose first call imports the compiler.

    That takes a second or more, and nothing here is compiled.
    """
    return getattr(method, "__wrapped__", method)


class AdamW(torch.optim.Optimizer):
    """AdamW for parameters on ``ruda``, in `torch.optim.AdamW`'s order of operations.

    Moments are float32, and so is the master copy kept beside every float16 or bfloat16 parameter;
    the parameter is its master, rounded. All parameters with one step count in one group are
    updated by a single kernel launch.

    A step whose gradients hold a NaN or an infinity changes nothing (``last_step_skipped``).

    Args:
        params: leaf parameters on ruda, or groups of them; none may share memory with another.
        lr, betas, eps, weight_decay: as in `torch.optim.AdamW`; may differ by group.
        fused_step: False: gradients are unscaled in place, and a 4-byte flag is read back before
            any update. True: gradients are left as they are, a 12-byte report (norm, finite) is
            read back, and the update scales and clips on the way in.
        max_grad_norm: clip the global L2 norm over all groups, after unscaling; needs fused_step.
        hierarchical_stats: not built for this target; True is refused.
        amsgrad, maximize, differentiable, capturable: not built; True is refused.

    Attributes:
        last_step_skipped: whether the last step met a non-finite gradient and changed nothing.
        last_step_had_grad: whether any parameter had a gradient in the last step.
        last_grad_norm: fused_step: unscaled global norm of the last step; None before the first.
        last_clip_coef: fused_step: what the gradients were multiplied with; None before the first
            step and after a skipped one.

    Raises:
        ValueError, TypeError: a wrong parameter or setting. NotImplementedError: a refused option.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        fused_step: bool = False,
        max_grad_norm: float | None = None,
        hierarchical_stats: bool = False,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        for name, value in zip(_REFUSED, (amsgrad, maximize, differentiable, capturable)):
            if value:
                raise NotImplementedError(
                    f"[AdamW] {name}: got True, wanted False; it is not built"
                )
        if hierarchical_stats:
            raise NotImplementedError(
                "[AdamW] hierarchical_stats: got True, wanted False; this target sums the gradient "
                "norm in one pass and has no hierarchical kernels"
            )
        checkpoint.check_options(fused_step, max_grad_norm)
        self.fused_step = fused_step
        self.max_grad_norm = max_grad_norm
        self._forget()
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def _forget(self) -> None:
        self.last_step_skipped = False
        self.last_step_had_grad = False
        self.last_grad_norm: float | None = None
        self.last_clip_coef: float | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group after checking all of its parameters; on an error nothing is added."""
        _plain(torch.optim.Optimizer.add_param_group)(self, param_group)
        try:
            group = self.param_groups[-1]
            for name in _REFUSED:
                if group.pop(name, False):
                    raise NotImplementedError(f"[AdamW] {name}: got True in a group, wanted False")
            check_numbers(group)
            for name, parameter in self._named(self.param_groups[-1:], len(self.param_groups) - 1):
                check_parameter(parameter, name)
            check_overlap(self._named(self.param_groups))
        except Exception:
            self.param_groups.pop()
            raise

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, see `torch.optim.Optimizer.zero_grad`."""
        _plain(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    @staticmethod
    def _named(groups: list[dict[str, Any]], first: int = 0) -> Iterable[tuple[str, Tensor]]:
        for number, group in enumerate(groups, first):
            names = group.get("param_names")
            for i, parameter in enumerate(group["params"]):
                yield names[i] if names else f"param_groups[{number}]['params'][{i}]", parameter

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], Any] | None = None, loss_scale: float = 1.0
    ) -> Any:
        """Update every parameter that has a gradient, or none of them.

        Args:
            closure: computes the loss anew; called once, with gradients on.
            loss_scale: what the loss was multiplied with; gradients are divided by it.

        Returns:
            The closure's result, or None.

        Raises:
            ValueError: loss_scale is not positive and finite, or a gradient's memory has gaps or
                overlaps.
            TypeError: a gradient of another dtype than the parameter's or float32.
            NotImplementedError: a sparse gradient.
        """
        if not 0.0 < loss_scale < float("inf"):
            raise ValueError(f"[AdamW] loss_scale: got {loss_scale}, wanted a positive number")
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        named = [(name, p) for name, p in self._named(self.param_groups) if p.grad is not None]
        gradients = [check_gradient(parameter, name) for name, parameter in named]
        self._forget()
        self.last_step_had_grad = bool(gradients)
        if not gradients:
            return result
        scale = self._inspect(gradients, 1.0 / float(loss_scale))
        if scale is None:
            self.last_step_skipped = True
            return result
        for group in self.param_groups:
            check_numbers(group)
        for group in self.param_groups:
            self._update(group, scale)
        return result

    def _inspect(self, gradients: list[Tensor], unscale: float) -> float | None:
        """What the update multiplies gradients with; None when one of them is not finite."""
        if not self.fused_step:
            finite = torch.ops.ruda.unscale_gradients_(gradients, unscale)
            return 1.0 if finite.item() else None
        norm, finite = torch.ops.ruda.gradient_norm(gradients, unscale)
        self.last_grad_norm = float(norm.item())
        if not finite.item():
            return None
        self.last_clip_coef = 1.0
        if self.max_grad_norm is not None:
            coefficient = self.max_grad_norm / (self.last_grad_norm + _CLIP_EPSILON)
            self.last_clip_coef = min(1.0, coefficient)
        return unscale * self.last_clip_coef

    def _update(self, group: dict[str, Any], scale: float) -> None:
        by_step: dict[int, list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = self.state[parameter]
                if not state:
                    state.update(checkpoint.fresh_state(parameter))
                by_step.setdefault(state["step"] + 1, []).append(parameter)
        for step, parameters in by_step.items():
            states = [self.state[parameter] for parameter in parameters]
            torch.ops.ruda.adamw_step_(
                parameters,
                [parameter.grad for parameter in parameters],
                [state.get("master", p) for state, p in zip(states, parameters)],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                step,
                float(group["lr"]),
                float(group["betas"][0]),
                float(group["betas"][1]),
                float(group["eps"]),
                float(group["weight_decay"]),
                scale,
            )
            for state in states:
                state["step"] = step

    def state_dict(self) -> dict[str, Any]:
        """Torch's layout with ``step_options``: the version, fused_step and max_grad_norm."""
        result: dict[str, Any] = _plain(torch.optim.Optimizer.state_dict)(self)
        result["step_options"] = checkpoint.options_to_save(self.fused_step, self.max_grad_norm)
        return result

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; everything is checked before anything is changed.

        Masters and moments stay float32, and the parameters are left alone. A checkpoint without
        ``step_options`` keeps this optimiser's own.

        Raises:
            ValueError: another version, other groups or shapes, missing or unexpected entries.
        """
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = hook(self, state_dict)
            if replaced is not None:
                state_dict = replaced
        options = checkpoint.options_to_load(state_dict)
        groups = checkpoint.groups_to_load(self.param_groups, state_dict["param_groups"])
        for group in groups:
            check_numbers(group)
        parameters = list(chain.from_iterable(group["params"] for group in groups))
        state = checkpoint.state_to_load(parameters, state_dict)
        self.__setstate__({"state": state, "param_groups": groups})
        if options is not None:
            self.fused_step, self.max_grad_norm = options
        self._forget()
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        own = ("fused_step", "max_grad_norm", "last_step_skipped", "last_step_had_grad")
        return {
            **super().__getstate__(),
            **{name: self.__dict__[name] for name in (*own, "last_grad_norm", "last_clip_coef")},
        }
