"""A run for TensorBoard: one event file, for ``tensorboard --logdir results/tracking``.

Written with TensorBoard's own protocol buffers and record writer, so neither torch nor TensorFlow is needed, and under a name and with
times of the run's own: the usual writers put host and process into the name.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from genselect.config.publish import Tracking
from genselect.errors import GenselectError
from genselect.publishing.tracked_run import Table, TrackedRun


def write(run: TrackedRun, tracking: Tracking, folder: Path) -> None:
    """Write the whole run into the empty ``folder``. The same run gives the same bytes.

    Figures are scalars at their step; settings, summary, notes and tables are texts. All carry the time at which the run began, since
    ``metrics.jsonl`` has no times.

    Raises:
        GenselectError: tensorboard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.record_writer import RecordWriter
        from tensorboard.util.tensor_util import make_tensor_proto
    except ImportError:
        raise GenselectError(
            "publish.tracking.kind is tensorboard, which is not installed here",
            "pip install tensorboard, or name another publish.tracking.kind.",
        ) from None
    began = datetime.datetime.fromisoformat(run.created).timestamp()
    texts = {
        "config": _block(run.config),
        "summary": _block(run.summary),
        "notes": "  \n".join(run.notes.splitlines()),
        **{name: _markdown(table) for name, table in run.tables.items()},
    }

    def text(name: str, value: str) -> Any:
        return Summary.Value(
            tag=name, metadata=create_summary_metadata(name, ""), tensor=make_tensor_proto([value.encode()])
        )

    with (folder / f"events.out.tfevents.{int(began)}.{run.id}").open("wb") as handle:
        events = RecordWriter(handle)
        events.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
        for point in run.history:
            values = {**point.values, "attempt": point.attempt}
            summary = Summary(value=[Summary.Value(tag=name, simple_value=values[name]) for name in sorted(values)])
            events.write(Event(wall_time=began, step=point.step, summary=summary).SerializeToString())
        summary = Summary(value=[text(name, value) for name, value in texts.items()])
        events.write(Event(wall_time=began, step=run.last_step or 0, summary=summary).SerializeToString())


def _block(values: dict[str, Any]) -> str:
    return f"```json\n{json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)}\n```"


def _markdown(table: Table) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *([_cell(value) for value in row] for row in table.rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ⏎ ")
