"""Types of numbers for options."""

from __future__ import annotations

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """A number within bounds. Unlike click's own type, it rejects ``nan``, and infinity unless
    ``infinite`` is true.
    """

    def __init__(self, *args: Any, infinite: bool = False, **bounds: Any) -> None:
        super().__init__(*args, **bounds)
        self._infinite = infinite

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isinf(number) and not self._infinite:
            self.fail(f"{value} is not finite", param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}", param, ctx)
        return number
