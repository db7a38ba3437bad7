"""Audit requirements.lock: pins against ranges and what is installed, licences, known vulnerabilities.

    python .ci/audit.py [--service URL]

Vulnerabilities are asked of OSV, one question for all pins. Where it cannot be reached the audit says so in a
line and rests on what needs no network; what is found, and has no exception below, ends it with 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
SERVICE = "https://api.osv.dev/v1/querybatch"
TIMEOUT_S = 30
# Vulnerability -> why it does not matter here. One that is no longer found is an error: take it out.
EXCEPTIONS: dict[str, str] = {}
# Whoever installs fints without extras must not come under these; an extra that is asked for by name may.
COPYLEFT = re.compile(r"\b(AGPL|GPL|SSPL)|GNU (Affero )?General Public", re.IGNORECASE)
# Package -> why a licence that looks like one of those is none.
LICENCES: dict[str, str] = {}


def name_of(text: str) -> str:
    """Return a package's name as the lock has it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def read_pins(lock: Path) -> dict[str, str]:
    """Return name -> version of a lock."""
    lines = [line.strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def against_ranges(pins: Mapping[str, str], project: Mapping[str, object]) -> list[str]:
    """Return what of the project's ranges the pins do not meet.

    What the extra `dev` does not ask for is installed nowhere in development: it needs no pin.
    """
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    wanted = list(map(Requirement, [*project["dependencies"], *extras["dev"]]))  # type: ignore[misc]
    found = []
    for entry in wanted:
        name = name_of(entry.name)
        if name == "fints":
            wanted += [Requirement(one) for extra in sorted(entry.extras) for one in extras[extra]]
            continue
        if name not in pins:
            found.append(f"{entry} of pyproject.toml has no pin")
        elif not entry.specifier.contains(pins[name], prereleases=True):
            found.append(f"{name}=={pins[name]} is outside {entry} of pyproject.toml")
    return found


def against_installed(pins: Mapping[str, str]) -> list[str]:
    """Return which pins are not what is installed here; what does not belong on this system may be absent."""
    found = []
    for name, pin in pins.items():
        try:
            here = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
        if here != pin:
            found.append(f"{name}=={pin} is pinned, {here} is installed")
    return found


def against_licences(core: Mapping[str, object]) -> list[str]:
    """Return which packages that every user gets are under a licence that binds what uses them."""
    found = []
    for name in sorted(_reached([Requirement(entry).name for entry in core["dependencies"]])):  # type: ignore[attr-defined]
        facts = metadata(name)
        licence = facts.get("License-Expression") or " ".join(
            [*(facts.get_all("Classifier") or []), (facts.get("License") or "").partition("\n")[0]]
        )
        lesser = re.sub(r"\bLGPL|GNU Lesser General Public", "", licence, flags=re.IGNORECASE)
        if COPYLEFT.search(lesser) and " OR " not in licence and name not in LICENCES:
            found.append(f"{name} is under {licence[:120]}: a core dependency must not be")
    return found


def vulnerabilities(pins: Mapping[str, str], service: str) -> dict[str, list[str]]:
    """Return vulnerability -> the pins that have it.

    Raises
    ------
    OSError, ValueError
        If the service cannot be reached, or answers something else.
    """
    names = sorted(pins)
    asked = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": pins[name]} for name in names]
    request = urllib.request.Request(
        service, json.dumps({"queries": asked}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        results = json.load(reply)["results"]
    if len(results) != len(names):
        raise ValueError(f"{len(results)} answers to {len(names)} questions")
    found: dict[str, list[str]] = {}
    for name, result in zip(names, results, strict=True):
        for one in result.get("vulns") or []:
            found.setdefault(str(one["id"]), []).append(f"{name}=={pins[name]}")
    return found


def judged(found: Mapping[str, list[str]], exceptions: Mapping[str, str]) -> list[str]:
    """Return what of the vulnerabilities found is an error, exceptions that are no longer needed too."""
    errors = [f"{', '.join(pins)}: {name}" for name, pins in sorted(found.items()) if name not in exceptions]
    return errors + [
        f"the exception {name} is not needed any more" for name in exceptions if name not in found
    ]


def main() -> int:
    """Audit and say what was looked at."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--service", default=SERVICE)
    given = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = read_pins(ROOT / "requirements.lock")
    errors = against_ranges(pins, project) + against_installed(pins) + against_licences(project)
    print(f"{len(pins)} pins: in the ranges of pyproject.toml, as installed, core licences")
    try:
        found = vulnerabilities(pins, given.service)
    except (OSError, ValueError, LookupError) as error:
        print(f"no vulnerability data: {given.service} cannot be asked from here ({error})")
    else:
        errors += judged(found, EXCEPTIONS)
        print(f"{len(found)} known vulnerabilities of the pins, {len(EXCEPTIONS)} of them excepted")
        for name, reason in EXCEPTIONS.items():
            print(f"excepted: {name}: {reason}")
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


def _reached(names: list[str]) -> set[str]:
    """Return the packages and all that they need here, extras left out."""
    reached: set[str] = set()
    left = [name_of(name) for name in names]
    while left:
        name = left.pop()
        if name in reached:
            continue
        try:
            needs = metadata(name).get_all("Requires-Dist") or []
        except PackageNotFoundError:
            continue
        reached.add(name)
        for entry in map(Requirement, needs):
            if entry.marker is None or entry.marker.evaluate({"extra": ""}):
                left.append(name_of(entry.name))
    return reached


if __name__ == "__main__":
    sys.exit(main())
