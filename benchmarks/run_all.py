"""Every speed goal, measured against its named alternative in one run; `make bench` runs this.

python benchmarks/run_all.py                    # writes docs/benchmarks.md
python benchmarks/run_all.py --only knn bootstrap --dims 1024 --no-write
"""

from __future__ import annotations

import argparse
import sys
from datetime import date

import all_tasks
import bootstrap
import few_shot
import knn
import linear_probe
import mint_runs
import sandbox
import torch
from measure import PARTS, Machine, Row, Setup, table
from page import write_section
from workload import reference_workload

REGISTERED = (few_shot, knn, linear_probe, bootstrap, all_tasks)
ONCE = ("bootstrap",)  # does not depend on the dimension of the features
HEADER = """## After the features: protocols, metrics, statistics

Written by `make bench`. Both sides of every ratio ran in the same process, one after the other; "ratio" is by
the wall clock, "by CPU time" counts the processor time of all threads and minds other work less.
The reference workload has 9 classes, 100,000 training and 7,180 test features of dimension D.

"""


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--dims", nargs="+", type=int, default=[1024, 1536, 2560])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--devices", nargs="+", default=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    )
    parser.add_argument("--quick", action="store_true", help="a small workload, to see that everything runs")
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sections = []
    rows: list[Row] = []
    for device in args.devices:
        rows = []
        for dim in args.dims:
            small = {"n_train": 5000, "n_test": 1000} if args.quick else {}
            setup = Setup(reference_workload(dim=dim, **small), device, args.threads, args.quick)
            for name in args.only:
                if dim != args.dims[0] and (name in ONCE or args.quick):
                    continue
                print(f"{device}, D = {dim}: {name} ...", file=sys.stderr, flush=True)
                new = PARTS[name](setup)
                rows += [row for row in new if dim == args.dims[0] or "growth" not in row.part]
                print(table(new), file=sys.stderr, flush=True)
        sections.append(
            f"### {Machine(args.threads, device).describe()}\n\n{date.today()}\n\n{table(rows)}\n"
        )
    text = HEADER + "\n".join(sections)
    print(text)
    if not (args.no_write or args.quick):
        write_section("protocols", text)
        write_section("sandbox", sandbox.measured_section())
        write_section("mint-runs", mint_runs.measured_section())
    return 0


if __name__ == "__main__":
    sys.exit(main())
