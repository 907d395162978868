"""The workflows of CI: they parse, name existing things, run the Makefile's targets, and publish nothing unchecked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs_of(path: Path) -> dict[str, dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    assert isinstance(jobs, dict)
    return jobs


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_names_is_there(path: Path) -> None:
    jobs = jobs_of(path)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in jobs.items():
        needed = job.get("needs", [])
        assert {needed} if isinstance(needed, str) else set(needed) <= jobs.keys(), name
        if "uses" in job:  # another workflow here, which may be called
            called = yaml.safe_load((ROOT / job["uses"]).read_text())
            assert "workflow_call" in called[True], name  # YAML takes `on` for a truth value
            continue
        assert "runs-on" in job, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), (name, step)
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+(\.\d+\.\d+)?|release/v\d+)", step["uses"]), step
            elif step["run"].startswith("make "):
                assert step["run"].removeprefix("make ").partition(" ")[0] in targets, step  # NAME=value may follow


def test_the_checks_run_on_every_python_that_gets_a_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]["build"]
    pythons = [f"3.{minor}" for minor in re.findall(r"cp3(\d+)-", build)]
    jobs = jobs_of(ROOT / ".github" / "workflows" / "ci.yml")
    for name in ("check", "macos"):
        assert jobs[name]["strategy"]["matrix"]["python"] == pythons, name


def test_nothing_is_published_unchecked() -> None:
    jobs = jobs_of(ROOT / ".github" / "workflows" / "wheels.yml")
    assert "check" in jobs["publish"]["needs"]
    assert jobs["check"]["uses"] == "./.github/workflows/ci.yml"
    assert jobs["check"]["if"] == jobs["publish"]["if"]


def test_the_site_is_published_from_main_once_it_is_built() -> None:
    jobs = jobs_of(ROOT / ".github" / "workflows" / "docs.yml")
    runs = [step.get("run") for step in jobs["build"]["steps"]]
    assert "make docs" in runs
    upload = next(step for step in jobs["build"]["steps"] if "pages-artifact" in step.get("uses", ""))
    site_dir = re.search(r"^site_dir: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert site_dir is not None
    assert upload["with"]["path"] == site_dir[1]
    assert jobs["publish"]["needs"] == "build"
    assert "refs/heads/main" in jobs["publish"]["if"]
    rights = {name for name, job in jobs.items() if "write" in job.get("permissions", {}).values()}
    assert rights == {"publish"}


FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_forms_for_issues_are_whole(path: Path) -> None:
    """GitHub shows a form only if it has these keys; ids of fields are unique."""
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields
    assert all(field["type"] in {"textarea", "input", "dropdown"} for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
