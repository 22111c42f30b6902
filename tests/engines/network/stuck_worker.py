"""The command line of a worker that never comes to the end of its nth task.

Called as `stuck_worker.py N worker …`. The worker trains, says so, and then waits to be killed.
"""

from __future__ import annotations

import signal
import sys

from adaptcl.cli import main, parser
from adaptcl.training.worker import Worker


def stick(at: int) -> None:
    carry_out = Worker.carry_out
    tasks = 0

    def stuck(self: Worker, *arguments: object) -> object:
        nonlocal tasks
        result = carry_out(self, *arguments)  # type: ignore[arg-type]
        tasks += 1
        if tasks == at + 1:  # The first one only warms up.
            print(f"in the middle of task {at}", flush=True)
            signal.pause()
        return result

    Worker.carry_out = stuck  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    parser._silence = lambda text: float(text)  # shorter than users may choose
    stick(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
