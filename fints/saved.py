"""A saved forecaster on disk: a folder of JSON and safetensors that appears whole or not at all.

Nothing is pickled, and nothing is unpickled: a folder that holds anything else is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["FORMAT_VERSION", "read_folder", "write_folder"]

FORMAT_VERSION = 1
SPEC, WEIGHTS = "forecaster.json", "weights.safetensors"


def write_folder(path: Path, spec: Mapping[str, Any], state: Mapping[str, Tensor]) -> Path:
    """Write `spec` and the tensors of `state` to `path`; an older saved forecaster there is replaced.

    Raises
    ------
    ValueError
        If `path` exists and is not a saved forecaster.
    """
    if path.exists() and not (path / SPEC).is_file():
        raise ValueError(f"{path} exists and is not a saved forecaster; choose another path.")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(tensors, fresh / WEIGHTS)
        whole = {"format_version": FORMAT_VERSION, **spec, "weights_sha256": _sha256(fresh / WEIGHTS)}
        (fresh / SPEC).write_text(json.dumps(whole, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        fresh.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
            os.replace(path, old / path.name)
            os.replace(fresh, path)
            shutil.rmtree(old)
        else:
            os.replace(fresh, path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return path


def read_folder(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return spec and tensors of a folder written by `write_folder`.

    Raises
    ------
    ValueError
        If the folder is missing, foreign, damaged, or of another format.
    """
    spec_file, weights_file = path / SPEC, path / WEIGHTS
    if not spec_file.is_file() or not weights_file.is_file():
        raise ValueError(
            f"{path} is not a saved forecaster: it must hold {SPEC} and {WEIGHTS}. "
            "Write one with Forecaster.save(path)."
        )
    strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in (SPEC, WEIGHTS))
    if strangers:
        raise ValueError(
            f"{path} must hold {SPEC} and {WEIGHTS} only; got also {', '.join(strangers)}. "
            "Remove what does not belong."
        )
    try:
        spec: dict[str, Any] = json.loads(spec_file.read_text(encoding="utf-8"))
        version = spec["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{spec_file} is damaged ({error}); save the forecaster again.") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}; this fints reads version {FORMAT_VERSION}. "
            "Install the fints that wrote it."
        )
    if _sha256(weights_file) != spec.get("weights_sha256"):
        raise ValueError(f"{weights_file} does not match the checksum in {SPEC}; save the forecaster again.")
    try:
        return spec, load_file(weights_file)
    except SafetensorError as error:
        raise ValueError(f"{weights_file} is damaged ({error}); save the forecaster again.") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
