"""docker-compose.yml and Dockerfile follow their specifications and the rules of the project."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import Settings
from tests.compose import COMPOSE, ROOT, load

BIN = Path(sys.executable).parent
SERVICES = load()["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_file_is_what_the_compose_specification_says() -> None:
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_passes_hadolint() -> None:
    done = subprocess.run(
        [BIN / "hadolint", "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_all_services_are_there() -> None:
    assert SERVICES.keys() == {"redis", "router", "flower", "gateway", "worker"}
    assert SERVICES["router"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_locked_down(name: str) -> None:
    service: dict[str, Any] = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].split(":")[0]) > 0
    assert service["healthcheck"]["test"]
    assert "privileged" not in service
    assert "cap_add" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_named_by_its_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].partition(":")
    assert re.match(r"\d+\.\d+\.\d+", tag)


def test_only_flower_and_the_gateway_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"flower", "gateway"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert load()["networks"]["grid"]["internal"] is True
    assert {name for name, service in SERVICES.items() if service["networks"] != ["grid"]} == published.keys()


def test_the_gateway_is_optional() -> None:
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["gateway"]
    assert "--host" in SERVICES["gateway"]["command"]


def test_secrets_come_from_files_alone() -> None:
    secrets = load()["secrets"]
    assert all(set(secret) == {"file"} for secret in secrets.values())
    for service in SERVICES.values():
        assert set(service["secrets"]) <= secrets.keys()
        for variable, value in service.get("environment", {}).items():
            assert "@" not in value, "no login in a URL"
            assert not re.search(r"(PASSWORD|KEY|TOKEN|SECRET)$", variable)


def test_every_variable_is_a_setting() -> None:
    fields = Settings.model_fields
    for service in SERVICES.values():
        for variable in service.get("environment", {}):
            name = variable.removeprefix("GRIDQ_").lower()
            assert name in fields or name.removesuffix("_file") in fields, variable


def test_a_worker_may_finish_before_it_is_killed() -> None:
    grace = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace >= Settings.model_fields["drain"].default + 5


def test_the_last_images_have_no_compiler_and_no_privileges() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    names = {stage.split()[2]: stage for stage in stages}
    assert names.keys() == {"wheels", "worker-wheels", "grid", "worker"}
    bases = {stage.split()[0] for stage in stages} - names.keys()
    assert [bool(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base)) for base in bases] == [True]
    for name in ("grid", "worker"):
        users = re.findall(r"^USER (\S+)", names[name], re.MULTILINE)
        assert users[-1] == "10001:10001"
        assert not re.search(r"apt|gcc|build-essential|COPY \.", names[name])
    assert "HEALTHCHECK" in names["grid"]


def test_an_image_and_its_service_have_the_same_command() -> None:
    for name, service in (("grid", "router"), ("worker", "worker")):
        stage = re.split(rf"^FROM .* AS {name}$", DOCKERFILE, flags=re.MULTILINE)[1].split("\nFROM ")[0]
        command = re.findall(r'"([^"]*)"', re.findall(r"^CMD (.*)$", stage, re.MULTILINE)[-1])
        assert command == SERVICES[service]["command"]


def test_the_build_context_has_only_what_is_copied() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {
        name for line in copied for name in line.split()
    }
