"""What every program under ``workflow/scripts`` does the same way: log file, errors a user can act on, exit status."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from genselect.errors import GenselectError

#: Exit status of a fault that the user can mend.
USER_ERROR = 2

logger = logging.getLogger("genselect")


def run(
    parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None], argv: Sequence[str] | None = None
) -> int:
    """Parse, set up logging (``--log FILE`` doubles it into a file), run ``main``; a GenselectError prints without a traceback.

    Returns:
        The exit status: 0, or 2 after an error the user can mend.
    """
    parser.add_argument("--log", type=Path, metavar="FILE", help="write the log there as well, one line an event")
    arguments = parser.parse_args(argv)
    _set_up_logging(arguments.log)
    try:
        main(arguments)
    except GenselectError as error:
        logger.error("error: %s", error)
        return USER_ERROR
    except BrokenPipeError:
        return 1
    except Exception:
        logger.exception(
            "error: %s failed; this is a fault of the program, please report it with the lines below",
            Path(sys.argv[0]).name,
        )
        return 1
    return 0


def _set_up_logging(log: Path | None) -> None:
    root = logging.getLogger("genselect")
    root.setLevel(logging.INFO)
    root.propagate = False
    root.handlers.clear()
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(logging.Formatter("%(message)s"))
    root.addHandler(terminal)
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(log, encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        root.addHandler(file)
