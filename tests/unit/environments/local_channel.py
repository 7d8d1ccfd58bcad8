"""A conda channel and wheels, made on the spot: enough to make real environments from, without a network."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: As `conda list --explicit` would name it; the stand-in looks at the file's name only.
CHANNEL_URL = "https://conda.anaconda.org/conda-forge"

_ACTIVATE = """\
export PATH="$1/bin:$PATH" CONDA_PREFIX="$1"
"""


@dataclass(frozen=True)
class Conda:
    """A stand-in conda with its channel and a folder of wheels."""

    folder: Path

    @property
    def wheels(self) -> Path:
        """Where pip looks, and nowhere else."""
        return self.folder / "wheels"

    def variables(self) -> dict[str, str]:
        """What a program needs to find this conda and nothing of the network."""
        return {
            "CONDA_STAND_IN": str(self.folder),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }


def make(folder: Path, packages: Mapping[str, str]) -> Conda:
    """A conda in ``folder`` whose channel has ``packages`` (name to version); ``python`` and ``pip`` work, others are empty."""
    (folder / "bin").mkdir(parents=True)
    stand_in = Path(__file__).with_name("conda_stand_in.py")
    # Isolated: what a job puts on PYTHONPATH is not for conda.
    text = f"import runpy\nrunpy.run_path({str(stand_in)!r}, run_name='__main__')\n"
    (folder / "bin" / "conda").write_text(f"#!{sys.executable} -I\n{text}")
    (folder / "bin" / "conda").chmod(0o755)
    (folder / "bin" / "activate").write_text(_ACTIVATE)
    conda = Conda(folder)
    conda.wheels.mkdir()
    (folder / "pip").mkdir()
    # The running Python's pip, by name alone.
    (folder / "pip" / "pip").symlink_to(Path(sysconfig.get_paths()["purelib"]) / "pip")
    for name, version in packages.items():
        if name == "python":
            _package(folder / "channel", name, version, *_python())
        elif name == "pip":
            files = {"lib/python3.11/site-packages/pip_of_the_test.pth": str(folder / "pip")}
            _package(folder / "channel", name, version, files, depends=["python"])
        else:
            _package(folder / "channel", name, version, {f"share/{name}.txt": version})
    from rattler.index import index_fs

    asyncio.run(index_fs(folder / "channel"))
    return conda


def _python() -> tuple[dict[str, str], dict[str, str]]:
    """The running interpreter as a virtual environment links to it, so that ``sys.prefix`` is the environment's."""
    base = Path(sys.base_prefix) / "bin"
    files = {
        "pyvenv.cfg": f"home = {base}\ninclude-system-site-packages = false\n",
        "lib/python3.11/site-packages/README.txt": "",
    }
    return files, {"bin/python": str(base / "python3.11"), "bin/python3": "python", "bin/python3.11": "python"}


def _package(
    channel: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    links: Mapping[str, str] | None = None,
    depends: list[str] | None = None,
) -> None:
    links = links or {}
    paths = [
        {"_path": path, "path_type": "hardlink", "sha256": _sha256(text.encode()), "size_in_bytes": len(text.encode())}
        for path, text in files.items()
    ]
    paths += [{"_path": path, "path_type": "softlink", "sha256": _sha256(b""), "size_in_bytes": 0} for path in links]
    index = {
        "name": name,
        "version": version,
        "build": "0",
        "build_number": 0,
        "subdir": "linux-64",
        "platform": "linux",
        "arch": "x86_64",
        "depends": depends or [],
        # The solver refuses packages without one.
        "timestamp": 1_700_000_000_000,
    }
    members = {
        "info/index.json": json.dumps(index),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}),
        "info/about.json": "{}",
        **files,
    }
    archive = channel / "linux-64" / f"{name}-{version}-0.tar.bz2"
    archive.parent.mkdir(parents=True, exist_ok=True)
    (channel / "noarch").mkdir(exist_ok=True)
    with tarfile.open(archive, "w:bz2") as tar:
        for path, text in members.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)


def wheel(folder: Path, name: str, version: str, source: str) -> str:
    """A wheel with one module, ``name``.py; returns its pin for a lock."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    _zip(path, _wheel_files(name, version, source))
    return pin(name, version, path)


def source_package(folder: Path, name: str, version: str, *, build_imports: str) -> str:
    """A source package whose build imports ``build_imports``, as flash-attn's imports torch; returns its pin for a lock."""
    files = _wheel_files(name, version, f"import {build_imports}\nBUILT_WITH = '{build_imports}'\n")
    backend = f"""\
import {build_imports}, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{{folder}}/{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {files!r}.items():
            wheel.writestr(path, text)
    return "{name}-{version}-py3-none-any.whl"
"""
    members = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": backend,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for file, text in members.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return pin(name, version, path)


def pin(name: str, version: str, path: Path) -> str:
    """A package of a lock, as uv writes it."""
    return f"{name}=={version} \\\n    --hash=sha256:{_sha256(path.read_bytes())}\n"


def _wheel_files(name: str, version: str, source: str) -> dict[str, str]:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return files | {f"{info}/RECORD": "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])}


def _zip(path: Path, files: Mapping[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
