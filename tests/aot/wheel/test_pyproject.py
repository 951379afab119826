"""The settings of a project, held against their documentation."""

from __future__ import annotations

import dataclasses
import re

from places import EXAMPLE, PROJECT

from aot.wheel.pyproject import ConfigSettings, Table, read_project

ROOT = PROJECT


def test_documentation_lists_every_setting_with_its_default() -> None:
    text = (ROOT / "docs" / "guides" / "wheels.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z-]+)` \| .* \| (.*) \|$", text, re.MULTILINE))
    fields = {field.name.replace("_", "-"): field.default for field in dataclasses.fields(Table)}
    assert listed.keys() == fields.keys()
    for name, default in fields.items():
        if isinstance(default, str):
            assert listed[name] == f'`"{default}"`'
    for field in dataclasses.fields(ConfigSettings):
        assert f"`{field.name}`" in text.partition("`--config-settings`:")[2].partition(".")[0]


def test_sample_project_is_what_its_pyproject_says() -> None:
    project = read_project(EXAMPLE)
    assert project.project.identity.package == "sample_kernels"
    assert project.project.identity.distribution == "sample-kernels"
    assert [host.cpu for host in project.hosts] == ["x86_64", "aarch64"]
    assert project.table.archs == ("sm80", "sm90")
