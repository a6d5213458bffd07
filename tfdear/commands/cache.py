# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear cache`: lists, checks and deletes what `DataCache` keeps on a disk."""

from __future__ import annotations

import argparse
import pathlib

from tfdear.commands.refusal import refuse

_DESCRIPTION = """\
Lists what `tfdear.data.DataCache(..., directory=DIRECTORY)` keeps there: a folder for each source.
Damaged records do no harm: training reads them from the source again.
"""
_EPILOG = """\
examples:
  tfdear cache /scratch/cache
  tfdear cache /scratch/cache --verify
  tfdear cache /scratch/cache --remove
"""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Adds `cache` to the sub-commands of the command line."""
    parser = commands.add_parser(
        "cache",
        help="list, check and delete what caches of examples keep on a disk",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(function=_run)
    parser.add_argument("directory", metavar="DIRECTORY", type=pathlib.Path)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare all checksums, where no job writes; the exit code says the result",
    )
    parser.add_argument(
        "--remove", action="store_true", help="delete the folders into which no job writes"
    )


def _run(options: argparse.Namespace) -> int:
    from tfdear.data import disk_report

    if not options.directory.is_dir():
        return refuse("cache", f"there is no directory {str(options.directory)!r}")
    try:
        found = disk_report.reports(options.directory)
    except OSError as error:  # Such as that of another user.
        return refuse("cache", str(error))
    if not found:
        print(f"{options.directory} has no records of a cache.")
    damaged = False
    for report in found:
        used = ", a job writes into it" if report.in_use else ""
        all_records, first = "", "nothing says of which source it is"
        if report.source is not None:
            all_records, first = f" of {report.source[0]}", f"the first is {report.source[1]}"
        print(
            f"{report.folder}: {report.records}{all_records} records, "
            f"{report.bytes / 1e6:.1f} MB{used}; {first}"
        )
        if options.verify and report.in_use:
            # What it writes now is not whole.
            print("  not checked: a job writes into it")
        elif options.verify:
            faults = disk_report.faults(report.folder)
            damaged = damaged or bool(faults)
            print("\n".join(f"  {fault}" for fault in faults) or "  all records are whole")
        if options.remove:
            try:
                removed = disk_report.remove(report.folder)
                print("  removed" if removed else "  not removed: a job writes into it")
            except OSError as error:
                print(f"  not removed: {error}")
    return 1 if damaged else 0
