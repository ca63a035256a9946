"""`aiforge batch run --dry-run`: what the questions would take; none of them leaves this machine."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from decimal import Decimal
from typing import Final

from aiforge.cli import runfile, settings
from aiforge.cli.connect import running_url
from aiforge.cli.job import is_left
from aiforge.cli.output import data, duration, note
from aiforge.cli.progress import dollars
from aiforge.cli.runs import Run
from aiforge.cli.settings import Configuration
from aiforge.client import Client, ClientError, ModelHealth
from aiforge.client.options import BatchOptions
from aiforge.core.estimates import Estimate, Estimator
from aiforge.core.pricing import price
from aiforge.core.prompts import resolve_prompt
from aiforge.core.router import default_model, own_prices
from aiforge.core.setting_types import Limit
from aiforge.core.tokens import LONGEST_ANSWER, count_messages
from aiforge.core.types import Usage
from aiforge.modules.chat.prompts import DEFAULT_SYSTEM_PROMPT
from aiforge.questions.output import Output
from aiforge.questions.question import Question

_DIGEST_BYTES: Final = 8


def forecast(
    out: Output, options: BatchOptions, run: Run | None = None, *, retry_failed: bool = False
) -> None:
    """Say what the questions would take that have no answer and that no batch of this run is at work for."""
    configuration = settings.load()
    working = 0 if run is None else _at_work(out, run, configuration, retry_failed)
    library = configuration.library
    provider = _provider(configuration)
    usual = options.get("model") or (None if provider == "offline" else library.MODEL)
    usual = usual or default_model(provider) or "default"
    prices = own_prices(library, provider)
    estimator = Estimator(provider, prices=prices)
    models: set[str] = set()
    seen: set[int] = set()
    dearest = Decimal(0)
    saved = 0
    for _, question in out.pending() if run is None else run.without(out.pending()):
        if _is_known(question, options, seen):
            saved += 1
            continue
        model = question.options.get("model") or usual
        models.add(model)
        cap = question.options.get("max_tokens") or options.get("max_tokens") or library.MAX_TOKENS
        messages = _messages(question, options, library.SYSTEM_PROMPT)
        estimator.add(messages, model=model, max_tokens=cap)
        if options.get("max_cost"):
            most = Usage(count_messages(messages), cap or LONGEST_ANSWER)
            dearest = max(dearest, price(provider, model, most, prices) or Decimal(0))
    limits = _limits(configuration, provider, models)
    total = estimator.total(
        requests_per_minute=limits.requests_per_minute if limits else None,
        tokens_per_minute=limits.tokens_per_minute if limits else None,
    )
    _say(total, sorted(models), saved, working)
    if options.get("max_cost"):
        _say_cap(total, Decimal(options["max_cost"] or 0), dearest)
    is_set_elsewhere = provider != "offline" and running_url(configuration) is not None
    if is_set_elsewhere and usual in models and not options.get("model"):
        note(
            f"{usual} is the model that is set here; the service may have another: --model names one",
            "yellow",
        )
    if options.get("cache_ttl"):
        note("what an earlier batch was answered is not asked again; the service knows how much that is")
    note("dry run: nothing was asked")


def _provider(configuration: Configuration) -> str:
    """Whom the service asks that would answer: the one that runs here, else one that is started here, which
    answers offline without a key. Of one elsewhere nothing is known but what is set here."""
    if configuration.service.api_url is None:
        if (running := runfile.find(configuration.data_dir)) is not None:
            return running.provider
        if configuration.lacks_key:
            return "offline"
    return configuration.library.PROVIDER


def _at_work(out: Output, run: Run, configuration: Configuration, retry_failed: bool) -> int:
    """How many questions batches of earlier commands answer; the run knows which."""
    run.match((place, out.key(question)) for place, question in out.pending())
    url = running_url(configuration)
    unknown = 0
    with nullcontext() if url is None else Client(url, token=configuration.service.token) as client:
        for noted in run.noted():
            if (
                noted.id is None
                or client is None
                or not _take_in(client, run, noted.number, noted.id, retry_failed)
            ):
                run.release(noted.number)
                unknown += 1
    if unknown:
        batches = "1 earlier batch" if unknown == 1 else f"{unknown} earlier batches"
        note(f"of {batches} nothing is known here; what was asked there is counted", "yellow")
    return sum(1 for _ in run.places())


def _take_in(client: Client, run: Run, number: int, batch_id: str, retry_failed: bool) -> bool:
    """Leave to the run what a batch answers, as a command would; False where the service does not say."""
    try:
        batch = client.batch(batch_id)
        rows = {row.index: is_left(row, retry_failed) for row in client.results(batch_id)}
    except ClientError:
        return False
    done = range(batch.request_counts.total) if batch.ended else rows
    run.drop(number, (item for item in done if rows.get(item, True)))
    return True


def _messages(question: Question, options: BatchOptions, usual: str | None) -> list[dict[str, object]]:
    """What a provider is sent; `usual` is what it is told first where nobody says otherwise."""
    said = (question.options.get("system_prompt"), options.get("system_prompt"), usual)
    system = resolve_prompt(*said, default=DEFAULT_SYSTEM_PROMPT)
    before: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question.message}]


def _is_known(question: Question, options: BatchOptions, seen: set[int]) -> bool:
    """Whether the same is asked before, and would be answered once."""
    once = options.get("dedupe") or options.get("cache_ttl") or question.options.get("temperature") == 0
    if not once or question.conversation is not None:
        return False
    digest = int(question.digest(options)[: 2 * _DIGEST_BYTES], 16)
    known = digest in seen
    seen.add(digest)
    return known


def _limits(configuration: Configuration, provider: str, models: set[str]) -> ModelHealth | Limit | None:
    """The limits of the only model that is asked: of the running service, else as they are set here."""
    if len(models) != 1:
        return None
    name = f"{provider}/{models.copy().pop()}"
    url = running_url(configuration)
    if url is not None:
        with suppress(ClientError), Client(url, token=configuration.service.token) as client:
            for health in client.providers():
                if health.name == name:
                    return health
    set_here = configuration.service.limits
    return set_here.get(name) or set_here.get(f"{provider}/*") or set_here.get("*")


def _say(found: Estimate, models: list[str], saved: int, working: int) -> None:
    repeating = f" and {saved} that repeat one" if saved else ""
    data(f"questions      {found.lines}{repeating}")
    if working:
        data(f"not counted    {working} that batches of this run are at work for")
    data(f"models         {', '.join(models) or '–'}")
    data(f"input tokens   about {found.input_tokens:,}")
    data(f"output tokens  {found.output_tokens_low:,} to {found.output_tokens_high:,}")
    if found.usd_low is None or found.usd_high is None:
        data("USD            unknown")
    else:
        data(f"USD            {found.usd_low:.4f} to {found.usd_high:.4f}, prices of {found.price_list}")
    if found.seconds is not None:
        data(f"time           at least {duration(found.seconds)} at the limits of the model")
    else:
        data("time           unknown: no limit is known of what is asked")
    if found.unpriced:
        note(f"warning: no price is known of {', '.join(found.unpriced)}; USD leaves it out", "yellow")


def _say_cap(found: Estimate, most: Decimal, dearest: Decimal) -> None:
    """What `--max-cost` would do to them; `dearest` is the most that one call of them can take."""
    if found.unpriced:
        names = ", ".join(found.unpriced)
        note(f"--max-cost refuses what has no price: nothing would be asked of {names}", "yellow")
    if dearest > most:
        note(
            f"--max-cost {most:f} is less than the {dollars(dearest)} that a call may take, and no such call"
            " is made; --max-tokens bounds that",
            "yellow",
        )
    elif (found.usd_low or 0) > most:
        note(f"--max-cost {most:f} is less than all of it takes: the run would stop before its end", "yellow")
    elif (found.usd_high or 0) > most:
        note(f"--max-cost {most:f} could be reached before the end; the run would stop there", "yellow")
