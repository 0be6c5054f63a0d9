"""The runner for endpoints against a real server that speaks the protocol, faults included."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from possym.errors import EndpointError, InputError, ResultsError
from possym.experiments.one_hop import protocol as onehop
from possym.models.endpoint import Endpoint, Pace, ask, plan, prompt_id
from possym.models.runners import Reply
from possym.tasks import OneHopTask

from .chat_server import serving

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [f"say word{i} now" for i in range(6)]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("TEST_KEY", "secret-key")
    with serving() as running:
        yield running


@pytest.fixture
def file(tmp_path):
    return tmp_path / "answers.jsonl"


def endpoint(server, **changes):
    given = {"model": "m", "input_price": 2.0, "output_price": 10.0, "base_url": server.url, "key_variable": "TEST_KEY"}
    return Endpoint(**given | {"requests_per_minute": 60_000, "retries": 2} | changes)


def quiet(where, texts, file, **more):
    said = []
    return ask(where, texts, file, send=True, say=said.append, progress=False, **more), said


def words(replies):
    return [reply and reply.text for reply in replies]


def test_nothing_is_sent_unless_asked(server, file, monkeypatch):
    monkeypatch.delenv("TEST_KEY")
    said = []
    assert ask(endpoint(server), TEXTS, file, say=said.append) == [None] * 6
    assert server.requests == [] and not file.exists()
    assert len(said) == 1 and said[0].startswith("6 of 6 prompts to ask")


def test_the_estimate_comes_first_and_is_what_the_prices_say(server, file):
    before = []
    server.before_answer = lambda text: before.append(len(said))
    said = []
    ask(endpoint(server), TEXTS, file, send=True, say=said.append, progress=False)
    assert set(before) == {1}
    settings = {"max_completion_tokens": 5}
    found = plan(endpoint(server, settings=settings), ["abcd", "abcde", "abcd"], "none.jsonl")
    assert found == (2, 2, 2 + 3, 2 * 5, pytest.approx((5 * 2.0 + 10 * 10.0) / 1e6))


def test_a_request_is_what_the_protocol_says(server, file):
    replies, _ = quiet(endpoint(server, settings={"max_tokens": 4, "reasoning_effort": "none"}), TEXTS[:1], file)
    ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret-key"
    message = {"role": "user", "content": TEXTS[0]}
    assert body == {"model": "m", "messages": [message], "max_tokens": 4, "reasoning_effort": "none"}
    assert replies == [Reply("word0", 2, True)]


def test_answers_come_in_the_order_of_the_prompts_and_a_text_twice_is_asked_once(server, file):
    server.before_answer = lambda text: time.sleep(0.05 if "word0" in text else 0)
    replies, _ = quiet(endpoint(server), [*TEXTS, TEXTS[2]], file)
    assert words(replies) == [*(f"word{i}" for i in range(6)), "word2"]
    assert len(server.requests) == 6


@pytest.mark.parametrize("fault", [(429, {"Retry-After": "0.3"}), (500, {}), (503, {}), "cut"])
def test_what_passes_is_sent_again(server, file, fault):
    server.faults = [fault]
    replies, said = quiet(endpoint(server, workers=1), TEXTS[:2], file)
    assert words(replies) == ["word0", "word1"] and len(server.requests) == 3 and len(said) == 1
    if isinstance(fault, tuple) and fault[1]:
        assert server.times[1] - server.times[0] >= 0.3


@pytest.mark.parametrize("fault", ["not json", "a page", "no choices", "no text", "empty"])
def test_an_answer_that_is_none_is_asked_for_again_and_never_counts_as_wrong(server, file, fault):
    server.faults = [fault]
    replies, _ = quiet(endpoint(server, workers=1), TEXTS[:2], file)
    assert words(replies) == ["word0", "word1"] and len(server.requests) == 3
    server.faults = [fault] * 3
    replies, said = quiet(endpoint(server), ["a b c"], file)
    assert replies == [None] and len(server.requests) == 6
    assert said[-1].startswith("1 of 1 prompts got no usable answer")
    replies, _ = quiet(endpoint(server), ["a b c"], file)
    assert words(replies) == ["b"]


def test_an_endpoint_that_stays_down_stops_the_run_and_what_came_is_kept(server, file):
    server.faults = [None, None, *[(500, {})] * 3]
    with pytest.raises(EndpointError, match=r"answers 500 .* wait, then call again; answers so far are kept"):
        quiet(endpoint(server, workers=1), TEXTS, file)
    first = len(file.read_text().splitlines())
    assert first >= 3  # the first line, and the two answers
    asked = len(server.requests)
    replies, said = quiet(endpoint(server), TEXTS, file)
    assert words(replies) == [f"word{i}" for i in range(6)]
    assert len(server.requests) - asked == 6 - (first - 1) and said[0].startswith(f"{7 - first} of 6 prompts")


def test_connections_that_stay_cut_stop_the_run(server, file):
    server.faults = ["cut"] * 3
    with pytest.raises(EndpointError, match="after 2 retries"):
        quiet(endpoint(server, workers=1), TEXTS[:1], file)


def test_a_refusal_stops_at_once_and_never_shows_the_key(server, file, monkeypatch):
    monkeypatch.setenv("TEST_KEY", "another-key")
    with pytest.raises(EndpointError, match="401.*mend the key") as caught:
        quiet(endpoint(server, workers=1), TEXTS[:1], file)
    assert "another-key" not in str(caught.value) and "[key]" in str(caught.value)
    assert len(server.requests) == 1 and "another-key" not in file.read_text()


def test_without_a_key_nothing_is_sent(server, file, monkeypatch):
    monkeypatch.setenv("TEST_KEY", "")
    with pytest.raises(InputError, match="TEST_KEY is empty"):
        quiet(endpoint(server), TEXTS, file)
    assert server.requests == []


def test_requests_keep_their_pace_even_when_sent_again(server, file):
    server.faults = [(500, {"Retry-After-Ms": "1"})] * 2
    quiet(endpoint(server, requests_per_minute=600, workers=8), [f"{text} please" for text in TEXTS * 2], file)
    times = sorted(server.times)
    assert len(times) == 8 and times[-1] - times[0] >= 0.65  # seven gaps of 0.1 s; a request may reach the server late


def test_pace_gives_turns_in_a_row():
    pace = Pace(0.05)
    start = time.monotonic()
    for _ in range(4):
        pace.wait()
    assert time.monotonic() - start >= 0.15


ASK = """
import sys
from possym.models.endpoint import Endpoint, ask
where = Endpoint(model="m", input_price=0, output_price=0, base_url=sys.argv[1], key_variable="TEST_KEY",
                 requests_per_minute=60_000, workers=1)
ask(where, [f"say word{i} now" for i in range(6)], sys.argv[2], send=True, progress=False)
"""


def test_a_killed_run_goes_on_where_it_was(server, file):
    """The process is killed while the server holds its fourth answer back; three are on file and not asked again."""
    killed = []

    def kill(text):
        if "word3" in text and not killed:
            killed.append(True)
            os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.2)

    server.before_answer = kill
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", ASK, server.url, str(file)], env=environment, stdout=-3)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert len(file.read_text().splitlines()) == 1 + 3
    with open(file, "a") as broken:
        broken.write('{"prompt": "abc", "te')  # as a kill in the middle of a write leaves it
    replies, said = quiet(endpoint(server, input_price=0, output_price=0), TEXTS, file)
    assert words(replies) == [f"word{i}" for i in range(6)]
    assert said[0].startswith("3 of 6 prompts to ask")
    asked = [body["messages"][0]["content"] for _, _, body in server.requests]
    assert all(asked.count(text) == (2 if "word3" in text else 1) for text in TEXTS)
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_a_file_of_another_endpoint_is_refused(server, file):
    quiet(endpoint(server), TEXTS[:1], file)
    for change in ({"model": "other"}, {"settings": {"max_tokens": 5}}, {"base_url": "http://127.0.0.1:1/v1"}):
        with pytest.raises(ResultsError, match="give another file"):
            plan(endpoint(server, **change), TEXTS, file)
    file.write_text("not answers\n")
    with pytest.raises(ResultsError, match="not a file of answers"):
        plan(endpoint(server), TEXTS, file)


def test_two_processes_do_not_share_a_file(server, file):
    said = []

    def second(_):
        try:
            quiet(endpoint(server), TEXTS, file)
        except ResultsError as error:
            said.append(str(error))

    server.before_answer = second
    quiet(endpoint(server), ["a b c"], file)
    assert len(said) == 1 and "in use by another process" in said[0] and len(server.requests) == 1


def test_the_whole_protocol_over_the_wire(server, file):
    """Prompts out, replies back, graded: a server that solves half of the letter prompts of each run."""
    prompts = onehop.draw(4, lengths=(16,), runs=2)
    letters = prompts[prompts.kind == "letter"]
    task, right = OneHopTask("letter"), set(letters.loc[letters.prompt < 2, "text"])
    solved = {prompt_id(text): task.solve(text) for text in right}
    file.write_text("")
    replies, _ = quiet(endpoint(server), letters["text"].tolist(), file)
    replies = [
        reply._replace(text=solved.get(prompt_id(text), reply.text))
        for reply, text in zip(replies, letters["text"], strict=True)
    ]
    table = onehop.collect(letters, replies)
    assert onehop.accuracy(table)[["mean", "sd", "prompts"]].values.tolist() == [[0.5, 0.0, 8]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, "model is empty"),
        ({"input_price": "1"}, "input_price is of type str"),
        ({"output_price": float("nan")}, "output_price = nan"),
        ({"requests_per_minute": 0}, "a number above 0"),
        ({"workers": 0}, "workers = 0"),
        ({"base_url": "ftp://x"}, "begins with http"),
        ({"settings": {"model": "x"}}, "settings holds model"),
        ({"settings": {"a": {1}}}, "cannot be sent as JSON"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Endpoint(**{"model": "m", "input_price": 0, "output_price": 0} | changes)


def test_prompts_that_are_none_are_refused(tmp_path):
    where = Endpoint(model="m", input_price=0, output_price=0)
    for wrong in ([], [""], [3], "text"):
        with pytest.raises(InputError, match="texts"):
            ask(where, wrong, tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="endpoint is of type str"):
        ask("http://localhost", ["a"], tmp_path / "a.jsonl")
    with pytest.raises(InputError, match="send is of type str"):
        ask(where, ["a"], tmp_path / "a.jsonl", send="yes")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_url": "http://"}, "such as http://localhost"),
        ({"base_url": "http://["}, "such as http://localhost"),
        ({"base_url": "http://host:port/v1"}, "such as http://localhost"),
        ({"timeout": 1e300}, "longer than a day"),
        ({"requests_per_minute": 1e-300}, "longer than a day"),
        ({"settings": {"max_tokens": -5}}, "whole number of at least 1"),
        ({"settings": {"max_tokens": "many"}}, "whole number of at least 1"),
        ({"settings": {"stop": "\ud800"}}, "cannot be sent"),
        ({"model": "\ud800"}, "half a letter"),
    ],
)
def test_what_no_request_can_carry_is_refused_before_any_is_sent(changes, message):
    with pytest.raises(InputError, match=message):
        Endpoint(**{"model": "m", "input_price": 1.0, "output_price": 1.0} | changes)


@pytest.mark.parametrize("key", ["ключ", "a\nb", " "])
def test_a_key_that_no_header_carries_is_refused(server, file, monkeypatch, key):
    monkeypatch.setenv("TEST_KEY", key)
    with pytest.raises(InputError, match="bare key"):
        ask(endpoint(server, key_variable="TEST_KEY"), ["a b 1"], file, send=True)
    assert not server.requests and not file.exists()


@pytest.mark.parametrize("answer", [{"text": None}, {"tokens": "x"}])
def test_a_stored_line_that_is_no_answer_is_refused(server, file, answer):
    where = endpoint(server)
    line = {"prompt": prompt_id("a b 1"), "text": "b", "tokens": 1, "ended": True} | answer
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(where.identity()) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(ResultsError, match="not a file of answers"):
        plan(where, ["a b 1"], file)


def test_answers_that_cannot_be_a_file_are_refused_unread(server, tmp_path):
    pipe, nested = tmp_path / "pipe", tmp_path / "nested.jsonl"
    os.mkfifo(pipe)
    nested.write_text("[" * 100_000 + "\n")
    for path in (pipe, nested, tmp_path / ("x" * 300)):
        with pytest.raises(ResultsError, match="not a file of answers"):
            plan(endpoint(server), ["a b 1"], path)


@pytest.mark.parametrize("more", [{"say": None}, {"progress": "no"}])
def test_what_is_no_way_to_say_or_show_is_refused(server, file, more):
    with pytest.raises(InputError, match=next(iter(more))):
        ask(endpoint(server), ["a b 1"], file, **more)
