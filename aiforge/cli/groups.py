"""The commands that stand together under one name, in the order in which the help lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiforge.cli import batch, batches, conversations, dead, files, history, providers, schedules, submission

GROUPS: Final[dict[tuple[str, str], dict[str, Callable[..., None]]]] = {
    ("batch", "Answer the questions of a file, and look after batches."): {
        "run": batch.run,
        "submit": submission.submit,
        "ls": batches.ls,
        "status": batches.status,
        "watch": batches.watch,
        "pause": batches.pause,
        "resume": batches.resume,
        "cancel": batches.cancel,
        "retry": batches.retry,
        "export": batches.export,
        "rm": batches.rm,
        "clear-cache": batches.clear_cache,
    },
    ("files", "Files of requests and of results that the service keeps."): {
        "put": files.put,
        "ls": files.ls,
        "get": files.get,
        "rm": files.rm,
    },
    ("conversations", "List conversations, set one up, go back in one, take one elsewhere, erase one."): {
        "ls": conversations.ls,
        "rm": conversations.rm,
        "export": conversations.export,
        "import": conversations.import_,
        "set": history.set_,
        "versions": history.versions,
        "checkout": history.checkout,
        "branch": history.branch,
        "diff": history.diff,
        "compact": history.compact,
    },
    ("dead", "Turns that were given up because every worker that ran them died."): {
        "ls": dead.ls,
        "show": dead.show,
        "requeue": dead.requeue,
        "drop": dead.drop,
    },
    ("providers", "How models fare with all workers: limits, cool-downs and circuits."): {
        "ls": providers.ls,
        "reset": providers.reset,
    },
    ("schedule", "Turns and batches that are posted by the clock."): {
        "add": schedules.add,
        "ls": schedules.ls,
        "show": schedules.show,
        "pause": schedules.pause,
        "resume": schedules.resume,
        "rm": schedules.rm,
    },
}
