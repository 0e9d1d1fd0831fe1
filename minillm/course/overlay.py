"""The overlay: a fresh process imports the project with some functions written by someone else.

Skeletons, students' solutions and mutants are all run this way. Replacing attributes after the import would miss
whatever has bound the old function by then: registries, default arguments, compiled callers.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from minillm.course.splice import OverlayError, Source, Tasks, splice


class Overlay:
    """Modules in which the functions that ``tasks`` names come from the file ``lab``.

    Only their bodies are the lab's: signatures and decorators stay the reference's, and helper functions, constants
    and imports of the lab join the module. Raises OverlayError where the lab does not fit, and SyntaxError.
    """

    def __init__(self, lab: Path, tasks: Tasks) -> None:
        source = Source(str(lab), lab.read_text(encoding="utf-8"))
        references = {module: _reference(module) for module in tasks}
        self._code = {
            module: (reference.path, splice(module, reference, source, tasks))
            for module, reference in references.items()
        }
        wanted = sorted((module, sorted(names)) for module, names in tasks.items())
        texts = [source.text, *(reference.text for reference in references.values())]
        self.digest = hashlib.sha256(repr((wanted, texts)).encode()).hexdigest()[:16]

    def install(self) -> None:
        """Let this process, and no child of it, import the modules so from now on.

        Compiled numba functions go to a cache of this overlay's own, below ``NUMBA_CACHE_DIR`` where that is set: the
        shared one may hold callers with the reference compiled into them. Raises OverlayError if it is too late.
        """
        late = sorted({*self._code, "numba"} & set(sys.modules))
        if late:
            raise OverlayError(f"{late[0]} is imported already; install an overlay first thing in a fresh process")
        root = os.environ.get("NUMBA_CACHE_DIR") or Path.home() / ".cache" / "minillm" / "numba"
        os.environ["NUMBA_CACHE_DIR"] = str(Path(root) / self.digest)
        sys.meta_path.insert(0, _Finder({name: _Loader(name, *entry) for name, entry in self._code.items()}))


def _reference(module: str) -> Source:
    """A module's source, found without importing the module."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise OverlayError(f"there is no module {module} to overlay; check the name")
    return Source(spec.origin, Path(spec.origin).read_text(encoding="utf-8"))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: list[CodeType]) -> None:
        super().__init__(name, path)
        self._code = code

    def exec_module(self, module: ModuleType) -> None:
        for code in self._code:
            exec(code, module.__dict__)


class _Finder(MetaPathFinder):
    def __init__(self, loaders: dict[str, _Loader]) -> None:
        self._loaders = loaders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = self._loaders.get(name)
        return importlib.util.spec_from_file_location(name, loader.path, loader=loader) if loader else None
