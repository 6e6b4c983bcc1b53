"""Step 2: run the evaluation tasks on extracted features (the same as `histobench evaluate`)."""

import sys

from histobench.cli.entry import run_command
from histobench.cli.main import COMMANDS

if __name__ == "__main__":
    sys.exit(
        run_command(
            COMMANDS["evaluate"]._replace(as_script=True), sys.argv[1:], prog="01-ROI_BenchMark_Main.py"
        )
    )
