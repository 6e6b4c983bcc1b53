"""Step 1: extract features (the same as `histobench extract`, with the documented default size of 448)."""

import sys

from histobench.cli.entry import run_command
from histobench.cli.main import COMMANDS

if __name__ == "__main__":
    arguments = ["--resize_size", "448", *sys.argv[1:]]  # of a flag given twice the last one counts
    sys.exit(
        run_command(COMMANDS["extract"]._replace(as_script=True), arguments, prog="00-ROI_Feature_Extract.py")
    )
