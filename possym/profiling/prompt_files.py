"""Prompts out of a file: lines of text, or lines of JSON with texts, chats or token ids."""

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from possym.errors import InputError

WANTED = 'a string, a list of token ids, or an object with "text", "input_ids", or a chat in "messages"'


class PromptFile(NamedTuple):
    """The prompts of a file, as `possym.profile` takes them, and the line that each stands on."""

    name: str
    prompts: list[str | list]
    lines: list[int]

    def at_line(self, message: str) -> str:
        """Return an error's message with the line of the prompt that it names.

        >>> PromptFile("a.txt", ["one", "two"], [1, 3]).at_line("prompt 1 has 1 token: give more")
        'prompt 1 (a.txt, line 3) has 1 token: give more'
        """
        return re.sub(
            r"\bprompt (\d+)",
            lambda found: f"{found[0]} ({self.name}, line {self.lines[int(found[1])]})",
            message,
            count=1,
        )


def read_prompt_file(name: str) -> PromptFile:
    """Return the prompts of a .txt or .jsonl file, or with ``"-"`` of the lines of standard input, all in UTF-8.

    Raises:
        InputError: a file that cannot be read or has no prompts, or a line that is none.

    >>> read_prompt_file("prompts.csv")
    Traceback (most recent call last):
    possym.errors.InputError: --prompts prompts.csv: give a .txt or .jsonl file, or - for standard input
    """
    is_json = name.lower().endswith(".jsonl")
    if name != "-" and not is_json and not name.lower().endswith(".txt"):
        raise InputError(f"--prompts {name}: give a .txt or .jsonl file, or - for standard input")
    try:
        content = standard_input() if name == "-" else Path(name).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"--prompts {name} cannot be read: {error}") from error
    try:
        text = content.decode("utf-8-sig")  # a byte order mark, as Windows writes it, is no part of the first prompt
    except UnicodeDecodeError as error:
        raise InputError(f"--prompts {name} is not in UTF-8 ({error}): save it as UTF-8") from error
    lines = [(number, line) for number, line in enumerate(re.split("\r\n|\r|\n", text), 1) if line.strip()]
    if not lines:
        raise InputError(f"--prompts {name} holds no prompts: give one on each line")
    prompts: list[str | list] = [parsed(name, *line) if is_json else line[1] for line in lines]
    return PromptFile("standard input" if name == "-" else name, prompts, [number for number, _ in lines])


def standard_input() -> bytes:
    """Return all of standard input, whatever encoding the system has."""
    if sys.stdin is None:
        raise InputError("--prompts -: standard input is closed")
    return sys.stdin.buffer.read()


def parsed(name: str, number: int, line: str) -> str | list:
    """Return the prompt of one line of JSON: a text, a chat or token ids."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--prompts {name}, line {number} is no JSON: {error}") from error
    keys = ""
    if isinstance(value, dict):
        keys = f" (it has {', '.join(map(repr, list(value)[:5])) or 'nothing'})"
        value = next((value[key] for key in ("text", "messages", "input_ids") if key in value), None)
    is_list = isinstance(value, list) and value
    if isinstance(value, str) or (is_list and all(type(part) is type(value[0]) in (dict, int) for part in value)):
        return value
    raise InputError(f"--prompts {name}, line {number}{keys}: give {WANTED}")
