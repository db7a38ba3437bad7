"""What the shell offers when Tab is pressed after ``fints``: names of datasets, schemes and studies.

``fints --install-completion`` sets it up for the shell that it is called from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fints.terminal import Refusal

__all__ = [
    "SCHEMES",
    "dataset_names",
    "own_dataset_names",
    "refuse_unknown_shell",
    "scheme_names",
    "study_names",
]

# Those of `fints.residual.RESIDUALS`, as a test says: to load that takes longer than anyone waits for Tab.
SCHEMES = (
    "pre_norm",
    "post_norm",
    "no_skip",
    "learnable_skip",
    "sandwich_norm",
    "peri_ln",
    "layer_norm_scaling",
    "layer_scale",
    "re_zero",
    "skip_init",
    "deep_norm",
    "resi_dual",
    "admin",
    "window_rescaled_pre_norm",
    "window_scale_restoring_post_norm",
    "frozen_scale_post_norm",
    "static_hyper_connections",
    "dynamic_hyper_connections",
    "manifold_hyper_connections",
    "static_frac_connections",
    "frac_connections",
    "gated_streams",
    "gated_copies",
    "attention_residuals",
    "block_attention_residuals",
    "state_attention",
    "denseformer",
    "mix_ln",
    "by_depth",
)
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def dataset_names(incomplete: str) -> list[str]:
    """Return the datasets whose names begin so."""
    from fints.data import datasets

    return _begin(incomplete, lambda: [card.name for card in datasets()])


def own_dataset_names(incomplete: str) -> list[str]:
    """Return the user's datasets whose names begin so."""
    from fints.data import datasets
    from fints.data.catalog import is_bundled

    return _begin(incomplete, lambda: [card.name for card in datasets() if not is_bundled(card.name)])


def scheme_names(incomplete: str) -> list[str]:
    """Return the residual schemes whose names begin so."""
    return _begin(incomplete, lambda: SCHEMES)


def study_names(incomplete: str) -> list[str]:
    """Return the studies of this machine whose names begin so."""
    from fints.data import home
    from fints.study.kept import kept_studies

    return _begin(incomplete, lambda: [one.name for one in kept_studies(home())])


def refuse_unknown_shell(arguments: Sequence[str]) -> None:
    """Refuse to set up completion where no shell can be told, which typer would say with an empty name.

    Raises
    ------
    Refusal
        If `arguments` ask for it and the shell is unknown.
    """
    if not {"--show-completion", "--install-completion"} & set(arguments):
        return
    import shellingham  # type: ignore[import-untyped]

    try:
        shell = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        shell = "none"
    if shell not in SHELLS:
        raise Refusal(
            f"completion must be asked for from one of {', '.join(SHELLS)}; the shell here is {shell}."
        )


def _begin(incomplete: str, names: Callable[[], Sequence[str]]) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except (OSError, ValueError):
        # Nobody who presses Tab wants to read what is wrong with a card.
        return []
