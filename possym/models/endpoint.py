"""Answers of a model behind an OpenAI-compatible endpoint, each asked for once and stored as it arrives.

Nothing is sent unless `ask` is told to. Every answer is one line of a JSONL file, written as soon as it arrives; an
interrupted run resumes with the prompts that have no line. The file names the endpoint, the model and the request's
settings, and is refused for any others. The key is read from the environment and written nowhere.
"""

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import filelock

from possym.errors import EndpointError, InputError, ResultsError, UnsupportedModelError, install_command, require_type
from possym.models.runners import Reply, check_texts
from possym.results import atomic_write, writing
from possym.results.progress import tqdm
from possym.tasks.batch import check_count

CHARACTERS_A_TOKEN = 2  # a sequence "k q a" is a token every second character, and prose has fewer
ROUNDS = 3
DAY = 86_400
LIMITS = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A model's address, its prices, and the limits on requests.

    Args:
        model: the model's name, as the endpoint knows it.
        input_price, output_price: price of a million tokens, in any one currency; 0 where nothing is paid.
        base_url: the address before ``/chat/completions``; that of OpenAI unless given.
        key_variable: the environment variable that holds the key.
        settings: fields of the request besides model and messages. Some models take ``max_completion_tokens`` in
            place of ``max_tokens``, and want to be told not to reason, such as by ``{"reasoning_effort": "none"}``.
        requests_per_minute: no more requests than this are sent, those sent again included.
        workers: requests under way at the same time.
        retries: how often a request is sent again after a cut connection or an answer 408, 409, 429 or 5xx; it waits
            as long as ``Retry-After`` says, else longer each time.
        timeout: seconds until a request counts as cut.

    Raises:
        InputError: an argument of the wrong type or value.

    >>> Endpoint(model="m", input_price=1.25, output_price=-10.0)
    Traceback (most recent call last):
    possym.errors.InputError: output_price = -10.0: give a number from 0
    """

    model: str
    input_price: float
    output_price: float
    base_url: str = "https://api.openai.com/v1"
    key_variable: str = "OPENAI_API_KEY"
    settings: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0, "max_tokens": 16})
    requests_per_minute: float = 60.0
    workers: int = 4
    retries: int = 6
    timeout: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("model", "key_variable", "base_url"):
            require_type(getattr(self, name), str, name)
            if not getattr(self, name):
                raise InputError(f"{name} is empty")
        check_texts([self.model], "model")
        if not is_address(self.base_url):
            raise InputError(
                f"base_url = {self.base_url!r}: give an address that begins with http:// or https://, such as "
                "http://localhost:8000/v1"
            )
        for name, positive in (
            ("input_price", False),
            ("output_price", False),
            ("requests_per_minute", True),
            ("timeout", True),
        ):
            value = getattr(self, name)
            require_type(value, (int, float), name)
            if not math.isfinite(value) or value < 0 or (positive and value == 0):
                raise InputError(f"{name} = {value}: give a number {'above' if positive else 'from'} 0")
        if self.timeout > DAY or self.requests_per_minute * DAY < 60:
            raise InputError(
                f"timeout = {self.timeout}, requests_per_minute = {self.requests_per_minute}: give such that no "
                "request and no pause takes longer than a day"
            )
        check_count("workers", self.workers, 1, 64)
        check_count("retries", self.retries, 0, 100)
        require_type(self.settings, Mapping, "settings")
        if wrong := {"model", "messages", "stream", "n"} & set(self.settings):
            raise InputError(f"settings holds {', '.join(sorted(wrong))}, which the runner sets itself: leave it out")
        try:
            json.dumps(dict(self.settings), allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"settings cannot be sent as JSON ({error}): give plain values") from None
        for name in LIMITS:
            if name in self.settings:
                check_count(f"settings[{name!r}]", self.settings[name], 1)

    def identity(self) -> dict[str, Any]:
        """Return what an answer depends on besides its prompt."""
        return {"model": self.model, "base_url": self.base_url, "settings": dict(self.settings)}


class Plan(NamedTuple):
    """An estimate of a run: prompts in all and still unanswered, tokens in and out, and the cost."""

    prompts: int
    to_ask: int
    input_tokens: int
    output_tokens: int
    cost: float

    def __str__(self) -> str:
        """Return the plan in words."""
        return (
            f"{self.to_ask:,} of {self.prompts:,} prompts to ask: about {self.input_tokens:,} tokens in (a token every "
            f"{CHARACTERS_A_TOKEN} characters) and at most {self.output_tokens:,} out, {self.cost:,.2f} at the prices "
            "given"
        )


def plan(endpoint: Endpoint, texts: list[str], answers: str | Path) -> Plan:
    """Estimate the prompts, tokens and cost of a call of `ask`; nothing is sent, and no key is needed.

    Raises:
        InputError: no texts, or not an endpoint.
        ResultsError: the file of answers is another endpoint's, or cannot be read.

    >>> endpoint = Endpoint(model="m", input_price=1.0, output_price=10.0)
    >>> plan(endpoint, ["a b c d e"] * 2 + ["k q"], "no file yet.jsonl")[:4]
    (2, 2, 7, 32)
    """
    require_type(endpoint, Endpoint, "endpoint")
    check_texts(texts)
    known = stored(endpoint, answers)
    prompts = {prompt_id(text): text for text in texts}
    left = [text for name, text in prompts.items() if name not in known]
    sent = sum(math.ceil(len(text) / CHARACTERS_A_TOKEN) for text in left)
    limits = [endpoint.settings[name] for name in LIMITS if name in endpoint.settings]
    received = len(left) * (limits[0] if limits else 16)
    cost = (sent * endpoint.input_price + received * endpoint.output_price) / 1e6
    return Plan(len(prompts), len(left), sent, received, cost)


def ask(
    endpoint: Endpoint,
    texts: list[str],
    answers: str | Path,
    *,
    send: bool = False,
    say: Callable[[str], None] = print,
    progress: bool = True,
) -> list[Reply | None]:
    """Ask an endpoint all prompts that have no answer yet, and return the answers to all, in the order of ``texts``.

    The estimated cost is printed first. With ``send=False``, the default, only stored answers return.
    A prompt that gets no usable answer in 3 rounds (not JSON, no choice in it, no text) keeps None: it was not
    answered, which is not the same as wrongly, and the next call asks it again.

    Args:
        endpoint: where, and how hard.
        texts: the prompts; a text that comes twice is asked once.
        answers: the JSONL file to keep answers in; made if missing.
        send: True to really ask.
        say: takes the lines about cost and missing answers.
        progress: show a bar.

    Raises:
        InputError: wrong arguments, or no key in the environment.
        UnsupportedModelError: the package ``openai`` is not installed.
        ResultsError: the file of answers is another endpoint's, in use by another process, or cannot be written.
        EndpointError: the endpoint refuses (such as for a wrong key or name), or is still not there after all
            retries; what was answered is kept, and calling again goes on from there.
    """
    require_type(send, bool, "send")
    require_type(progress, bool, "progress")
    require_type(say, Callable, "say")  # type: ignore[arg-type]
    say(f"{plan(endpoint, texts, answers)}.")
    path = Path(answers)
    if send:
        key = os.environ.get(endpoint.key_variable)
        if not key:
            raise InputError(f"the environment variable {endpoint.key_variable} is empty: put the endpoint's key there")
        if not (key.isascii() and key.isprintable()) or key != key.strip():
            raise InputError(
                f"the environment variable {endpoint.key_variable} holds spaces around the key, a line break or a "
                "letter outside ASCII, which no header can carry: put the bare key there"
            )
        with client_of(endpoint, key) as client, locked(path):
            begin(endpoint, path)
            for _ in range(ROUNDS):
                known = stored(endpoint, path)
                left = {name: text for text in texts if (name := prompt_id(text)) not in known}
                if not left:
                    break
                ask_round(endpoint, client, key, left, path, progress)
    known = stored(endpoint, path)
    found = [known.get(prompt_id(text)) for text in texts]
    if send and None in found:
        say(f"{found.count(None):,} of {len(found):,} prompts got no usable answer: call again to ask them again.")
    return found


def ask_round(endpoint: Endpoint, client: Any, key: str, left: dict[str, str], path: Path, progress: bool) -> None:
    """Ask every prompt of ``left`` once, and write each usable answer as it comes, whatever becomes of the others."""
    writer = threading.Lock()

    def one(name: str, text: str) -> None:
        if (reply := request(endpoint, client, key, text)) is None:
            return
        line = {"prompt": name, "text": reply.text, "tokens": reply.tokens, "ended": reply.ended}
        with writer, writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    with (
        tqdm(total=len(left), desc=endpoint.model, unit="prompt", disable=not progress) as bar,
        ThreadPoolExecutor(endpoint.workers) as pool,
    ):
        waiting = [pool.submit(one, name, text) for name, text in left.items()]
        try:
            for done in as_completed(waiting):
                done.result()
                bar.update()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def request(endpoint: Endpoint, client: Any, key: str, text: str) -> Reply | None:
    """Return the answer to one prompt, or None if what came back is no answer."""
    import openai

    asked = {"model": endpoint.model, "messages": [{"role": "user", "content": text}]}
    try:  # the settings go into the body as they are, so that a server's own fields reach it
        answer = client.chat.completions.create(**asked, extra_body=dict(endpoint.settings))
    except (openai.APIResponseValidationError, ValueError):
        return None  # 200, but not JSON
    except openai.APIStatusError as error:
        said = str(error).replace(key, "[key]")[:300]
        raise EndpointError(
            f"the endpoint answers {error.status_code} to model {endpoint.model!r} ({said}): "
            + ("wait, then call again" if error.status_code in (408, 409, 429) or error.status_code >= 500
               else "mend the key, the model's name or the settings, then call again")
            + "; answers so far are kept"
        ) from None  # fmt: skip
    except openai.APIConnectionError as error:
        reason = str(error.__cause__ or error).replace(key, "[key]")[:300]
        raise EndpointError(
            f"no answer from {client.base_url} after {endpoint.retries} retries ({reason}): check the address and the "
            "network, then call again; answers so far are kept"
        ) from None
    return usable(answer)


def usable(answer: Any) -> Reply | None:
    """Return an answer's text, or None where the answer has no choice with a text in it."""
    try:
        choice = answer.choices[0]
        text, ended = choice.message.content, choice.finish_reason == "stop"
    except (AttributeError, IndexError, TypeError):
        return None
    used = getattr(getattr(answer, "usage", None), "completion_tokens", None)
    return Reply(text, used if isinstance(used, int) else -1, ended) if isinstance(text, str) else None


def is_address(url: str) -> bool:
    """Return whether a text is an address of http or https: a host, maybe a port, nothing unprintable.

    >>> is_address("http://localhost:8000/v1"), is_address("http://:8000"), is_address("http://host:port")
    (True, False, False)
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return known and url.isprintable() and " " not in url


@contextmanager
def client_of(endpoint: Endpoint, key: str) -> Iterator[Any]:
    """Yield a client that spaces its requests, repeated ones included."""
    try:
        import openai
    except ImportError:
        raise UnsupportedModelError(f"asking an endpoint needs openai: {install_command('api')}") from None
    hooks = {"request": [Pace(60 / endpoint.requests_per_minute).wait]}
    with openai.OpenAI(
        api_key=key,
        base_url=endpoint.base_url,
        max_retries=endpoint.retries,
        timeout=endpoint.timeout,
        http_client=openai.DefaultHttpxClient(event_hooks=hooks),
    ) as client:
        yield client


class Pace:
    """Lets callers through one at a time, ``seconds`` apart."""

    def __init__(self, seconds: float):
        self.seconds, self.next, self.lock = seconds, 0.0, threading.Lock()

    def wait(self, *_: Any) -> None:
        """Return when it is this caller's turn."""
        with self.lock:
            turn = max(self.next, time.monotonic())
            self.next = turn + self.seconds
        time.sleep(max(0.0, turn - time.monotonic()))


def prompt_id(text: str) -> str:
    """Return 24 hexadecimal digits that name a prompt.

    >>> len(prompt_id("a b 1"))
    24
    """
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file of answers for this process alone."""
    lock = path.with_name(f"{path.name}.lock")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    try:
        with filelock.FileLock(lock, timeout=0):
            yield
    except filelock.Timeout:
        raise ResultsError(f"{path} is in use by another process: wait for it, or give another file") from None


def begin(endpoint: Endpoint, path: Path) -> None:
    """Write a new file's first line; cut off the unfinished last line of an interrupted run."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1] or json.dumps(endpoint.identity()) + "\n"
    if whole != text:
        with atomic_write(path) as new:
            new.write_text(whole, encoding="utf-8")


def stored(endpoint: Endpoint, answers: str | Path) -> dict[str, Reply]:
    """Return the answers on file by their prompt's name; a last line cut short by an interruption is left out.

    Raises:
        ResultsError: the file is another endpoint's, model's or settings', or holds something else.
    """
    require_type(answers, (str, Path), "answers")
    path = Path(answers)
    known: dict[str, Reply] = {}
    try:
        if not path.exists():
            return {}
        if not path.is_file():
            raise ValueError("it is a device, pipe or folder")
        text = path.read_text(encoding="utf-8")
        first, *lines = text[: text.rfind("\n") + 1].splitlines() or [json.dumps(endpoint.identity())]
        made = json.loads(first)
        for line in map(json.loads, lines):
            reply = Reply(line["text"], line["tokens"], line["ended"])
            if list(map(type, reply[:3])) != [str, int, bool]:
                raise ValueError(f"{line} is no answer")
            known[line["prompt"]] = reply
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ResultsError(f"{path} is not a file of answers ({error}): give another file") from None
    if made != json.loads(json.dumps(endpoint.identity())):
        raise ResultsError(
            f"{path} holds the answers of {made}, not of {endpoint.identity()}: give another file for these"
        )
    return known
