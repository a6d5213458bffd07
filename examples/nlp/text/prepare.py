# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Makes the texts ready that the examples train on; `make text` runs it, once.

It fetches Debian's packages with apt, which needs no root, and writes into `build/text`, or the
folder that TFDEAR_TEXT names. Running an example fetches nothing.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

from . import (
    documents,
    gcide,
    gnome_user_docs,
    libreoffice_help,
    message_catalogs,
    perl_doc,
    postgresql_doc,
    translations,
    words,
)
from .debian_packages import DebianPackages
from .folder import checksum, different_files, expected_checksums, folder


def make_words(packages: DebianPackages, target: pathlib.Path) -> list[str]:
    """The dictionary, for the language model."""
    text = words.make(gcide.read_entries(packages.unpack(gcide.PACKAGE)))
    return words.save(text, target)


def make_translations(packages: DebianPackages, target: pathlib.Path) -> list[str]:
    """English and German help, for the translators."""
    pairs = libreoffice_help.read_pairs(
        packages.unpack(libreoffice_help.ENGLISH_PACKAGE),
        packages.unpack(libreoffice_help.GERMAN_PACKAGE),
    )
    pairs += gnome_user_docs.read_pairs(packages.unpack(gnome_user_docs.PACKAGE))
    return translations.save(pairs, message_catalogs.read_pairs(), target)


def make_documents(packages: DebianPackages, target: pathlib.Path) -> list[str]:
    """Manuals, for BERT."""
    manuals = perl_doc.read_documents(packages.unpack(perl_doc.PACKAGE))
    manuals += postgresql_doc.read_documents(packages.unpack(postgresql_doc.PACKAGE))
    return documents.save(manuals, target)


STEPS: list[Callable[[DebianPackages, pathlib.Path], list[str]]] = [
    make_words,
    make_translations,
    make_documents,
]


def main() -> None:
    """Makes all that is missing, and compares it with what the documentation's figures are of."""
    target = folder()
    downloads = target / "packages"
    downloads.mkdir(parents=True, exist_ok=True)
    packages = DebianPackages(downloads)
    made = []
    for step in STEPS:
        begin = time.perf_counter()
        names = step(packages, target)
        print(f"{', '.join(names)}: {time.perf_counter() - begin:.0f} s", flush=True)
        made += names
    report(packages, made, target)


def report(packages: DebianPackages, made: list[str], target: pathlib.Path) -> None:
    """Writes versions and checksums beside the texts, and says what differs from the known ones."""
    (target / "checksums.txt").write_text(
        "".join(f"# {name} {version}\n" for name, version in sorted(packages.versions.items()))
        + "".join(f"{checksum(target / name)}  {name}\n" for name in made)
    )
    different = different_files()
    if different:
        print(
            f"These texts are not those that the figures in docs/nlp.md are of: "
            f"{', '.join(different)}. A newer version of a package has other text "
            f"({target / 'checksums.txt'} has the versions used, examples/nlp/text/checksums.txt "
            "the known ones). The examples run with it all the same, with slightly other results. "
            "If no version differs, a file is damaged: remove the folder and run `make text` again."
        )
    else:
        print(f"{len(expected_checksums())} files are as expected, in {target}")


if __name__ == "__main__":
    main()
