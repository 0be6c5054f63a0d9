"""What every claim measures on the stored results: verdict, numbers and estimates, in ``stored_numbers.json``.

python tests/claims/stored_numbers.py writes them anew, after a study or a claim was changed on purpose.
"""

import json
import math
import re
from importlib import import_module
from pathlib import Path

from possym.claims import rows

FILE = Path(__file__).with_suffix(".json")
ROOMS = sorted({path.parent.name for path in Path(rows.__file__).parents[1].glob("experiments/*/claims.py")})


def figures(text: str) -> list[str]:
    """Return the numbers of a text, as they are written there."""
    return re.findall(r"\d+(?:[.,]\d+)*", text)


def numbers(room: str) -> dict[str, list]:
    """Return by claim of a study's folder: verdict, numbers in words (words may change), estimates to five digits."""
    found = {}
    for claim in import_module(f"possym.experiments.{room}.claims").CLAIMS:
        measured = rows.measure(claim, {})
        words = figures(f"{measured.measured} {measured.interval}")
        estimates = [[None if math.isnan(x) else float(f"{x:.5g}") for x in one] for one in measured.estimates]
        found[claim.id] = [measured.verdict, " ".join(words), estimates]
    return found


def main() -> None:
    """Write the file: a line for each claim."""
    rooms = []
    for room in ROOMS:
        lines = (f"  {json.dumps(id)}: {json.dumps(found)}" for id, found in numbers(room).items())
        rooms.append(f'"{room}": {{\n' + ",\n".join(lines) + "\n}")
    FILE.write_text("{" + ", ".join(rooms) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
