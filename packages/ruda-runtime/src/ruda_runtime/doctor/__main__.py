"""`python -m ruda_runtime.doctor [--json]`: the report without the command `ruda`."""

from __future__ import annotations

import argparse
import json
import sys

from ruda_runtime.doctor import as_text, collect


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m ruda_runtime.doctor",
        description="Report on the installation; exits with 1 when something does not fit.",
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    as_json = parser.parse_args().json
    report = collect()
    print(json.dumps(report, indent=2) if as_json else as_text(report))
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
