"""Former public places of names that are now in `agentrt.engines`."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any


def warn_of_former_place(module_name: str, *names: str) -> None:
    """Make a module warn users of the ``names`` that the names have moved to `agentrt.engines`.

    The names still work. agentrt's own modules get no warning, and neither does the standard
    library, which looks names up to pickle or inspect a value.
    """

    class FormerPlace(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name in names:
                caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
                if caller != "agentrt" and caller not in sys.stdlib_module_names:
                    warnings.warn(
                        f"{module_name}.{name} is now agentrt.engines.{name}; the old place works "
                        "until version 0.4",
                        DeprecationWarning,
                        stacklevel=2,
                    )
            return super().__getattribute__(name)

    sys.modules[module_name].__class__ = FormerPlace
