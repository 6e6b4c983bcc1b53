#!/usr/bin/env python3
"""Bootstrap confidence intervals for stored results (step 3 of the ROI benchmark)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from histobench.cli.entry import run_command
from histobench.cli.main import COMMANDS

if __name__ == "__main__":
    sys.exit(
        run_command(COMMANDS["bootstrap"]._replace(as_script=True), sys.argv[1:], prog=Path(__file__).name)
    )
