"""Step 2: run the evaluation tasks on extracted features (the same as `histobench evaluate`)."""

import sys

from histobench.cli import evaluate
from histobench.cli.entry import run_verb

if __name__ == "__main__":
    sys.exit(run_verb(evaluate, sys.argv[1:], prog="01-ROI_BenchMark_Main.py"))
