"""The images: clean to a linter, in step with the project, installed as they say in a clean venv.

Nothing here builds an image: that needs a container engine and images from a registry.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("Dockerfile", "Dockerfile.cpu")
INSTALL_SECONDS = 1500


def instructions(image: str) -> list[str]:
    """Each instruction on a line, comments left out."""
    lines = [
        line
        for line in (ROOT / image).read_text().splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [re.sub(r"\s+", " ", line) for line in joined.splitlines()]


@pytest.mark.parametrize("image", IMAGES)
def test_a_linter_finds_nothing(image: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    ran = subprocess.run(
        [hadolint, "--failure-threshold", "info", ROOT / image], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.parametrize("image", IMAGES)
def test_it_is_pinned_and_runs_without_root(image: str) -> None:
    told = instructions(image)
    for line in told:
        if line.startswith("FROM "):
            assert re.search(r":\d+\.\d+\.\d+-", line), f"{line} is not pinned"
        if "pip install" in line:
            assert "-c constraints.txt" in line
    last = max(index for index, line in enumerate(told) if line.startswith("FROM "))
    assert "USER 1000:1000" in told[last:], "the chart's pods run as this user"
    assert not [line for line in told[last:] if line.startswith("COPY . ")], "sources stay behind"
    # A login shell finds the commands, too.
    assert any("/etc/profile.d/blockyard.sh" in line for line in told[last:])


@pytest.mark.parametrize("image", IMAGES)
def test_its_tag_is_the_version(image: str) -> None:
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    suffix = "-cpu" if image.endswith("cpu") else ""
    assert f"-t blockyard:{version}{suffix} " in (ROOT / image).read_text().splitlines()[0]


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_SECONDS + 100)
def test_the_install_steps_work_in_a_clean_venv(tmp_path: Path) -> None:
    """The steps of the CPU image's first stage, on what its COPY would copy."""
    tree, place = tmp_path / "src", tmp_path / "opt" / "blockyard"
    left_out = (ROOT / ".dockerignore").read_text().split()
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for path in filter(None, listed.stdout.split("\0")):
        if path.partition("/")[0] not in left_out and (ROOT / path).exists():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, tree / path, follow_symlinks=False)
    told = instructions("Dockerfile.cpu")
    stage = told[: next(n for n, line in enumerate(told) if n and line.startswith("FROM "))]
    steps = [line.removeprefix("RUN ") for line in stage if line.startswith("RUN ")]
    installs = [step for step in steps if "pip install" in step]
    assert len(installs) == 1
    for step in installs:
        command = step.replace("/opt/blockyard", str(place)).replace(
            "python -m", f"{sys.executable} -m", 1
        )
        ran = subprocess.run(
            ["sh", "-ec", command],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    for words in (["blockyard", "version"], ["ray", "--version"]):
        ran = subprocess.run(
            [place / "bin" / words[0], *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
    # What the chart's pods import is inside, although the sources are gone.
    shutil.rmtree(tree)
    code = "import blockyard.cluster.service, blockyard.cluster.deploy.leave_node"
    ran = subprocess.run(
        [place / "bin" / "python", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
