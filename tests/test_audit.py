"""The audit of dependencies finds what it is for, and says what it could not look at."""

from __future__ import annotations

import http.server
import json
import runpy
import sys
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

AUDIT = runpy.run_path(str(Path(__file__).resolve().parent.parent / ".ci" / "audit.py"))


@pytest.fixture
def service() -> Iterator[str]:
    """A service that knows of one vulnerability, of zlib-like 1.2.11."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            bad = {"package": {"name": "zlib-like", "ecosystem": "PyPI"}, "version": "1.2.11"}
            answer = {"results": [{"vulns": [{"id": "PYSEC-1"}]} if one == bad else {} for one in asked]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/querybatch"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_known_vulnerability_of_a_pin_is_found_and_needs_an_exception(service: str) -> None:
    found = AUDIT["vulnerabilities"]({"torch": "2.13.0", "zlib-like": "1.2.11"}, service)
    assert found == {"PYSEC-1": ["zlib-like==1.2.11"]}
    assert AUDIT["judged"](found, {}) == ["zlib-like==1.2.11: PYSEC-1"]
    assert AUDIT["judged"](found, {"PYSEC-1": "we never unpack what others packed"}) == []
    assert AUDIT["vulnerabilities"]({"zlib-like": "1.2.12"}, service) == {}
    assert AUDIT["judged"]({}, {"PYSEC-1": "a reason"}) == ["the exception PYSEC-1 is not needed any more"]


def test_a_service_that_does_not_answer_is_said_in_a_line_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["audit.py", "--service", "http://127.0.0.1:9/v1/querybatch"])
    code = AUDIT["main"]()
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "no vulnerability data: http://127.0.0.1:9/v1/querybatch cannot be asked from here" in said.out
    assert len(said.out.splitlines()) == 2


def test_a_pin_outside_its_range_and_a_range_without_a_pin_are_found() -> None:
    project = {
        "dependencies": ["polars>=2.0,<3"],
        "optional-dependencies": {
            "docs": ["pdoc>=16"],
            "dashboard": ["nobody-installs-this>=1"],
            "dev": ["fints[docs]"],
        },
    }
    assert AUDIT["against_ranges"]({"polars": "2.1.0", "pdoc": "16.0.0"}, project) == []
    assert AUDIT["against_ranges"]({"polars": "3.0.0"}, project) == [
        "polars==3.0.0 is outside polars<3,>=2.0 of pyproject.toml",
        "pdoc>=16 of pyproject.toml has no pin",
    ]


def test_another_version_than_the_pinned_one_is_found() -> None:
    assert AUDIT["against_installed"]({"numpy": "0.0.1", "no-such-package-here": "1"})[0].startswith(
        "numpy==0.0.1 is pinned, "
    )


@pytest.mark.parametrize(
    ("licence", "refused"),
    [
        ("AGPL-3.0-or-later", True),
        ("GNU Affero General Public License v3", True),
        ("GPL-2.0-only", True),
        ("LGPL-2.1-or-later", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("GPL-2.0-only OR MIT", False),
        ("Apache-2.0", False),
    ],
)
def test_a_core_dependency_under_a_licence_that_binds_its_users_is_found(
    monkeypatch: pytest.MonkeyPatch, licence: str, refused: bool
) -> None:
    facts = Message()
    facts["License-Expression"] = licence
    # The function reads the names of the module that `run_path` made.
    monkeypatch.setitem(AUDIT["against_licences"].__globals__, "metadata", lambda name: facts)
    found = AUDIT["against_licences"]({"dependencies": ["one>=1"]})
    assert bool(found) == refused, found
