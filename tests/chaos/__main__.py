"""`python -m tests.chaos`: strike workers, then count.

Exit codes: 0 when every guarantee held, 1 when one did not, 130 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.driver import run
from tests.chaos.evidence import Evidence
from tests.chaos.oracle import broken, judge, untried
from tests.chaos.plan import Plan
from tests.chaos.report import table


def main() -> int:
    plan = Plan(**vars(_parser().parse_args()))
    folder = Path(tempfile.mkdtemp(prefix="aiforge-chaos-"))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            evidence = asyncio.run(_until_told(plan, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        shutil.rmtree(folder)
        return 130
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    print(f"\nnot tried: {', '.join(untried(verdicts)) or 'nothing'}")
    if broken(verdicts):
        print(f"did not hold: {', '.join(broken(verdicts))}; what the processes wrote is in {folder}")
        return 1
    shutil.rmtree(folder)
    print("everything held")
    return 0


async def _until_told(plan: Plan, folder: Path) -> Evidence:
    """A SIGTERM ends the run as Ctrl-C does: every process is killed on the way out."""
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await run(plan, folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Strike workers, then count.")

    def seconds(name: str, text: str) -> None:
        parser.add_argument(
            f"--{name}", type=float, default=getattr(Plan, name), metavar="SECONDS", help=text
        )

    add = parser.add_argument
    add("--seed", type=int, default=1, help="of what is asked and who is struck")
    add("--kills", type=int, default=Plan.kills, metavar="N", help="workers to strike by --signal")
    add("--signal", choices=("kill", "term", "mixed"), default=Plan.signal, help="SIGKILL, SIGTERM or either")
    add("--stop", dest="stops", type=int, default=0, metavar="N", help="workers to freeze beyond their lease")
    add("--redis", type=int, default=0, metavar="N", help="times to kill the Redis server")
    add("--durability", choices=("everysec", "always"), default=Plan.durability, help="its appendfsync")
    add("--rate", type=float, default=Plan.rate, help="turns a second")
    add(
        "--readers",
        type=float,
        default=Plan.readers,
        metavar="SHARE",
        help="of the turns that are read along",
    )
    add("--words", type=int, default=Plan.words, metavar="N", help="of each answer, streamed one by one")
    add("--code", type=Path, metavar="FOLDER", help="a checkout whose workers are tried")
    seconds("lease", "of a running turn")
    seconds("pause", "between two faults, on average")
    seconds("gap", "between two words")
    seconds("silence", "before the first word and after the last")
    return parser


if __name__ == "__main__":
    sys.exit(main())
