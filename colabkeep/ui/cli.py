"""The command line: finds what is asked for, prints it as text or JSON, and ends with a number that means something."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TextIO

from colabkeep._version import __version__
from colabkeep.checkpoint.inspect import find_run, run_names
from colabkeep.core.errors import (
    CheckpointDamaged,
    CheckpointNotFound,
    ColabKeepError,
    NoUsableCheckpoint,
    RunBusy,
    StoreError,
    UsageError,
)
from colabkeep.core.policies import OVERHEAD, KeepBest
from colabkeep.core.system import SystemClock
from colabkeep.session.prune import plan_prune, prune
from colabkeep.session.weights import choose
from colabkeep.session.wiring import find_store, prune_policy
from colabkeep.stores.base import BytesSource
from colabkeep.ui import export, records, report, text

__all__ = ["main"]

_EXIT_CODES = """\
exit status:
    0  done, and all is well
    1  damage was found, or the demo's two trainings differ
    2  the command line cannot be meant so
    3  there is no such run or checkpoint
    4  the storage failed
    5  something is needed that is not here: a newer colabkeep, a package, more memory
    6  the run is being trained right now
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
    words = _words(argv)
    try:
        status = _status(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return 130
    except BrokenPipeError:
        # Python flushes once more at exit, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _status(words: argparse.Namespace) -> int:
    try:
        status: int = words.command(words)
    except ColabKeepError as error:
        _tell(error, as_json=words.json)
        return next(status for kind, status in _STATUS if isinstance(error, kind))
    return status


def _words(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    words, rest = parser.parse_known_args(argv)
    if words.command is _demo:
        from colabkeep.ui import demo

        parser = argparse.ArgumentParser(prog="colabkeep demo", description=_demo.__doc__)
        demo.add_arguments(parser)
        return parser.parse_args(rest, words)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return words


def _parser() -> argparse.ArgumentParser:
    from colabkeep.ui import auth, copy

    parser = argparse.ArgumentParser(
        prog="colabkeep",
        description="The trainings that colabkeep keeps: what is there, is it whole, take it elsewhere.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"colabkeep {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    _command(commands, "list", _list)
    show = _command(commands, "show", _show)
    show.add_argument("run", type=_name, help="the run's name")
    show.add_argument("--checkpoint", metavar="ID", help="the one to look into (default: the newest)")
    _add_report(_command(commands, "report", _report))
    verify = _command(commands, "verify", _verify)
    verify.add_argument("run", nargs="?", type=_name, help="the run's name (default: all runs)")
    _add_export(_command(commands, "export", _export))
    _add_prune(_command(commands, "prune", _prune))
    copying = commands.add_parser("copy", help=_copy.__doc__, description=_copy.__doc__)
    copy.add_arguments(copying, _name)
    copying.set_defaults(command=_copy)
    doctor = commands.add_parser("doctor", help=_doctor.__doc__, description=_doctor.__doc__)
    doctor.add_argument("--json", action="store_true", help="print one JSON object, errors too")
    doctor.add_argument("--probe", action="store_true", help="where it is in doubt, try the GPU (may take a minute)")
    doctor.add_argument(
        "--previous", action="append", default=[], metavar="CARD", help="what an earlier session got; the latest last"
    )
    doctor.add_argument("--storage", help="say what this place takes in an hour or a day, as in hf://owner/name")
    doctor.set_defaults(command=_doctor)
    gpus = commands.add_parser("gpus", help=_gpus.__doc__, description=_gpus.__doc__)
    gpus.add_argument("--json", action="store_true", help="print one JSON object, errors too")
    gpus.set_defaults(command=_gpus)
    _add_bench(_command(commands, "bench", _bench))
    consent = commands.add_parser("auth", help=_auth.__doc__, description=_auth.__doc__)
    consent.add_argument("--json", action="store_true", help="errors too as one JSON object; the secret always is one")
    auth.add_arguments(consent)
    consent.set_defaults(command=_auth)
    demo = commands.add_parser("demo", help=_demo.__doc__, add_help=False)
    demo.set_defaults(command=_demo, json=False)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    command: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=command.__doc__, description=command.__doc__)
    parser.add_argument("--storage", default="auto", metavar="WHERE", help="a folder or URL (default: this platform's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, errors too")
    parser.set_defaults(command=command)
    return parser


def _name(word: str) -> str:
    """The name of a run as it was typed: a locale of ASCII hands over bytes, each in a place that text does not use."""
    return os.fsencode(word).decode(errors="replace")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", type=_name, help="the run's name (default: the only one there)")
    parser.add_argument("--html", metavar="FILE", help="write it as a page instead of printing it")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=_name, help="the run's name")
    parser.add_argument("out", nargs="?", default="model.safetensors", help="the file (default: model.safetensors)")
    parser.add_argument("--which", default="latest", metavar="latest|best|ID", help="the checkpoint (default: latest)")
    parser.add_argument("--part", default="model", help='"model" (default), "ema", or "state.<name>"')
    parser.add_argument("--monitor", default="val_loss", help="the metric that says which is best (default: val_loss)")
    parser.add_argument("--mode", choices=("min", "max"), default="min", help="is less of it better, or more?")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")


def _add_prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=_name, help="the run's name")
    parser.add_argument("--keep-last", type=int, default=2, metavar="N", help="the newest N stay (default: 2)")
    parser.add_argument("--keep-best", type=int, default=1, metavar="N", help="the best N stay (default: 1)")
    parser.add_argument("--monitor", default="val_loss", help="the metric that says which is best (default: val_loss)")
    parser.add_argument("--mode", choices=("min", "max"), default="min", help="is less of it better, or more?")
    parser.add_argument("--apart", action="store_true", help="also those that are not on the newest one's line")
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", type=_name, metavar="NAME", help="a save as large as this run's newest checkpoint")
    what.add_argument("--size", metavar="SIZE", help='a save of so many bytes, such as "1.5GB" (default: 500MB)')
    parser.add_argument(
        "--overhead", type=float, default=OVERHEAD, help="the share of time for saves (default: %(default)s)"
    )


def _list(words: argparse.Namespace) -> int:
    """list the runs and their checkpoints"""
    with closing(find_store(words.storage)) as store:
        record = records.list_record(store)
    _print(words, record, text.list_lines(record, store.url))
    return 0


def _show(words: argparse.Namespace) -> int:
    """show one run: its sessions, its checkpoints, and one of them from inside"""
    with closing(find_store(words.storage)) as store:
        record = records.show_record(find_run(store, words.run), words.checkpoint)
    _print(words, record, text.show_lines(record))
    return 0


def _report(words: argparse.Namespace) -> int:
    """tell the whole story of a run: machines, gaps, what was lost, saves, the loss curve"""
    page = None if words.html is None else export.Target(words.html, force=words.force, name="report.html")
    store = find_store(words.storage)
    try:
        told = report.report_on(store, words.run)
    finally:
        store.close()
    if page is not None:
        page.write(BytesSource(told.to_html().encode(errors="replace")))
    lines = told.lines() if page is None else [f"{page.path}: the story of {text.plain(told.run_history.run)}"]
    _print(words, told.to_dict(), lines)
    return 0


def _verify(words: argparse.Namespace) -> int:
    """read every file again and compare it with what was written; changes nothing"""
    with closing(find_store(words.storage)) as store:
        names = run_names(store) if words.run is None else [find_run(store, words.run).run]
        if not names:
            raise CheckpointNotFound(
                problem=f"There is nothing to verify: {store.url} has no runs.",
                remedy="Is that the right place? Say another with --storage.",
            )
        with_progress = _Progress(sys.stderr)
        record = records.verify_record(store, names, (lambda *_: None) if words.json else with_progress)
        with_progress.end()
    _print(words, record, text.verify_lines(record))
    states = {finding["state"] for run in record["runs"] for finding in run["findings"]}
    if states & records.BAD:
        return 1
    return 5 if "newer" in states else 0


def _export(words: argparse.Namespace) -> int:
    """write the weights of a checkpoint to one safetensors file"""
    target = export.Target(words.out, force=words.force)
    best = KeepBest(n=1, monitor=words.monitor, mode=words.mode)
    with closing(find_store(words.storage)) as store:
        run = find_run(store, words.run)
        loaded = choose(run, words.which, best, lambda id, why: _warn(words, f"walked past {id}: {why}"))
        record = export.export_weights(loaded, words.part, target)
    _print(words, record, text.exported_lines(record))
    return 0


def _prune(words: argparse.Namespace) -> int:
    """delete the checkpoints of a run that are no longer needed; --dry-run only says what would go"""
    policy = prune_policy(words.keep_last, words.keep_best, words.monitor, words.mode)
    store = find_store(words.storage)
    try:
        repository, watch, caught_up = find_run(store, words.run), _Progress(sys.stderr, "deleting from"), True
        if words.dry_run:
            plan = plan_prune(repository, policy, apart=words.apart)
        else:
            silent = words.json or not sys.stderr.isatty()
            each = (lambda *_: None) if silent else watch.one(repository.run)
            plan, caught_up = prune(store, repository.run, policy, SystemClock(), apart=words.apart, watch=each)
            watch.end()
    finally:
        store.close()  # a pair has a thread that brings the deletions to the slower side
    record = records.prune_record(repository, plan, dry_run=words.dry_run, caught_up=caught_up)
    _print(words, record, text.pruned_lines(record))
    return 0


def _copy(words: argparse.Namespace) -> int:
    """copy runs to another storage or another name, and verify each file there; --dry-run only says what would go"""
    from colabkeep.ui.copy import copied_lines, copy_record, copy_status

    watch = _Copying(words)
    try:
        record = copy_record(words, watch)
    finally:
        watch.end()
    _print(words, record, copied_lines(record))
    return copy_status(record)


def _doctor(words: argparse.Namespace) -> int:
    """say where this is, which accelerator came and whether to start on it, where checkpoints will live"""
    from colabkeep.ui.check.report import examine

    found = examine(probe=words.probe, previous=words.previous, storage=words.storage)
    _print(words, found.to_dict(), found.lines())
    return 0


def _gpus(words: argparse.Namespace) -> int:
    """compare the GPUs of the notebook services: speed, memory, where they are free, which torch runs on them"""
    from colabkeep.ui.gpus import compare_gpus

    comparison = compare_gpus()
    _print(words, comparison.to_dict(), comparison.lines())
    return 0


def _bench(words: argparse.Namespace) -> int:
    """measure in a minute what a save costs here and how often that lets it save; deletes what it writes"""
    from colabkeep.ui.bench import bench_command

    found = bench_command(words, None if words.json else sys.stderr)
    _print(words, found.to_dict(), found.lines())
    return 0


def _auth(words: argparse.Namespace) -> int:
    """let your own Google account keep checkpoints: asks once, prints one secret to store"""
    from colabkeep.ui import auth

    return auth.main(words)


def _demo(words: argparse.Namespace) -> int:
    """train on real data, be killed twice, and compare with a training that was left alone"""
    from colabkeep.ui import demo

    return demo.main(words)


class _Progress:
    """How far a long command is: one line that moves on a terminal, elsewhere one line for each run."""

    def __init__(self, stream: TextIO, doing: str = "reading") -> None:
        self._stream = stream
        self._doing = doing
        self._moving = stream.isatty()
        self._width = 0

    def __call__(self, run: str, files: int, size: int) -> None:
        if self._moving:
            self.say(f"{self._doing} {run}: {files} files, {text.size_text(size)}")
        elif not files:
            self._stream.write(f"{self._doing} {run}\n")
            self._stream.flush()

    def say(self, text: str) -> None:
        """Have this as the line that moves."""
        self._stream.write("\r" + text.ljust(self._width))
        self._width = len(text)
        self._stream.flush()

    def one(self, run: str) -> Callable[[str, int], None]:
        """To be called for each file of the run with its name and bytes; counts them."""
        done = [0, 0]

        def watch(_: str, size: int) -> None:
            done[0] += 1
            done[1] += size
            self(run, *done)

        return watch

    def end(self) -> None:
        """Remove the line that moves."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0


def _print(words: argparse.Namespace, record: text.Record, lines: Iterable[str]) -> None:
    if words.json:
        lines = [json.dumps(record, allow_nan=False)]
    for line in lines:
        sys.stdout.write(line + "\n")


class _Copying:
    """How far a copy is: on a terminal as it goes on; elsewhere only what is wrong, when that begins."""

    def __init__(self, words: argparse.Namespace) -> None:
        self._words = words
        self._moving = not words.json and sys.stderr.isatty()
        self._progress = _Progress(sys.stderr, "copying")
        self._each: dict[str, Callable[[str, int], None]] = {}
        self._told: str | None = None

    def wrote(self, run: str, size: int) -> None:
        """As `colabkeep.ui.copy.Watch` says, as is the next."""
        if self._moving:
            self._each.setdefault(run, self._progress.one(run))("", size)

    def sends(self, run: str, left: int, trouble: str | None) -> None:
        if trouble is not None and trouble != self._told:
            self.end()
            _warn(self._words, trouble)
        self._told = trouble or self._told
        if self._moving:
            self._progress.say(f"sending {run}: {text.size_text(left)} left")

    def end(self) -> None:
        """Remove the line that moves."""
        self._progress.end()


def _warn(words: argparse.Namespace, text: str) -> None:
    if not words.json:
        sys.stderr.write(text + "\n")


def _tell(error: ColabKeepError, *, as_json: bool) -> None:
    if as_json:
        kind = type(error).__name__
        record = {"error": {"problem": error.problem, "remedy": error.remedy, "type": kind}}
        sys.stdout.write(json.dumps(record) + "\n")
    else:
        sys.stderr.write(f"colabkeep: {error}\n")
