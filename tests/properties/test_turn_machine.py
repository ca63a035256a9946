"""Every script of a turn in any order, repeated and late, against a small model, on real servers."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aiforge.core.events import TERMINAL_EVENTS, Cancelled, Done, Event, Failed, Message, Token, name
from tests.properties.profiles import SOAK, SUITE
from tests.properties.turn_model import MAX_DEATHS, Attempt, ModelConversation, ModelTurn
from tests.support import leaks
from tests.support.servers import RedisServer
from tests.support.turns import intended
