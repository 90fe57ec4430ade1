"""The command line: finds what is asked for, prints it as text or JSON, and ends with a number that means something."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, NoReturn

from colabkeep._version import __version__
from colabkeep.checkpoint.inspect import find_run, run_names
from colabkeep.checkpoint.retention import KeepBest
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    ColabKeepError,
    NoUsableCheckpoint,
    RunBusy,
    StoreError,
    UsageError,
)
from colabkeep.core.language import said, said_by
from colabkeep.core.policies import OVERHEAD
from colabkeep.core.system import Environment, SystemClock
from colabkeep.session.open import RunArguments, asked_for, find_store
from colabkeep.session.prune import plan_prune, prune
from colabkeep.session.weights import choose
from colabkeep.stores.base import BytesSource, Store
from colabkeep.ui import auth, demo, export, records, text
from colabkeep.ui.figures import Plotted
from colabkeep.ui.terminal import MovingLine
from colabkeep.ui.trainers import FORMATS, KERAS_NAMES

_EXIT_CODES = """\
exit status:
    0  done, and all is well
    1  damage was found, or the demo's two trainings differ
    2  the command line is invalid
    3  there is no such run or checkpoint
    4  the storage failed
    5  something is missing: a newer colabkeep, a package, more memory
    6  the run is in use right now
  130  interrupted
  141  whoever read the output went away
"""
_STATUS: tuple[tuple[type[ColabKeepError], int], ...] = (
    (CheckpointDamaged, 1),
    (NoUsableCheckpoint, 1),
    (UsageError, 2),
    (CheckpointNotFound, 3),
    (StoreError, 4),
    (RunBusy, 6),
    (ColabKeepError, 5),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` without the program's name (that of the process by default). Returns the exit status.

    Raises:
        SystemExit: argparse's own, for help, version and a command line that it cannot read.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without our arrows gets question marks, and the rest
    words = _read(sys.argv[1:] if argv is None else argv)
    try:
        status = _status(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(said("Interrupted.") + "\n")
        return 130
    except BrokenPipeError:
        # Python flushes once more at exit, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _read(given: Sequence[str]) -> argparse.Namespace:
    """The words of a command line. What follows two dashes is another program's."""
    at = given.index("--") if list(given[:1]) == ["keep"] and "--" in given else len(given)
    words = _parser().parse_args(given[:at])
    words.program = given[at + 1 :]
    return words


def _status(words: argparse.Namespace) -> int:
    try:
        status: int = words.command(words)
    except ColabKeepError as error:
        if words.json:
            told = {"problem": error.problem, "remedy": error.remedy, "type": type(error).__name__}
            sys.stdout.write(json.dumps({"error": told}) + "\n")
        else:
            sys.stderr.write(f"colabkeep: {error}\n")
        return next(status for kind, status in _STATUS if isinstance(error, kind))
    return status


# What argparse says of a command line (Python 3.10 to 3.14), perhaps behind "argument --mode: ".
_ARGUMENT = ("argument {}",)
_WRONG = (
    "the following arguments are required: {}",
    "unrecognized arguments: {}",
    "invalid choice: {} (choose from {})",
    "invalid {} value: {}",
    "expected one argument",
    "not allowed with argument {}",
    "ignored explicit argument {}",
    "ambiguous option: {} could match {}",
)


class _Parser(argparse.ArgumentParser):
    """One that says in the reader's language what is wrong."""

    def error(self, message: str) -> NoReturn:
        """End, as argparse does: the usage, and a line."""
        self.print_usage(sys.stderr)
        argument, colon, wrong = message.partition(": ") if message.startswith("argument ") else ("", "", message)
        told = f"{said_by(_ARGUMENT, argument)}{colon}{said_by(_WRONG, wrong)}"
        self.exit(2, f"{self.prog}: {said('error: ')}{told}\n")


class _Help(argparse.HelpFormatter):
    """Help in the reader's language."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, said("usage: ") if prefix is None else prefix)

    def add_text(self, text: str | None) -> None:
        super().add_text(None if text is None else said(text))

    def start_section(self, heading: str | None) -> None:
        super().start_section(None if heading is None else said(heading))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return None if action.help is None else said(action.help)


class _RawHelp(_Help, argparse.RawDescriptionHelpFormatter):
    """With the lines of the text below it as they are."""


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="colabkeep",
        description="The trainings that colabkeep keeps: list, inspect, verify, export, copy, delete.",
        epilog=_EXIT_CODES,
        formatter_class=_RawHelp,
    )
    parser.add_argument("--version", action="version", version=f"colabkeep {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], *, storage: bool = True
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=run.__doc__, description=run.__doc__, formatter_class=_Help)
        if storage:
            added.add_argument("--storage", default="auto", metavar="WHERE", help="folder or URL (default: platform's)")
        added.add_argument("--json", action="store_true", help="print one JSON object, errors too")
        added.set_defaults(command=run)
        return added

    command("list", _list)
    show = command("show", _show)
    show.add_argument("run", type=_name, help="the run's name")
    show.add_argument("--checkpoint", metavar="ID", help="the one to look into (default: the newest)")
    told = command("report", _report)
    told.add_argument("run", nargs="?", type=_name, help="the run's name (default: the only one there)")
    compared = command("compare", _compare)
    compared.add_argument("runs", nargs="*", type=_name, default=["*"], help="names; * and ? stand for anything")
    compared.add_argument("--metric", type=_name, help="what tells the best (default: what the runs monitor)")
    compared.add_argument("--mode", choices=("min", "max"), help="is less of it better, or more?")
    for each in (told, compared):
        each.add_argument("--html", metavar="FILE", help="write it as a page instead of printing it")
        each.add_argument("--force", action="store_true", help="replace a file that exists")
    verify = command("verify", _verify)
    verify.add_argument("run", nargs="?", type=_name, help="the run's name (default: all runs)")
    exported = command("export", _export)
    exported.add_argument("run", type=_name, help="the run's name")
    exported.add_argument(
        "out",
        nargs="?",
        help="the file (default: model.safetensors), by its ending one of Keras's; of a kept folder, an empty folder",
    )
    exported.add_argument(
        "--which", default="latest", metavar="latest|best|ID", help="the checkpoint (default: latest)"
    )
    exported.add_argument("--part", default="model", help='"model" (default), "ema", or "state.<name>"')
    exported.add_argument(
        "--format", choices=sorted(FORMATS), help="a folder or file that this trainer loads by itself"
    )
    exported.add_argument("--force", action="store_true", help="replace a file that exists")
    pruned = command("prune", _prune)
    pruned.add_argument("run", type=_name, help="the run's name")
    _add_retention(pruned)
    for each in (exported, pruned):
        each.add_argument("--monitor", default="val_loss", help="the metric that says what is best (default: val_loss)")
        each.add_argument("--mode", choices=("min", "max"), default="min", help="is less of it better, or more?")
    _add_copying(command("copy", _copy, storage=False))
    doctor = command("doctor", _doctor, storage=False)
    doctor.add_argument("--probe", action="store_true", help="where it is in doubt, try the GPU (may take a minute)")
    doctor.add_argument(
        "--previous", action="append", default=[], metavar="CARD", help="what an earlier session got; the latest last"
    )
    doctor.add_argument("--storage", help="say what this place takes in an hour or a day, as in hf://owner/name")
    command("gpus", _gpus, storage=False)
    measured = command("bench", _bench)
    what = measured.add_mutually_exclusive_group()
    what.add_argument("--run", type=_name, metavar="NAME", help="a save as large as this run's newest checkpoint")
    what.add_argument("--size", metavar="SIZE", help='a save of so many bytes, such as "1.5GB" (default: 500MB)')
    measured.add_argument("--overhead", type=float, default=OVERHEAD, help=f"the share of time (default: {OVERHEAD})")
    auth.add_arguments(command("auth", _auth, storage=False))
    _add_keeping(command("keep", _keep))
    demo.add_arguments(command("demo", _demo, storage=False))
    return parser


def _add_copying(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="the storage to copy from: a folder or URL")
    parser.add_argument("target", help="the storage to copy to")
    parser.add_argument("--run", type=_name, metavar="NAME", help="only this run (default: all runs)")
    parser.add_argument("--as", dest="new_name", type=_name, metavar="NAME", help="what the copy is called")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be copied")


def _add_keeping(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s folder --run NAME [--storage WHERE] [option ...] -- program [words ...] [{words}]"
    parser.epilog = (
        "What stands in {braces} is added only where files were restored, as in: -- python train.py {--resume}"
    )
    parser.add_argument("folder", help="the folder that the program writes")
    parser.add_argument(
        "program", nargs="*", help="after --: the program; {words} are left out where nothing was restored"
    )
    parser.add_argument("--run", type=_name, required=True, help="the run's name")
    parser.add_argument(
        "--restore", choices=("auto", "never", "overwrite"), default="auto", help="what becomes of files that are there"
    )
    for word, files in (("include", "keep only such files, as *.pt"), ("exclude", "keep no such files, as *.pt")):
        parser.add_argument(f"--{word}", action="append", default=[], metavar="PATTERN", help=files)
    parser.add_argument("--keep-last", type=int, default=2, metavar="N", help="the newest N versions stay (default: 2)")
    parser.add_argument("--every", default="1 min", metavar="TIME", help="between two versions (default: 1 min)")
    parser.add_argument("--max-time", metavar="TIME", help="interrupt the program after so long, as Ctrl-C does")
    parser.add_argument("--session-limit", metavar="TIME", help="how long this machine lives, where you know better")
    parser.add_argument(
        "--settle", default="3 s", metavar="TIME", help="how long nothing must change first (default: 3 s)"
    )
    parser.add_argument("--flush-timeout", default="1 min", metavar="TIME", help="wait so long for uploads at the end")


def _add_retention(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-last", type=int, default=2, metavar="N", help="the newest N stay (default: 2)")
    parser.add_argument("--keep-best", type=int, default=1, metavar="N", help="the best N stay (default: 1)")
    parser.add_argument("--apart", action="store_true", help="also those that are not on the newest one's line")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")


def _name(word: str) -> str:
    """The name of a run as it was typed: a locale of ASCII hands over bytes, each in a place that text does not use."""
    return os.fsencode(word).decode(errors="replace")


def _list(words: argparse.Namespace) -> int:
    """list the runs and their checkpoints"""
    with closing(find_store(words.storage)) as store:
        record = records.list_record(store)
    _print(words, record, text.list_lines(record, store.url, SystemClock().time()))
    return 0


def _show(words: argparse.Namespace) -> int:
    """show one run: its sessions, its checkpoints, and one of them from inside"""
    with closing(find_store(words.storage)) as store:
        record = records.show_record(find_run(store, words.run), words.checkpoint)
    _print(words, record, text.show_lines(record))
    return 0


def _report(words: argparse.Namespace) -> int:
    """show the whole history of a run: machines, gaps, what was lost, saves, the loss curve"""
    from colabkeep.ui.report import report_on

    return _plotted(words, "report.html", lambda store, asked: report_on(store, words.run, asked))


def _compare(words: argparse.Namespace) -> int:
    """compare runs: the settings that differ, the best of each, their curves"""
    from colabkeep.ui.compare import compare_in

    return _plotted(
        words, "compare.html", lambda store, asked: compare_in(store, words.runs, words.metric, words.mode, asked)
    )


def _plotted(words: argparse.Namespace, name: str, make: Callable[[Store, str], Plotted]) -> int:
    """Print a report, or write it as a page, whose file is called `name` in a folder."""
    page = None if words.html is None else export.Target(words.html, force=words.force, name=name)
    with closing(find_store(words.storage)) as store:
        found = make(store, asked_for(words.storage))
    if page is not None:
        page.write(BytesSource(found.to_html().encode(errors="replace")))
    _print(words, found.to_dict(), found.lines() if page is None else [f"{page.path}: {found.title}"])
    return 0


def _verify(words: argparse.Namespace) -> int:
    """read every file again and compare it with what was written; changes nothing"""
    with closing(find_store(words.storage)) as store:
        names = run_names(store) if words.run is None else [find_run(store, words.run).run]
        if not names:
            raise CheckpointNotFound(
                problem=f"There is nothing to verify: {store.url} has no runs.",
                remedy="Is that the right place? Name another with --storage.",
            )
        progress = _Progress("reading", quiet=words.json)
        record = records.verify_record(store, names, progress)
        progress.end()
    _print(words, record, text.verify_lines(record))
    states = {finding["state"] for run in record["runs"] for finding in run["findings"]}
    if states & records.BAD:
        return 1
    return 5 if "newer" in states else 0


def _export(words: argparse.Namespace) -> int:
    """write the weights of a checkpoint to one safetensors file, or the files of a kept folder into an empty one"""
    best = KeepBest(n=1, monitor=words.monitor, mode=words.mode)
    with closing(find_store(words.storage)) as store:
        run = find_run(store, words.run)
        if export.is_folder(run):
            record = export.export_folder(run, words.which, words.out, lambda id, why: _skipped(words, id, why))
            _print(words, record, text.exported_folder_lines(record))
            return 0
        if words.format is None and (words.out or "").endswith(KERAS_NAMES):
            words.format = "keras"
        if words.format is not None:
            loaded = choose(run, words.which, best, lambda id, why: _skipped(words, id, why))
            record = FORMATS[words.format](loaded, words.part, words.out or words.run, force=words.force)
            _print(words, record, text.exported_lines(record))
            return 0
        target = export.Target(words.out or export.FILE, force=words.force)
        loaded = choose(run, words.which, best, lambda id, why: _skipped(words, id, why))
        record = export.export_weights(loaded, words.part, target)
    _print(words, record, text.exported_lines(record))
    return 0


def _prune(words: argparse.Namespace) -> int:
    """delete the checkpoints of a run that are no longer needed; --dry-run only says what would be deleted"""
    kept = {"keep_last": words.keep_last, "keep_best": words.keep_best, "monitor": words.monitor, "mode": words.mode}
    policy = RunArguments(run_name=None, **kept).retention
    with closing(find_store(words.storage)) as store:  # a pair has a thread that deletes on the remote side
        repository, caught_up = find_run(store, words.run), True
        if words.dry_run:
            plan = plan_prune(repository, policy, apart=words.apart)
        else:
            progress = _Progress("deleting from", quiet=words.json or not sys.stderr.isatty())
            watch = progress.of(repository.run)
            plan, caught_up = prune(store, repository.run, policy, SystemClock(), apart=words.apart, watch=watch)
            progress.end()
    record = records.prune_record(repository, plan, dry_run=words.dry_run, caught_up=caught_up)
    _print(words, record, text.pruned_lines(record))
    return 0


def _copy(words: argparse.Namespace) -> int:
    """copy runs to another storage or another name, and verify each file there; --dry-run says what would be copied"""
    progress = _Progress("copying", quiet=words.json or not sys.stderr.isatty())
    try:
        record = records.copy_record(words, progress.of)
    finally:
        progress.end()
    _print(words, record, text.copied_lines(record))
    return records.copy_status(record)


def _keep(words: argparse.Namespace) -> int:
    """run a program while the folder that it writes is kept: restored first, then whole versions of it"""
    from colabkeep.keep.command import check_program, run_program
    from colabkeep.keep.wiring import FolderArguments, wire_folder
    from colabkeep.ui.panel.displays import displays

    check_program(words.program)
    run = RunArguments(
        run_name=words.run,
        storage=words.storage,
        keep_last=words.keep_last,
        max_time=words.max_time,
        session_limit=words.session_limit,
        flush_timeout=words.flush_timeout,
        # The standard output is the program's.
        observers=displays("text", SystemClock(), Environment.here(), sys.stderr),
    )
    kept = wire_folder(
        FolderArguments(
            folder=words.folder,
            run=run,
            restore=words.restore,
            include=words.include,
            exclude=words.exclude,
            every=words.every,
            settle=words.settle,
        )
    )
    with kept:
        status = run_program(kept, words.program)
    if words.json:
        _print(words, records.kept_record(kept, status))
    return status


def _doctor(words: argparse.Namespace) -> int:
    """say where this is, which accelerator came and whether to start on it, where checkpoints will be kept"""
    from colabkeep.ui.check.report import examine

    _print(words, examine(probe=words.probe, previous=words.previous, storage=words.storage))
    return 0


def _gpus(words: argparse.Namespace) -> int:
    """compare the GPUs of the notebook services: speed, memory, where they are free, which torch runs on them"""
    from colabkeep.ui.gpus import compare_gpus

    _print(words, compare_gpus())
    return 0


def _bench(words: argparse.Namespace) -> int:
    """measure in a minute what a save costs here and how often that lets it save; deletes what it writes"""
    from colabkeep.ui.bench import bench_saves

    stream = None if words.json else sys.stderr
    _print(words, bench_saves({}, words.run, words.size, words.storage, words.overhead, stream))
    return 0


def _auth(words: argparse.Namespace) -> int:
    """let your own Google account keep checkpoints: asks once, prints one secret to store"""
    return auth.main(words)


def _demo(words: argparse.Namespace) -> int:
    """train on real data, be killed twice, and compare with a training that was never interrupted"""
    return demo.main(words)


def _print(words: argparse.Namespace, found: text.Record | text.Report, lines: Iterable[str] = ()) -> None:
    record = found
    if isinstance(found, text.Report):
        record, lines = found.to_dict(), found.lines()
    for line in [json.dumps(record, allow_nan=False)] if words.json else map(said, lines):
        sys.stdout.write(line + "\n")


def _skipped(words: argparse.Namespace, id: str, why: str) -> None:
    if not words.json:
        sys.stderr.write(said(f"skipped checkpoint {id}: {why}\n"))


class _Progress:
    """How far a long command is: one line that moves on a terminal, elsewhere one line for each run."""

    def __init__(self, doing: str, *, quiet: bool = False) -> None:
        self._doing, self._quiet = doing, quiet
        self._line = MovingLine(sys.stderr)

    def __call__(self, run: str, files: int, size: int) -> None:
        if self._quiet:
            return
        if self._line.moves:
            self._line.show(said(f"{self._doing} {run}: {files} files, {text.size_text(size)}"))
        elif not files:
            self._line.line(said(f"{self._doing} {run}"))

    def of(self, run: str) -> Callable[[str, int], None]:
        """To be called for each file of the run with its name and bytes; counts them."""
        done = Counter[str]()

        def watch(_: str, size: int) -> None:
            done.update(files=1, bytes=size)
            self(run, done["files"], done["bytes"])

        return watch

    def end(self) -> None:
        """Remove the line that moves."""
        self._line.end()
