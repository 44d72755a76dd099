"""Shows progress on a terminal, with one bar for the current phase."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

Advance = Callable[[int], None]


class _Rate(ProgressColumn):
    """The rate per second during the last half minute."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed and (task.total or 0) > 1 else "", style="progress.data.speed")


class ProgressScreen:
    """Shows progress and results. If the output is not a terminal, it writes one line per phase."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def phase(self, text: str, total: int) -> Iterator[Advance]:
        """Show a bar for `total` messages. The yielded function sets how many are done."""
        if not self.console.is_terminal:
            self.console.print(f"  {text}", highlight=False)
            yield lambda _done: None
            return
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40),
            TextColumn("{task.completed:>9,.0f} of {task.total:,.0f}", style="progress.download"),
            _Rate(),
            TimeElapsedColumn(),
        )
        # Only four updates a second, to leave the machine's two cores to the server and its clients.
        with Progress(*columns, console=self.console, transient=True, refresh_per_second=4) as progress:
            task = progress.add_task(text, total=total)
            yield lambda done: progress.update(task, completed=min(done, total))
