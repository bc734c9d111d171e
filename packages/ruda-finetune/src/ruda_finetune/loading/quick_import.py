"""Importing transformers in a fraction of its time.

Two thirds of what `import transformers.modeling_utils` costs are parts of torch that one device
never uses: distributed tensors (and sympy with them), sharded data parallelism, the Dynamo
compiler. While transformers is imported and a model is built, these modules are *deferred*: a
stand-in takes the name, and each object that is imported from it is a proxy that imports the real
module at its first use. Afterwards the stand-ins are gone, so that any other import gets the real
module.

A proxy means the same as the object: it is called, subclassed and looked into by importing the
real one first. Only `isinstance` needs no import: while the module that defines a class is not
loaded, nothing can be an instance of it.

A module that is loaded already is not touched, and nothing is deferred where several processes
work together or the environment says `RUDA_QUICK_IMPORT=0`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..errors import ModelFileError

#: Modules that are deferred with everything below them.
DEFERRED = (
    "torch._dynamo",
    "torch.fx.experimental.symbolic_shapes",
    "sympy",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed._composable.fsdp",
    "torch.distributed.checkpoint",
    "transformers.distributed.expert_parallel",
    "transformers.distributed.tensor_parallel",
)
_lock = threading.RLock()


class Deferred:
    """An object of a module that is not imported yet."""

    def __init__(self, module: str, name: str) -> None:
        self.__module = module
        self.__name = name
        self.__qualname__ = self.__name__ = name

    def __real(self) -> Any:
        return getattr(_real_module(self.__module), self.__name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # questions of inspect, copy and typing are no use
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        return getattr(self.__real(), name)

    def __getitem__(self, key: Any) -> Any:
        return self.__real()[key]

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.__real(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return _is_loaded(self.__module) and isinstance(instance, self.__real())

    def __subclasscheck__(self, cls: Any) -> bool:
        return _is_loaded(self.__module) and issubclass(cls, self.__real())

    def __or__(self, other: Any) -> Any:  # an annotation
        return Any

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<deferred {self.__module}.{self.__name}>"


def _disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
    """`torch._dynamo.disable` while Dynamo is not loaded, when nothing can be compiled anyway."""
    if fn is None:
        return functools.partial(_disable, recursive=recursive, **options)
    if options.get("wrapping") is False:
        # torch's lazy decorator asks at a function's first call, and keeps what it gets here:
        # the function itself will do, until Dynamo is there.
        _undecorated.append(fn)
        return fn
    disabled: list[Any] = []

    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        if not _is_loaded("torch._dynamo"):
            return fn(*args, **kwargs)
        if not disabled:
            dynamo: Any = sys.modules["torch._dynamo"]
            disabled.append(dynamo.disable(fn, recursive, **options))
        return disabled[0](*args, **kwargs)

    return inner


def _forget_undecorated() -> None:
    """Let torch's lazy decorator ask again, and get the real Dynamo."""
    for fn in _undecorated:
        with contextlib.suppress(AttributeError):
            del fn.__dynamo_disable
    _undecorated.clear()


def _assume_constant_result(fn: Any) -> Any:
    """What `torch._dynamo.assume_constant_result` does."""
    fn._dynamo_marked_constant = True
    return fn


def _on_plain(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """A question of symbolic shapes, which needs them for symbolic values only."""

    def ask(*values: Any) -> Any:
        if all(_is_plain(value) for value in values):
            return answer(*values)
        return getattr(_real_module(_SHAPES), name)(*values)

    return ask


def _equal(x: Any, y: Any) -> bool:
    both = isinstance(x, list | tuple) and isinstance(y, list | tuple)
    return list(x) == list(y) if both else bool(x == y)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return type(value) in (bool, int)


def _allow_in_graph(fn: Any) -> Any:
    """`torch._dynamo.allow_in_graph`, done as soon as Dynamo is imported."""
    _allowed.append(fn)
    return fn


# Called while transformers is imported, or a model is built, where the real module is not needed.
_SHAPES = "torch.fx.experimental.symbolic_shapes"
_LAZY_ALREADY = {
    ("torch._dynamo", "allow_in_graph"): _allow_in_graph,
    ("torch._dynamo", "assume_constant_result"): _assume_constant_result,
    ("torch._dynamo", "disable"): _disable,
    (_SHAPES, "expect_true"): _on_plain("expect_true", bool),
    (_SHAPES, "guard_or_false"): _on_plain("guard_or_false", bool),
    (_SHAPES, "guard_or_true"): _on_plain("guard_or_true", bool),
    (_SHAPES, "is_nested_int"): _on_plain("is_nested_int", lambda value: False),
    (_SHAPES, "statically_known_false"): _on_plain(
        "statically_known_false", lambda value: not value
    ),
    (_SHAPES, "statically_known_true"): _on_plain("statically_known_true", bool),
    (_SHAPES, "sym_and"): _on_plain("sym_and", lambda *values: all(values)),
    (_SHAPES, "sym_eq"): _on_plain("sym_eq", _equal),
    (_SHAPES, "sym_or"): _on_plain("sym_or", lambda *values: any(values)),
}
_allowed: list[Any] = []
_undecorated: list[Any] = []


class _AfterImport(MetaPathFinder):
    """Calls `action(module)` once, right after a module is imported."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self.action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _tell_dynamo(dynamo: ModuleType) -> None:
    for fn in _allowed:
        dynamo.allow_in_graph(fn)
    _allowed.clear()


def _scan_once(import_utils: ModuleType) -> None:
    """Let transformers read its 1,700 source files once instead of twice.

    `transformers` and `transformers.models` both look for the names that these files export. The
    second takes the first one's result, and then the function is itself again.
    """
    scan = getattr(import_utils, "create_import_structure_from_path", None)
    if scan is None:
        return
    found: dict[str, Any] = {}

    def scan_once(module_path: Any) -> Any:
        folder = os.fspath(module_path)
        if folder.endswith("__init__.py"):
            folder = os.path.dirname(folder)  # noqa: PTH120 - as the function itself does
        if os.path.basename(folder) != "models":  # noqa: PTH119
            return scan(module_path)
        if folder in found:
            import_utils.create_import_structure_from_path = scan  # type: ignore[attr-defined]
            return found.pop(folder)
        found[folder] = scan(module_path)
        return copy.deepcopy(found[folder])

    import_utils.create_import_structure_from_path = scan_once  # type: ignore[attr-defined]


class _StandIn(ModuleType):
    """A module whose attributes are `Deferred`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = _LAZY_ALREADY.get((self.__name__, name)) or Deferred(self.__name__, name)
        setattr(self, name, value)
        return value


class _Finder(MetaPathFinder, Loader):
    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = set(roots)

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if any(fullname == root or fullname.startswith(root + ".") for root in self.roots):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass

    def release(self, root: str) -> None:
        """Forget the stand-ins of one root; imports find the real modules from now on."""
        self.roots.discard(root)
        for name, module in list(sys.modules.items()):
            if type(module) is _StandIn and (name == root or name.startswith(root + ".")):
                del sys.modules[name]
                parent, _, leaf = name.rpartition(".")
                package = sys.modules.get(parent)
                if package is not None and package.__dict__.get(leaf) is module:
                    delattr(package, leaf)


_active: _Finder | None = None


def _is_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and type(module) is not _StandIn


def _real_module(name: str) -> ModuleType:
    """Import the module behind a stand-in."""
    with _lock:
        if _active is not None:
            for root in [r for r in _active.roots if name == r or name.startswith(r + ".")]:
                _active.release(root)
                if root == "torch._dynamo":
                    _forget_undecorated()
                    _watch_dynamo()
        return importlib.import_module(name)


@contextmanager
def quick_import() -> Iterator[None]:
    """Defer what `DEFERRED` names while the block runs; the collector is paused meanwhile, too.

    What is loaded already is not touched.
    """
    global _active
    with collector_paused():
        if not _wanted():
            yield
            return
        with _lock:
            outer = _active is not None  # a block inside another, or in another thread
            if not outer:
                _active = _Finder([name for name in DEFERRED if name not in sys.modules])
                sys.meta_path.insert(0, _active)
                if "transformers" not in sys.modules:
                    once = _AfterImport("transformers.utils.import_utils", _scan_once)
                    sys.meta_path.insert(0, once)
        try:
            yield
        finally:
            if not outer:
                _finish()


def _finish() -> None:
    """Take every stand-in out of `sys.modules`."""
    global _active
    with _lock:
        assert _active is not None
        sys.meta_path.remove(_active)
        for root in list(_active.roots):
            _active.release(root)
        _active = None
        _forget_undecorated()
        for finder in [f for f in sys.meta_path if isinstance(f, _AfterImport)]:
            sys.meta_path.remove(finder)
        _watch_dynamo()


def _watch_dynamo() -> None:
    """See to it that Dynamo hears of the functions that wait for it."""
    watched = (f.name for f in sys.meta_path if isinstance(f, _AfterImport))
    if _allowed and "torch._dynamo" not in watched:
        sys.meta_path.insert(0, _AfterImport("torch._dynamo", _tell_dynamo))


def _wanted() -> bool:
    """Whether the user left it on, and nothing says that this process is one of several."""
    setting = os.environ.get("RUDA_QUICK_IMPORT", "1")
    if setting not in ("0", "1"):
        raise ModelFileError(f"[load_model] RUDA_QUICK_IMPORT: got {setting!r}, wanted 0 or 1")
    if setting == "0":
        return False
    distributed = sys.modules.get("torch.distributed")
    initialized = getattr(distributed, "is_initialized", None)
    return "WORLD_SIZE" not in os.environ and not (initialized is not None and initialized())


def import_transformers() -> None:
    """Import what every causal model of transformers needs, without what one device does not."""
    with quick_import():
        import transformers.generation.utils
        import transformers.masking_utils
        import transformers.modeling_layers
        import transformers.modeling_utils  # noqa: F401


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside the block.

    Imports and model building make millions of objects that stay; the collector would walk all of
    them again and again. At the end they become its oldest generation, unwalked: as young ones they
    would be walked three times soon after.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
