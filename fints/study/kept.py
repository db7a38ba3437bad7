"""What a results folder keeps: its studies, what they take on the disk, and how one is deleted."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fints.data.deleting import DELETED, folder_bytes, remove_folder
from fints.study.fits import WEIGHTS
from fints.study.store import SET_ASIDE, StudyFolder

__all__ = ["PARTS", "KeptStudy", "delete_study", "find_kept", "kept_studies", "sizes"]

# What a study's disk use is told by; the last is not in its folder but beside it.
PARTS = ("fits", "weights", "checkpoints", "damaged", "tables", "report", "queue", "other", "mlflow")


@dataclass(frozen=True, kw_only=True)
class KeptStudy:
    """One study at one size on one dataset, in ``ROOT/NAME/LABEL``."""

    folder: StudyFolder
    title: str
    preset: str
    dataset: str | None
    fits: int
    changed: datetime

    @property
    def name(self) -> str:
        """NAME/LABEL."""
        return f"{self.folder.name}/{self.folder.label}"

    @property
    def artifacts(self) -> Path:
        """Where MLflow keeps files of its runs, unless a server does."""
        return self.folder.root / "mlartifacts" / self.folder.name / self.folder.label

    def to_dict(self) -> dict[str, Any]:
        """Return what is known of it, JSON-able."""
        return {
            "study": self.name,
            "title": self.title,
            "preset": self.preset,
            "dataset": self.dataset,
            "fits": self.fits,
            "changed": self.changed.isoformat(timespec="seconds"),
            "folder": str(self.folder.path),
        }


def kept_studies(root: Path) -> list[KeptStudy]:
    """Return the studies under a results folder, by name; what is a link is none of it.

    Raises
    ------
    ValueError
        If `root` is a file.
    """
    root = root.expanduser().resolve()
    if root.exists() and not root.is_dir():
        raise ValueError(f"--root must be a folder of results; {root} is a file.")
    found = []
    for path in sorted(root.glob("*/*/study.json")):
        label, name = path.parent, path.parent.parent
        if label.is_symlink() or name.is_symlink() or DELETED in f"{label.name} {name.name}":
            continue
        found.append(_read(StudyFolder(root, name.name, label.name), path))
    return found


def find_kept(root: Path, wanted: str) -> list[KeptStudy]:
    """Return the studies that `wanted` means: NAME, all of that name, or NAME/LABEL.

    A name is looked up among those that are there, so none leads out of the folder.

    Raises
    ------
    ValueError
        If there is none, with those that there are.
    """
    kept = kept_studies(root)
    found = [one for one in kept if wanted in (one.name, one.folder.name)]
    if found:
        return found
    known = [one.name for one in kept]
    near = difflib.get_close_matches(wanted, [*known, *(one.folder.name for one in kept)], n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(
        f"there is no study {wanted!r} in {root.expanduser().resolve()}.{hint} "
        f"Studies there: {', '.join(known) or 'none'}."
    )


def sizes(kept: KeptStudy) -> dict[str, int]:
    """Return the bytes of each of `PARTS`."""
    folder = kept.folder
    told = dict.fromkeys(PARTS, 0)
    for path in folder.path.iterdir():
        size = folder_bytes(path) if path.is_dir() else path.stat().st_size
        if path == folder.fits:
            weights = sum(folder_bytes(one / WEIGHTS) for one in path.iterdir() if SET_ASIDE not in one.name)
            damaged = sum(folder_bytes(fit) for fit in path.glob(f"*{SET_ASIDE}*"))
            told["weights"], told["damaged"] = weights, damaged
            told["fits"] = size - weights - damaged
        elif path == folder.checkpoints:
            told["checkpoints"] = size
        elif path.suffix == ".parquet":
            told["tables"] += size
        elif path.stem == "report" or path.name == "figures" or path == folder.so_far:
            told["report"] += size
        elif path.name.startswith("optuna.db"):
            told["queue"] += size
        else:
            told["other"] += size
    return told | {"mlflow": folder_bytes(kept.artifacts)}


def delete_study(kept: KeptStudy, *, tracking: bool) -> int:
    """Remove a study's folder, and with `tracking` its runs and models in MLflow; return the bytes freed.

    Raises
    ------
    ValueError
        If a driver holds the folder.
    RuntimeError
        If MLflow cannot delete its runs; the folder is left then.
    """
    freed = sum(size for part, size in sizes(kept).items() if tracking or part != "mlflow")
    with kept.folder.held():
        if tracking:
            from fints.study.forget import forget_experiment

            forget_experiment(kept.folder.root, kept.name)
            if kept.artifacts.is_dir() and not kept.artifacts.is_symlink():
                remove_folder(kept.artifacts)
        remove_folder(kept.folder.path)
    for above in (kept.folder.path.parent, kept.artifacts.parent):
        if above.is_dir() and not any(above.iterdir()):
            above.rmdir()
    return freed


def _read(folder: StudyFolder, path: Path) -> KeptStudy:
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        title, preset = str(spec["title"]), str(spec["preset"])
        # A study on simulated panels has no dataset.
        dataset = spec.get("dataset")
        data = None if dataset is None else str(dataset["reference"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        # It takes room and can be deleted all the same.
        title, preset, data = "study.json cannot be read", "", None
    fits = [fit for fit in folder.fits.glob("*") if fit.is_dir() and SET_ASIDE not in fit.name]
    changed = max(one.stat().st_mtime for one in (path, folder.path, *([folder.fits] if fits else [])))
    return KeptStudy(
        folder=folder,
        title=title,
        preset=preset,
        dataset=data,
        fits=len(fits),
        changed=datetime.fromtimestamp(changed, UTC),
    )
