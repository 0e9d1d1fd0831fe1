"""Where what can be computed again lies between runs, and the name of the state of the tree it was computed from."""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

_SUFFIXES = (".py", ".toml", ".txt", ".json")
"""Files of code and data."""


def cache_folder() -> Path:
    """``MINILLM_CACHE``, or ``minillm`` in the user's cache folder."""
    own = os.environ.get("MINILLM_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minillm"


def made_folder(name: str) -> Path:
    """A folder in the cache, made if it is not there. Raises ValueError where it cannot be."""
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the folder {folder} cannot be made: {error.strerror}; set MINILLM_CACHE to a folder of yours"
        ) from None
    return folder


def tree_hash(paths: Iterable[Path]) -> str:
    """Hash of these files and of all code and data below these folders: hexadecimal, 16 characters."""
    hasher = hashlib.sha256()
    for path in sorted(_files(paths)):
        hasher.update(f"{path}\0".encode())
        hasher.update(hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()[:16]


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
        else:
            yield path


def keep_newest(folder: Path, pattern: str, count: int) -> None:
    """Delete what matches ``pattern`` in ``folder`` and is older than the newest ``count``: files, or folders."""
    paths = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths[count:]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
