"""Files that a command is to write when it has run."""

from collections.abc import Iterable
from pathlib import Path


def see_writable(files: Iterable[tuple[str, Path | None]]) -> None:
    """See before a long run that these can be written: what goes there, and the path.

    Raises ValueError for a path that cannot be written to, and for one that is given twice.
    """
    seen: dict[Path, str] = {}
    for what, path in files:
        if path is None:
            continue
        other = seen.setdefault(path.resolve(), what)
        if other != what:
            raise ValueError(f"{other} and {what} cannot both be written to {path}; name two files")
        _try(what, path)


def _try(what: str, path: Path) -> None:
    """Open it, and leave everything as it was."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        reason = error.strerror
        raise ValueError(f"{what} cannot be written to {path}: {reason}; give a file in an existing folder") from None
    if not existed:
        path.unlink()
