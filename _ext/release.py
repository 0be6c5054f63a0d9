"""What a release says of itself, from one place: version and date of `possym/__init__.py`, words of `CITATION.cff`.

python _ext/release.py                     write version and date into CITATION.cff, and .zenodo.json anew
python _ext/release.py URL TAG             in a copy to be published: whole addresses in README.md and pyproject.toml

The second needs the repository's address, which the repository itself does not know: a fork has another.
"""

import json
import re
import sys
from pathlib import Path

import yaml


def said(name: str) -> str:
    """The text that ``possym/__init__.py`` gives a name such as ``__version__``."""
    return re.search(rf'^{name} = "(.+)"$', Path("possym/__init__.py").read_text(encoding="utf-8"), re.MULTILINE)[1]


def citation() -> str:
    """CITATION.cff with the version and date of the library."""
    text = Path("CITATION.cff").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^version: .*$", f"version: {said('__version__')}", text)
    return re.sub(r"(?m)^date-released: .*$", f"date-released: {said('__released__')}", text)


def zenodo() -> str:
    """The record that Zenodo makes of a release, as JSON."""
    cited = yaml.safe_load(citation())
    record = {
        "upload_type": "software",
        "title": cited["title"],
        "description": cited["abstract"],
        "creators": [{"name": author["name"]} for author in cited["authors"]],
        "version": str(cited["version"]),
        "publication_date": str(cited["date-released"]),
        "license": cited["license"],
        "keywords": cited["keywords"],
        "related_identifiers": [
            {"identifier": entry["value"], "relation": "references", "resource_type": "publication-article"}
            for work in cited["references"]
            for entry in work["identifiers"]
        ],
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def with_addresses(readme: str, url: str, tag: str) -> str:
    """A README whose links and pictures name whole addresses.

    >>> with_addresses("![Heads](a.svg) [one](b.md#c) [two](https://d.e)", "https://f.g/h", "v1")
    '![Heads](https://f.g/h/raw/v1/a.svg) [one](https://f.g/h/blob/v1/b.md#c) [two](https://d.e)'
    """
    whole = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{url}/raw/{tag}/", readme)
    return re.sub(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{url}/blob/{tag}/", whole)


def with_urls(project: str, url: str) -> str:
    """A pyproject.toml whose project.urls name the repository too."""
    more = {"Repository": url, "Issues": f"{url}/issues", "Changes": f"{url}/blob/HEAD/CHANGELOG.md"}
    lines = "".join(f'{name} = "{address}"\n' for name, address in more.items())
    return project.replace("[project.urls]\n", f"[project.urls]\n{lines}")


def main(words: list[str]) -> None:
    """Write what the command line asks for, into the current folder."""
    files = {"CITATION.cff": citation(), ".zenodo.json": zenodo()}
    if words:
        url, tag = words
        for name, change in (
            ("README.md", lambda text: with_addresses(text, url, tag)),
            ("pyproject.toml", lambda text: with_urls(text, url)),
        ):
            files[name] = change(Path(name).read_text(encoding="utf-8"))
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
