"""The template of a Kubernetes job in docs/cluster.md is a job whose pods are workers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fints.cli import app

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "cluster.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")
    return found


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_its_pods_run_a_worker_that_the_command_line_takes(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, verb, *words = container(job)["command"]
    assert (program, verb) == ("fints", "worker")
    for entry in container(job)["env"]:
        monkeypatch.setenv(entry["name"], "postgresql+psycopg://db/fints")
    worker = typer.main.get_command(app).commands["worker"]  # type: ignore[attr-defined]
    given = worker.make_context("worker", [*words]).params
    assert given["name"] == words[words.index("--study") + 1]
    assert given["storage"] == given["tracking_uri"] == "postgresql+psycopg://db/fints"


def test_no_address_stands_in_it_but_by_reference_to_a_secret(job: dict[str, Any]) -> None:
    env = {entry["name"]: entry for entry in container(job)["env"]}
    assert set(env) == {"FINTS_STORAGE", "MLFLOW_TRACKING_URI"}
    for entry in env.values():
        assert set(entry) == {"name", "valueFrom"}
        assert set(entry["valueFrom"]["secretKeyRef"]) == {"name", "key"}
    keys = {entry["valueFrom"]["secretKeyRef"]["key"] for entry in env.values()}
    for key in keys:
        assert f"--from-file={key}=" in TEXT
    assert "://" not in str(job)


def test_it_ends_when_every_worker_has_left_and_a_refusal_is_not_tried_again(job: dict[str, Any]) -> None:
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] > 1
    # Kubernetes takes a policy on failed pods, and a limit an index, with this restart policy only.
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "backoffLimit" not in spec
    refused, drained = spec["podFailurePolicy"]["rules"]
    assert refused["action"] == "FailJob"
    assert refused["onExitCodes"] == {
        "containerName": container(job)["name"],
        "operator": "In",
        "values": [2],
    }
    assert (drained["action"], drained["onPodConditions"]) == ("Ignore", [{"type": "DisruptionTarget"}])
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
