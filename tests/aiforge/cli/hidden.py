"""An installation without `aiforge[service]`: processes that see the base packages alone.

Every distribution that a plain `pip install aiforge` would not bring is hidden from `import` and from
`find_spec`, in the process and in all that it starts.
"""

from __future__ import annotations

import functools
import os
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PROGRAM: Final = """
import sys

HIDDEN = {hidden!r}


class Seeing:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = [Seeing(finder) for finder in sys.meta_path]
"""


def base_install(folder: Path) -> dict[str, str]:
    """The environment variables of such processes; `folder` must not exist."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_PROGRAM.format(hidden=set(hidden())))
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


@functools.cache
def hidden() -> frozenset[str]:
    """The top-level names of all that is installed and is not of the base installation."""
    base = base_distributions()
    return frozenset(
        name
        for name, homes in packages_distributions().items()
        if not base & {canonicalize_name(home) for home in homes}
    )


def base_distributions() -> set[str]:
    """What `pip install aiforge` brings, by the requirements of what is installed."""
    found: set[tuple[str, str]] = set()
    left = [("aiforge", "")]
    while left:
        name, extra = left.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for line in requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                left += [(canonicalize_name(needed.name), wanted) for wanted in ("", *needed.extras)]
    return {name for name, _ in found}
