"""The checks of `histobench doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from histobench.core.devices import free_memory
from histobench.core.errors import HistobenchError
from histobench.core.folders import cache_dir
from histobench.roi.encoders.encoder_catalogue import has_weights, weights_steps
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.own_name import check_file, names_a_file
from histobench.roi.encoders.registry import get_spec, list_encoders
from histobench.roi.encoders.weights import find_weights, missing_packages
from histobench.roi.encoders.weights_download import is_offline

GIB = 1024**3
#: Room for activations and the library itself, on top of the weights.
WORKING_MEMORY = 1.5 * GIB


@dataclass(frozen=True)
class CheckupResult:
    verdict: str  # PASS, WARN or FAIL
    subject: str
    message: str
    fix: str = ""
    details: str = ""


def check_machine() -> list[CheckupResult]:
    findings = [CheckupResult("PASS", "python", ".".join(map(str, sys.version_info[:3]))), *_torch(), _disk()]
    if is_offline():
        message = "HF_HUB_OFFLINE=1: nothing is downloaded"
        findings.append(CheckupResult("WARN", "downloads", message, "unset HF_HUB_OFFLINE"))
    return findings


def check_encoders(
    names: Iterable[str], *, weights: str | None = None, online: bool = False
) -> list[CheckupResult]:
    names = list(names)
    if not names:
        specs = list_encoders()
        ready = [spec.name for spec in specs if has_weights(spec, weights)]
        message = f"{len(ready)} of {len(specs)} ready without a download: {', '.join(ready)}"
        return [CheckupResult("PASS", "encoders", message, "`histobench doctor --encoders NAME` checks one")]
    return [finding for name in names for finding in _encoder(name, weights, online)]


def _torch() -> list[CheckupResult]:
    import torch

    findings = [CheckupResult("PASS", "torch", torch.__version__)]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            message = f"{torch.cuda.get_device_name(index)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
            findings.append(CheckupResult("PASS", f"cuda:{index}", message))
    elif torch.backends.mps.is_available():
        findings.append(CheckupResult("PASS", "mps", "Apple GPU"))
    else:
        message = "none found; large encoders take seconds per image on the CPU"
        fix = "use a GPU, or small encoders: efficientnet-lite0, kaiko-vits16, tiny-vl"
        findings.append(CheckupResult("WARN", "gpu", message, fix))
        if torch.version.cuda:
            message = f"CUDA {torch.version.cuda} libraries are installed, several GB that a CPU does not use"
            fix = "without a GPU: uv pip install --reinstall --torch-backend cpu torch torchvision"
            findings.append(CheckupResult("PASS", "packages", message, fix))
    return findings


def _disk() -> CheckupResult:
    places = [cache_dir(), Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()]
    existing = {place: next(each for each in (place, *place.parents) if each.exists()) for place in places}
    free, folder = min((shutil.disk_usage(there).free, place) for place, there in existing.items())
    message = f"{free / GIB:.1f} GiB free for {folder}"
    if free < 10 * GIB:
        return CheckupResult("WARN", "disk", message, "free some space, or point HF_HOME to a larger disk")
    return CheckupResult("PASS", "disk", message)


def _encoder(name: str, weights: str | None, online: bool) -> list[CheckupResult]:
    try:
        if names_a_file(name):
            check_file(name)
            return [CheckupResult("PASS", name, "your own encoder; the file is there")]
        spec = get_spec(name)
    except (HistobenchError, OSError) as error:
        return [CheckupResult("FAIL", name, str(error), "`histobench models` lists all encoders")]
    return [*_packages(spec), _weights(spec, weights, online), *_memory(spec)]


def _packages(spec: EncoderSpec) -> list[CheckupResult]:
    missing = missing_packages(spec)
    if missing:
        fix = "pip install 'histobench[text]'"
        return [CheckupResult("FAIL", spec.full_name, f"missing packages: {', '.join(missing)}", fix)]
    return [CheckupResult("PASS", spec.full_name, "its packages are installed")]


def _weights(spec: EncoderSpec, weights: str | None, online: bool) -> CheckupResult:
    own = spec.source.kind in ("seed", "project")
    try:
        found = "come with histobench" if own else find_weights(spec, weights)
    except (HistobenchError, OSError) as error:
        return CheckupResult("FAIL", spec.full_name, str(error), "correct the path in the table of weights")
    if found is not None:
        return CheckupResult("PASS", spec.full_name, f"weights: {found}")
    steps = "; ".join(weights_steps(spec)[:3])
    if is_offline():
        return CheckupResult("FAIL", spec.full_name, "weights not on this machine, downloads are off", steps)
    if online and spec.source.kind == "hub":
        return _access(spec, steps)
    gate = "their authors have to grant access" if spec.source.gated else "they are downloaded on first use"
    return CheckupResult("WARN", spec.full_name, f"weights not on this machine; {gate}", steps)


def _access(spec: EncoderSpec, steps: str) -> CheckupResult:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError

    try:
        HfApi().auth_check(spec.source.repo)
    except GatedRepoError:
        return CheckupResult("FAIL", spec.full_name, f"no access to {spec.source.repo} yet", steps)
    except Exception as error:  # of several libraries
        message = f"cannot ask the model hub about {spec.source.repo} ({type(error).__name__})"
        return CheckupResult("WARN", spec.full_name, message, "check the network connection; hf auth login")
    message = f"access to {spec.source.repo} is granted; downloaded on first use"
    return CheckupResult("PASS", spec.full_name, message)


def _memory(spec: EncoderSpec) -> list[CheckupResult]:
    import torch

    free = int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else free_memory()
    if spec.cost is None or free is None:
        return []
    need = (spec.cost.params + spec.cost.text_params) * 4 + WORKING_MEMORY
    message = f"needs about {need / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB are free"
    if need > free:
        return [CheckupResult("WARN", spec.full_name, message, "use a larger machine, or a smaller encoder")]
    return [CheckupResult("PASS", spec.full_name, message)]
