"""What a run at one size may claim, in the words that every place uses."""

from __future__ import annotations

__all__ = ["CLAIM_WORDS", "FULL"]

# The preset that decides what a smaller one leaves open, made for one GPU.
FULL = "full"

CLAIM_WORDS = {
    "none": "checks the path and claims nothing",
    "exploratory": "is exploratory: it may suggest an answer, it gives none",
    "answer": "may answer the question",
}
