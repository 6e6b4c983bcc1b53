"""`python -m histobench`: the command line."""

import sys

from histobench.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
