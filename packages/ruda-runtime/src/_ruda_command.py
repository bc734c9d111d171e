"""Starts the command `ruda`, also where `import ruda_runtime` fails.

It is a module of its own because importing anything in a package imports the package first, and
`ruda doctor` has to speak of an installation that cannot be imported: a wrong setting, packages
that do not fit each other, a native module that is missing.
"""

from __future__ import annotations

import importlib.util
import sys
import types


def main() -> None:
    """Entry point of the command."""
    try:
        import ruda_runtime  # noqa: F401
    except Exception as error:
        if sys.argv[1:2] != ["doctor"]:
            print(f"ruda: {error}\n`ruda doctor` reports on the installation", file=sys.stderr)
            sys.exit(1)
        _without_the_runtime()
    from ruda_runtime.cli import main as command

    command()


def _without_the_runtime() -> None:
    """Put a package in its place whose modules can be imported and which runs nothing itself."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "ruda_runtime"]:
        del sys.modules[name]
    spec = importlib.util.find_spec("ruda_runtime")
    if spec is None or spec.submodule_search_locations is None:
        print("ruda: ruda-runtime is not installed", file=sys.stderr)
        sys.exit(1)
    package = types.ModuleType("ruda_runtime")
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["ruda_runtime"] = package


if __name__ == "__main__":
    main()
