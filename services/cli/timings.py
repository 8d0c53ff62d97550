"""Where a request's time went, boundary by boundary."""

from rich.table import Table
from triptych.v1 import render_pb2


def timings_table(
    client_seconds: float, client_ttft_seconds: float, finished: render_pb2.TextFinished
) -> Table:
    """Each row is the time spent between two measurements; the rows add up to the client's total.

    client_seconds: from the call to its end, as the caller measured it.
    client_ttft_seconds: to the first text.
    """
    scheduler = finished.timings
    in_scheduler = scheduler.total_seconds
    between_steps = in_scheduler - scheduler.queue_seconds - scheduler.worker_seconds
    table = Table(
        title=f"{client_seconds * 1000:.1f} ms, first text after {client_ttft_seconds * 1000:.1f} ms"
    )
    table.add_column("where")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    rows = [
        ("client ↔ render: wire", client_seconds - finished.total_seconds),
        ("render: template, tokens", finished.render_seconds),
        ("render ↔ scheduler: wire, text", finished.total_seconds - finished.render_seconds - in_scheduler),
        ("scheduler: queue", scheduler.queue_seconds),
        ("scheduler ↔ worker: planning, wire", between_steps),
        ("worker: model", scheduler.worker_seconds),
    ]
    for name, seconds in rows:
        table.add_row(name, f"{seconds * 1000:.1f}", f"{seconds / client_seconds:.0%}")
    return table
