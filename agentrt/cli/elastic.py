"""Table cells that give way in a narrow terminal, so that the figures beside them need not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Elastic:
    """Draws itself as wide as there is room, up to ``most`` cells."""

    draw: Callable[[int], Text]
    most: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.draw(min(self.most, options.max_width))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, self.most).with_maximum(options.max_width)


def elastic_name(program_id: str) -> Elastic:
    """A program's id that loses its middle first: its number tells it from the others."""
    return Elastic(partial(fit_name, program_id), cell_len(program_id))


def fit_name(program_id: str, cells: int) -> Text:
    """The id in at most so many cells, if these hold its number and a letter."""
    if cell_len(program_id) <= cells:
        return Text(program_id)
    _, dash, number = program_id.rpartition("-")
    head = set_cell_size(program_id, max(1, cells - 1 - len(dash + number)))
    return Text(f"{head}…{dash}{number}")
