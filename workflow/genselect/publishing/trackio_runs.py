"""A run for Trackio: the folder of a Trackio project, for ``trackio show``.

Written against trackio 0.43, which is in ``envs/publish.yaml`` and not in the miniature's environment.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any

from genselect.config.publish import Tracking
from genselect.errors import GenselectError
from genselect.publishing.tracked_run import TrackedRun


def write(run: TrackedRun, tracking: Tracking, folder: Path) -> None:
    """Write the whole run into the empty ``folder``. Once a process: trackio fixes its folder when it is imported.

    Raises:
        GenselectError: trackio is not installed.
    """
    before = dict(os.environ)
    for name in before:
        if name.startswith("TRACKIO_"):  # one of them would have it send the run to a Space
            del os.environ[name]
    # Offline, or it asks the Hub for the user's name whenever there is a token.
    os.environ |= {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    try:
        try:
            import trackio
        except ImportError:
            raise GenselectError(
                "publish.tracking.kind is trackio, which is not installed here",
                "pip install trackio, or name another publish.tracking.kind.",
            ) from None
        with contextlib.redirect_stdout(io.StringIO()):  # it names a folder that is moved afterwards
            _log(trackio, run, tracking)
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ |= before


def _log(trackio: Any, run: TrackedRun, tracking: Tracking) -> None:
    trackio.init(
        project=tracking.project,
        name=run.name,
        group=run.experiment,
        # It has no summary, notes or tags of its own.
        config={**run.config, "id": run.id, "summary": run.summary, "notes": run.notes, "tags": list(run.tags)},
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    for point in run.history:
        values: dict[str, Any] = {**point.values, "attempt": point.attempt}
        if point.step == run.last_step:
            values |= {
                name: trackio.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
                for name, table in run.tables.items()
            }
        trackio.log(values, step=point.step)
    trackio.finish()
