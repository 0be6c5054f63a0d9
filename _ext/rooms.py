"""Draw the rooms of the library and who imports whom, from the imports themselves, into a page's mermaid block.

python _ext/rooms.py CONTRIBUTING.md
"""

import re
import sys
from pathlib import Path

import grimp

BLOCK = re.compile(r"(?<=^```mermaid\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def imports() -> dict[str, set[str]]:
    """The rooms that each room imports from; the package's own front door, which loads them late, left out."""
    graph = grimp.build_graph("possym", cache_dir=None)
    found: dict[str, set[str]] = {
        name.split(".")[1]: set() for name in graph.modules - {"possym.__main__"} if "." in name
    }
    for module in graph.modules - {"possym", "possym.__main__"}:
        room = module.split(".")[1]
        names = graph.find_modules_directly_imported_by(module) - {"possym"}
        found[room] |= {name.split(".")[1] for name in names} - {room}
    return found


def reach(rooms: dict[str, set[str]], room: str) -> set[str]:
    """Everything that a room imports, directly or through others."""
    found, waiting = set(), set(rooms[room])
    while waiting:
        found.add(name := waiting.pop())
        waiting |= rooms[name] - found
    return found


def picture() -> str:
    """The rooms as a mermaid graph; of two ways to one room, through another or directly, the longer is drawn."""
    rooms = imports()
    lines = ["graph TD"]
    for room, direct in sorted(rooms.items()):
        drawn = sorted(name for name in direct if not any(name in reach(rooms, other) for other in direct - {name}))
        lines += [f"  {room} --> {name}" for name in drawn]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(BLOCK.sub(picture(), page.read_text(encoding="utf-8")), encoding="utf-8")
