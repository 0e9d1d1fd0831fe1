"""The overlay: a fresh process imports the project with some functions written by someone else.

Skeletons, students' solutions and mutants are all run this way. Replacing attributes after the import would miss
whatever has bound the old function by then: registries, default arguments, compiled callers.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from minillm.course.cache import cache_folder
from minillm.course.splice import OverlayError, Source, Tasks, splice

DIGEST_LENGTH = 16
"""Characters of an overlay's digest, which names its cache of compiled functions."""

_NOT_COMPILED = "minillm."
"""Modules that numba compiles nothing of: kernels are compiled, and they import nothing of minillm."""


class Overlay:
    """Modules in which the functions that ``tasks`` names come from the file ``lab``.

    Only their bodies are the lab's: signatures and decorators stay the reference's, and helper functions, constants
    and imports of the lab join the module. The lab's functions that ``others`` names, tasks too, are not looked at.
    ``digest`` is equal for overlays that make the same of the same reference. Raises OverlayError where the lab does
    not fit, and SyntaxError.
    """

    def __init__(self, lab: Path, tasks: Tasks, others: Tasks | None = None) -> None:
        source = Source(str(lab), lab.read_text(encoding="utf-8-sig"))
        references = {module: reference_source(module) for module in tasks}
        self._code = {
            module: (reference.path, splice(module, reference, source, tasks, others or {}))
            for module, reference in references.items()
        }
        wanted = [sorted((module, sorted(names)) for module, names in each.items()) for each in (tasks, others or {})]
        texts = [source.text, *(reference.text for reference in references.values())]
        self._compiled = may_be_compiled(tasks)
        self.digest = hashlib.sha256(repr((wanted, texts)).encode()).hexdigest()[:DIGEST_LENGTH]

    def install(self) -> None:
        """Let this process, and no child of it, import the modules so from now on.

        Where a replaced function may be compiled into a caller, numba's cache is this overlay's own: the usual one may
        hold callers with the reference in them. It lies in ``numba_caches()``. Raises OverlayError if it is too late.
        """
        late = sorted(self._code.keys() & set(sys.modules))
        if late:
            raise OverlayError(f"{late[0]} is imported already; install an overlay first thing in a fresh process")
        if self._compiled:
            os.environ["NUMBA_CACHE_DIR"] = str(numba_caches() / self.digest)
            if "numba" in sys.modules:  # it has read the variable already
                sys.modules["numba"].config.reload_config()
        sys.meta_path.insert(0, _Finder({name: _Loader(name, *entry) for name, entry in self._code.items()}))


def numba_caches() -> Path:
    """The folder with a cache for each overlay that needs its own: below ``NUMBA_CACHE_DIR`` where that is set."""
    return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() / "numba")


def may_be_compiled(modules: Iterable[str]) -> bool:
    """Whether numba may compile functions of these modules, or compile them into others."""
    return any(not module.startswith(_NOT_COMPILED) for module in modules)


def reference_source(module: str) -> Source:
    """A module's source, found without importing anything. Raises OverlayError where there is none."""
    spec = _find(module)
    if spec is None or spec.origin is None:
        raise OverlayError(f"there is no module {module} to overlay; check the name")
    return Source(spec.origin, Path(spec.origin).read_text(encoding="utf-8"))


def _find(module: str) -> ModuleSpec | None:
    """``importlib.util.find_spec`` would import the packages around the module, and they may import the module."""
    package, dot, _ = module.rpartition(".")
    if not dot:
        return importlib.util.find_spec(module)
    around = _find(package)
    return PathFinder.find_spec(module, around.submodule_search_locations) if around else None


class _Loader(SourceFileLoader):
    """Runs these code objects in place of the module's own; everything else about the file stays as it is."""

    def __init__(self, name: str, path: str, code: list[CodeType]) -> None:
        super().__init__(name, path)
        self._code = code

    def exec_module(self, module: ModuleType) -> None:
        for code in self._code:
            exec(code, module.__dict__)


class _Finder(MetaPathFinder):
    """Finds the modules with a loader here, and leaves all others to whoever comes next."""

    def __init__(self, loaders: dict[str, _Loader]) -> None:
        self._loaders = loaders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = self._loaders.get(name)
        return importlib.util.spec_from_file_location(name, loader.path, loader=loader) if loader else None
