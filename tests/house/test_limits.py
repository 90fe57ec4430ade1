"""Rules that hold for every file of the package, read from its source.

Each rule comes with a piece of code that breaks it, so that a rule that has gone blind is noticed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

Rule = Callable[[str, ast.Module], Iterator[str]]

MUTABLE_CALLS = {
    "list",
    "dict",
    "set",
    "bytearray",
    "defaultdict",
    "OrderedDict",
    "Counter",
    "deque",
    "WeakKeyDictionary",
    "WeakValueDictionary",
    "WeakSet",
    "ContextVar",
    "local",
    "count",
    "iter",
}
MUTATORS = {
    "append",
    "add",
    "update",
    "extend",
    "insert",
    "remove",
    "discard",
    "pop",
    "popitem",
    "clear",
    "setdefault",
    "sort",
}
PICKLES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
READER_OF_PICKLES = "integrations/lightning_files.py"  # a user's own .ckpt, by `torch.load(weights_only=True)` alone
WORKER_BORDER = "frameworks/shared/workers.py"  # a data set on its way to the loader's workers, never to a disk
WRITERS = {
    "stores/local.py",  # the directory store, in three files
    "stores/shared/files.py",  # and pages for people beside the objects, which are replaced
    "stores/shared/locks.py",
    "stores/colab_drive/files.py",  # files on a mounted Drive, and their folders
    "stores/kaggle/child.py",  # kagglehub takes a whole folder only: one of hard links, in a process of its own
    "stores/shared/process.py",  # the pipes to such a process and back
    "stores/hub/aistudio.py",  # aistudio-sdk takes a file only
    "frameworks/shared/host_memory.py",  # memory where there is none: a file without a name, gone with the process
    "frameworks/paddle/reading.py",  # shared memory of dead processes, removed
    "frameworks/torch/data.py",  # sockets of dead processes and their folders, removed
    "session/launch.py",  # pipes to the processes that it begins, and the folder in which they meet
    "keep/tree.py",  # a kept folder, put back: folders, empty files, links
    "keep/version.py",  # and the bytes of its files
    "keep/session.py",  # which takes the folder's place in one move; and what this machine remembers of it
    "ui/demo.py",  # its temporary folder, and what a session of the demo says, in a file without a name
    "ui/loggers.py",  # the folder that other programs' writers write into
    "ui/cli.py",  # the null device, when whoever read the output went away
}
TEST_KIT = "testing/"  # plays the part of the user and of the machine, so it may make folders and damage files
READER_OF_ENVIRONMENT = "core/system.py"


def dotted(node: ast.AST) -> str:
    """ "os.environ" for that expression; "" for anything that is not names and dots."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def no_global_statements(path: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"


def module_bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def is_mutable(value: ast.expr) -> bool:
    displays = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    return isinstance(value, displays) or (
        isinstance(value, ast.Call) and dotted(value.func).rsplit(".", 1)[-1] in MUTABLE_CALLS
    )


def no_state_in_modules(path: str, tree: ast.Module) -> Iterator[str]:
    constants = set()
    for name, value in module_bindings(tree):
        if not is_mutable(value) or (name.startswith("__") and name.endswith("__")):
            continue
        if name != name.upper():
            yield f"{name} can change"
        constants.add(name)
    for node in ast.walk(tree):
        changed = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed = dotted(node.value)
        elif isinstance(node, ast.AugAssign):
            changed = dotted(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            changed = dotted(node.func.value)
        if changed in constants:
            yield f"line {node.lineno}: {changed} is changed"


def is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def nothing_is_unpickled_or_executed(path: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            if path == READER_OF_PICKLES and [alias.name for alias in node.names] == ["UnpicklingError"]:
                continue
        for module in modules:
            if module.split(".")[0] in PICKLES and path != WORKER_BORDER:
                yield f"line {node.lineno}: imports {module}"
    for name, call in calls(tree):
        only_weights = any(k.arg == "weights_only" and is_true(k.value) for k in call.keywords)
        if path == READER_OF_PICKLES and name == "torch.load" and only_weights:
            continue
        if name in ("eval", "exec", "compile", "__import__", "torch.load", "torch.save", "numpy.load", "np.load"):
            yield f"line {call.lineno}: calls {name}"


def opens_for_writing(name: str, call: ast.Call) -> bool:
    if name == "open" or name.endswith((".open", ".fdopen")):
        texts = [a.value for a in [*call.args, *(k.value for k in call.keywords)] if isinstance(a, ast.Constant)]
        return any(isinstance(t, str) and t and set(t) <= set("rwaxbt+") and set(t) & set("wax+") for t in texts)
    module, _, last = name.rpartition(".")
    if last in (
        "write_text",
        "write_bytes",
        "mkstemp",
        "mkdtemp",
        "NamedTemporaryFile",
        "TemporaryFile",
        "TemporaryDirectory",
        "touch",
        "mkdir",
        "makedirs",
        "symlink_to",
        "hardlink_to",
        "unlink",
        "rmtree",
        "copyfile",
        "copytree",
    ):
        return True
    return module == "os" and last in (
        "write",
        "rename",
        "replace",
        "link",
        "symlink",
        "remove",
        "truncate",
        "ftruncate",
    )


def only_the_directory_store_writes_files(path: str, tree: ast.Module) -> Iterator[str]:
    if path in WRITERS or path.startswith(TEST_KIT):
        return
    for name, call in calls(tree):
        if opens_for_writing(name, call):
            yield f"line {call.lineno}: {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("O_WRONLY", "O_RDWR", "O_CREAT"):
            yield f"line {node.lineno}: {dotted(node)}"


def only_one_place_reads_the_environment(path: str, tree: ast.Module) -> Iterator[str]:
    if path == READER_OF_ENVIRONMENT:
        return
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) and node.module == "os" else []
        names += [node.attr] if isinstance(node, ast.Attribute) and dotted(node).startswith("os.") else []
        for name in names:
            if name in ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"):
                yield f"line {node.lineno}: os.{name}"


def no_printing(path: str, tree: ast.Module) -> Iterator[str]:
    if path.startswith("ui/"):
        return
    for name, call in calls(tree):
        if name in ("print", "sys.stdout.write", "sys.stderr.write", "warnings.warn"):
            yield f"line {call.lineno}: {name}"


def a_run_lies_in_its_folder(path: str, tree: ast.Module) -> Iterator[str]:
    """A run's name is for people, in any script; `folder` and `run_folder(name)` are where it lies."""
    for node in ast.walk(tree):
        for name, rest in pairwise(node.values) if isinstance(node, ast.JoinedStr) else ():
            attribute = name.value if isinstance(name, ast.FormattedValue) else None
            follows = isinstance(rest, ast.Constant) and str(rest.value).startswith("/")
            if follows and isinstance(attribute, ast.Attribute) and attribute.attr == "run":
                yield f"line {node.lineno}: {dotted(attribute)}/…"


RULES: dict[Rule, tuple[str, ...]] = {
    no_global_statements: ("def f():\n    global x",),
    no_state_in_modules: (
        "cache = {}",
        "_seen: set[str] = set()",
        "seen = collections.defaultdict(list)",
        "TABLE = {}\ndef f():\n    TABLE['a'] = 1",
        "TABLE = []\ndef f():\n    TABLE.append(1)",
        "TABLE = []\ndef f():\n    TABLE += [1]",
    ),
    nothing_is_unpickled_or_executed: (
        "import pickle",
        "def f():\n    from cloudpickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=True)",
        "from pickle import UnpicklingError",
        "eval('1')",
    ),
    only_the_directory_store_writes_files: (
        "open('a', 'w')",
        "path.open(mode='ab')",
        "path.write_text('a')",
        "os.open('a', os.O_CREAT)",
        "os.replace('a', 'b')",
        "tempfile.NamedTemporaryFile()",
        "tempfile.TemporaryFile()",
    ),
    only_one_place_reads_the_environment: ("os.environ['HOME']", "os.getenv('HOME')", "from os import environ"),
    a_run_lies_in_its_folder: ('f"{self.repository.run}/lease/{name}"',),
    no_printing: ("print('hello')", "import warnings\nwarnings.warn('x')"),
}
HARMLESS = '''
"""A file that keeps every rule."""
TABLE = {"a": 1}
__all__ = ["f"]
def f(a, b=(), *, c=1):
    model.eval()
    re.compile("x")
    seen = set()
    seen.add(TABLE["a"])
    with path.open("rb") as file, store.open("w-name") as other:
        return file.read()
'''


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule, package: Path) -> None:
    """Every file of the package, the ones of tomorrow included."""
    files = sorted(package.rglob("*.py"))
    assert len(files) > 30, "the package was found"
    broken = []
    for file in files:
        path = file.relative_to(package).as_posix()
        broken += [f"colabkeep/{path}: {what}" for what in rule(path, ast.parse(file.read_text()))]
    assert broken == []


@pytest.mark.parametrize(("rule", "code"), [(rule, code) for rule, codes in RULES.items() for code in codes])
def test_the_rule_sees_what_breaks_it(rule: Rule, code: str) -> None:
    """A rule that cannot fail protects nothing."""
    assert list(rule("some/file.py", ast.parse(code)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_lets_honest_code_pass(rule: Rule) -> None:
    """No rule cries wolf."""
    assert list(rule("some/file.py", ast.parse(HARMLESS))) == []


def test_the_exceptions_are_still_needed(package: Path) -> None:
    """An allowance that nobody uses any more is taken away."""
    border = ast.parse((package / WORKER_BORDER).read_text())
    assert list(nothing_is_unpickled_or_executed("elsewhere.py", border))
    source = (package / READER_OF_PICKLES).read_text()
    assert len(list(nothing_is_unpickled_or_executed("elsewhere.py", ast.parse(source)))) == 2
    for changed in (source.replace("weights_only=True", "weights_only=False"), f"{source}\nimport pickle\n"):
        assert list(nothing_is_unpickled_or_executed(READER_OF_PICKLES, ast.parse(changed)))
    for file in WRITERS:
        assert list(only_the_directory_store_writes_files("elsewhere.py", ast.parse((package / file).read_text()))), (
            file
        )
    reader = ast.parse((package / READER_OF_ENVIRONMENT).read_text())
    assert list(only_one_place_reads_the_environment("elsewhere.py", reader))
