"""The shape of the tree: links, forbidden files, public names, length of files."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("cluster", "cuda", "protos", "scheduler", "workers")
CODE = ("blockyard", *LINKED)
MOST_LINES = 300
# Names below NVIDIA's `cuda`; one of ours among them would hide or be hidden.
NVIDIA_CUDA = {
    *("bindings", "bench", "cccl", "ccl", "compute", "coop", "core", "cudart", "cudla", "cufile"),
    *("driver", "nvfatbin", "nvjitlink", "nvml", "nvrtc", "nvvm", "pathfinder", "runtime", "tile"),
}


def python_files(*folders: str) -> Iterator[Path]:
    """Files people write; generated stubs are left out and links are not followed."""
    for folder in folders:
        for place, _, names in os.walk(ROOT / folder):
            for name in sorted(names):
                if name.endswith(".py") and "_pb2" not in name:
                    yield Path(place, name)


@pytest.mark.parametrize("name", LINKED)
def test_a_link_gives_the_folder_its_import_name(name: str) -> None:
    link = ROOT / "blockyard" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert link.samefile(ROOT / name)


def test_blockyard_holds_the_facade_and_the_links_alone() -> None:
    found = {entry.name for entry in (ROOT / "blockyard").iterdir()} - {"__pycache__"}
    assert found == {"__init__.py", "__main__.py", "py.typed", *LINKED}


@pytest.mark.parametrize("place", [".", "cuda", "tests", "helm", "benchmarks"])
def test_no_package_marker_where_it_does_harm(place: str) -> None:
    assert not list((ROOT / place).glob("__init__.py"))


@pytest.mark.parametrize("name", ["cluster", "protos", "scheduler", "workers"])
def test_the_other_folders_are_ordinary_packages(name: str) -> None:
    assert (ROOT / name / "__init__.py").is_file()


def test_tests_are_no_package_anywhere() -> None:
    assert [path for path in python_files("tests") if path.name == "__init__.py"] == []


def test_cuda_takes_no_name_of_nvidias() -> None:
    ours = {entry.name.partition(".")[0] for entry in (ROOT / "cuda").iterdir()}
    assert not ours & NVIDIA_CUDA


def resolved_from_the_root(module: str, *more: Path) -> str:
    """The file `module` is loaded from by a Python started in the repository's root."""
    paths = os.pathsep.join([*map(str, more), os.environ.get("PYTHONPATH", "")])
    code = f"import cuda, {module}; print(list(cuda.__path__)); print({module}.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths.strip(os.pathsep)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    portions, file = ran.stdout.splitlines()
    assert str(ROOT / "cuda") in portions, "the test must run where our folder is in sight"
    return file


def test_another_cuda_package_stays_importable_from_the_root(tmp_path: Path) -> None:
    other = tmp_path / "cuda" / "pathfinder" / "__init__.py"
    other.parent.mkdir(parents=True)
    other.touch()
    assert resolved_from_the_root("cuda.pathfinder", tmp_path) == str(other)


def test_nvidias_cuda_stays_importable_from_the_root() -> None:
    try:
        installed = find_spec("cuda.pathfinder")
    except ModuleNotFoundError:
        installed = None
    if installed is None:
        pytest.skip("cuda-pathfinder is not installed: it comes with the gpu extra")
    assert installed.origin is not None
    assert resolved_from_the_root("cuda.pathfinder") == installed.origin
    assert not Path(installed.origin).is_relative_to(ROOT / "cuda")


def names_for_type_checkers(module: ast.Module) -> Iterator[ast.stmt]:
    """Imports that only type checkers follow: the facade loads those names when asked."""
    for node in module.body:
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                yield from node.body


def test_every_name_of_the_facade_can_be_had() -> None:
    code = "import blockyard; [getattr(blockyard, name) for name in blockyard.__all__]"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in python_files(*CODE)]
)
def test_public_names_are_listed_and_exist(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    bound: set[str] = set()
    made: set[str] = set()
    listed: list[str] | None = None
    for node in [*module.body, *names_for_type_checkers(module)]:
        match node:
            case ast.FunctionDef(
                decorator_list=[ast.Call(func=ast.Attribute(attr="command" | "callback"))]
            ):
                bound.add(node.name)  # a command of the shell, handed to its app right there
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                made.add(node.name)
            case ast.Import() | ast.ImportFrom():
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            case ast.Assign(targets=[ast.Name("__all__")], value=value):
                listed = ast.literal_eval(value)
            case ast.Assign():
                bound |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            case ast.AnnAssign(target=ast.Name(name)):
                bound.add(name)
    public = {name for name in made if not name.startswith("_")}
    if listed is None:
        assert not public, f"add __all__ with {sorted(public)}"
        return
    assert len(listed) == len(set(listed)), "__all__ names something twice"
    assert set(listed) <= bound | made, "__all__ names what the module does not define"
    assert public <= set(listed), (
        "a public name is missing from __all__; list it or make it _private"
    )


def test_files_stay_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(*CODE, "tests", "benchmarks")
    }
    assert {path: lines for path, lines in lengths.items() if lines >= MOST_LINES} == {}


def test_nothing_waits_by_spinning() -> None:
    """An event loop that spins lets go of the interpreter for less time than a waking thread takes.

    A worker's thread in the same process may then never get its turn: wait with `sleep(0.001)`.
    """
    spinning = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(*CODE, "tests", "benchmarks")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.While)
        and [ast.unparse(statement) for statement in node.body] == ["await asyncio.sleep(0)"]
    ]
    assert spinning == []
