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
import time
from pathlib import Path
from typing import Any, Final

from tests.chaos.driver import run
from tests.chaos.evidence import Evidence
from tests.chaos.oracle import broken, judge, untried
from tests.chaos.plan import FAULTS, Plan
from tests.chaos.report import table
from tests.chaos.sabotage import SABOTAGES
from tests.chaos.stage import libfaketime

KILLS: Final = 20
PROFILES: Final = {"default": Plan.lease, "fast": 4.0}
"""The lease of each, in seconds: `AIFORGE_LEASE_SECONDS=4` is all that a user sets for the fast one."""
_SECONDS: Final = {
    "lease": "of a running turn; the profile's when left out",
    "pause": "between two faults, on average; spread over --turns when left out",
    "gap": "between two words",
    "silence": "before the first word and after the last",
    "limit": "in which 95 of 100 turns that were hit have to be answered",
    "patience": "for everything to end after the last fault",
}


def main() -> int:
    options = vars(_parser().parse_args())
    folder = Path(tempfile.mkdtemp(prefix="aiforge-chaos-"))
    began = time.monotonic()
    try:
        plan = _plan(options, folder / "code")
        with contextlib.redirect_stdout(io.StringIO()):
            evidence = asyncio.run(_until_told(plan, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        shutil.rmtree(folder)
        return 130
    verdicts = judge(evidence)
    print(table(evidence, verdicts))
    print(f"\nthe whole run took {time.monotonic() - began:.0f} s")
    print(f"not tried: {', '.join(untried(verdicts)) or 'nothing'}")
    if broken(verdicts):
        print(f"did not hold: {', '.join(broken(verdicts))}; what the processes wrote is in {folder}")
        return 1
    shutil.rmtree(folder)
    print("everything held")
    return 0


def _plan(options: dict[str, Any], code: Path) -> Plan:
    """What the options say; a sabotage brings its own short plan."""
    sabotage, profile = options.pop("sabotage"), options.pop("profile")
    if sabotage is not None:
        print(f"without the rule: {SABOTAGES[sabotage].rule}; this run has to end with what did not hold")
        return SABOTAGES[sabotage].plan(options["seed"], code)
    if options["skew"] and libfaketime() is None:
        print("libfaketime is not installed (apt-get install faketime): the clocks are left alone")
        options["skew"] = False
    if options["lease"] is None:
        options["lease"] = PROFILES[profile]
    return Plan(faults={fault: options.pop(fault) for fault in FAULTS}, **options)


async def _until_told(plan: Plan, folder: Path) -> Evidence:
    """A SIGTERM ends the run as Ctrl-C does: every process is killed on the way out."""
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await run(plan, folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Strike, then count.")
    add = parser.add_argument
    for fault, text in FAULTS.items():
        add(f"--{fault}", type=int, default=KILLS if fault == "kills" else 0, metavar="N", help=text)
    add("--seed", type=int, default=1, help="of what is asked and who is struck")
    add("--skew", action="store_true", help="clocks of the workers ten minutes fast and slow in turn")
    add("--durability", choices=("everysec", "always"), default=Plan.durability, help="Redis's appendfsync")
    add("--turns", type=int, default=Plan.turns, metavar="N", help="at least so many")
    add("--rate", type=float, default=Plan.rate, help="turns a second")
    add("--readers", type=float, default=Plan.readers, metavar="SHARE", help="of turns that are read along")
    add("--words", type=int, default=Plan.words, metavar="N", help="of each answer, streamed one by one")
    add("--profile", choices=tuple(PROFILES), default="default", help="fast: a lease of 4 s")
    add("--code", type=Path, metavar="FOLDER", help="a checkout whose workers are tried")
    add("--sabotage", choices=tuple(SABOTAGES), help="take one rule out of the worker: the run has to fail")
    for name, text in _SECONDS.items():
        add(f"--{name}", type=float, default=getattr(Plan, name), metavar="SECONDS", help=text)
    parser.set_defaults(lease=None)
    return parser


if __name__ == "__main__":
    sys.exit(main())
