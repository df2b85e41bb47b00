"""``dasktune repair``: say what is damaged in a journal, and restore the last good state."""

from __future__ import annotations

import argparse

from dasktune.cli.arguments import add_experiment, add_storage_options, storage_of
from dasktune.cli.output import write
from dasktune.results.journal_repair import JournalDiagnosis, diagnose_journal, repair_journal
from dasktune.text.formatting import one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = (
        "No user code is run. The damaged files stay as they were, and are skipped.\n"
        "Exit code: 1 if --dry-run found damage, 0 otherwise."
    )
    add_experiment(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what is damaged, and write nothing (default: off)"
    )
    parser.add_argument(
        "--keep",
        type=int,
        metavar="N",
        help=(
            "drop all records after the first N, for a journal that is in order and still cannot be "
            "resumed (default: keep all good ones)"
        ),
    )
    add_storage_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Diagnose the journal, and repair it."""
    storage, keep, is_dry = storage_of(arguments), arguments.keep, arguments.dry_run
    found = diagnose_journal(storage, keep=keep) if is_dry else repair_journal(storage, keep=keep)
    if not found.damages:
        write(f"{one_line(storage)}: the journal is in order")
        return 0
    for damage in found.damages:
        write(f"damaged: {one_line(damage)}")
    write(_outcome(found, is_dry))
    if is_dry and found.snapshot > found.kept:
        write(
            f"a snapshot has the state after {found.snapshot} records. Try Tuner.restore() first: if it "
            "works, you lose less than by a repair"
        )
    if found.lost_checkpoints:
        write(
            "these trials refer to a checkpoint that was deleted later, so they must begin again: "
            f"{', '.join(found.lost_checkpoints)}. "
            'Restore with resume_config=ResumeConfig(unfinished="restart")'
        )
    if not is_dry:
        write("the damaged files stay in journal/ as they were")
    return int(is_dry)


def _outcome(found: JournalDiagnosis, is_dry: bool) -> str:
    verb = "a repair restores" if is_dry else "restored"
    rest = max(0, found.total - found.kept)
    text = f"{verb} the state after {found.kept} records, with {len(found.trials)} trials"
    return text + (f"; {rest} records behind that do not count" if rest else "")
