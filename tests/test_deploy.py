"""What the files in deploy/ name is there."""

import re
import shlex
import tomllib

import pytest
import yaml

from doc_pages import ROOT
from sparring.cli.main import main

DEPLOY = ROOT / "deploy"


def test_the_image_copies_and_installs_what_there_is():
    text = (DEPLOY / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for given in re.findall(r'EXTRAS="([\w,]+)"', text + (DEPLOY / "kuberay.yaml").read_text()):
        assert set(given.split(",")) <= set(extras)
    copied = [word for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert "src" in copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_image_has_what_kuberay_asks_of_it():
    image, text = (DEPLOY / "Dockerfile").read_text(), (DEPLOY / "kuberay.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]["rayClusterSpec"]
    users = [one["template"]["spec"] for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    assert {one["securityContext"]["fsGroup"] for one in users} == {int(re.search(r"--uid (\d+)", image)[1])}
    assert " wget " in image
    assert "ray[default]" in text


@pytest.mark.parametrize("file", ["kuberay.yaml", "skypilot.yaml"])
def test_the_run_of_a_cluster_is_valid(file):
    settings = yaml.safe_load((DEPLOY / file).read_text())
    command = settings["spec"]["entrypoint"] if "spec" in settings else settings["run"]
    script, *words = shlex.split(command.replace("$CONFIG", "kuhn"))
    if script == "scripts/train":
        assert (ROOT / script).exists()
        words.insert(0, "train")
    assert main([*words, "--validate"]) == 0
