"""A study file that declares what cannot be used ends as its verbs do: one line, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType, ModuleType, TracebackType

__all__ = ["refuse_in_one_line"]


def refuse_in_one_line() -> None:
    """Tell in one line what a program's own file declares wrongly; all else keeps its traceback.

    A declaration is checked where it stands, before any verb could catch what it raises. Nothing is done in
    a shell or a notebook, nor where somebody else tells of errors already.
    """
    program = sys.modules.get("__main__")
    if isinstance(getattr(program, "__file__", None), str) and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if trace is None or not _declares(kind, error, trace, sys.modules["__main__"]):
        sys.__excepthook__(kind, error, trace)
        return
    print(
        f"error: {trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}: {_line(error)}", file=sys.stderr
    )
    raise SystemExit(2)


def _declares(
    kind: type[BaseException], error: BaseException, trace: TracebackType, program: ModuleType
) -> bool:
    """Tell whether the program's own top level built a part of a study that cannot be."""
    frames = list(_frames(trace))
    if frames[0].f_globals is not vars(program) or frames[0].f_code.co_name != "<module>":
        return False
    if kind is TypeError:
        # An argument that there is not, or one that is left out: Python says it of the caller's own line.
        return len(frames) == 1 and ".__init__() " in str(error)
    ours = [str(frame.f_globals.get("__name__", "")).partition(".")[0] == "fints" for frame in frames[1:]]
    checked = any(frame.f_code.co_name == "__post_init__" for frame in frames[1:])
    return kind is ValueError and all(ours) and checked


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
