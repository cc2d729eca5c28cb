"""Who may import whom, what no file may do, names in pages: read as text, nothing imported."""
import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
METHOD = {"encoder", "denoiser", "diffusion", "pseudo_labels", "losses"}
SCRIPTS = {"train", "evaluate", "predict"}
BESIDE = {"support", "data", "model", "files", "toy", "weights"} | METHOD
# What of ours a root module or package may import. Arrows point one way, and never at a script;
# but experiments/runs.py reads the flags of train.py, to compare a run's settings with them.
MAY_IMPORT = {
    **dict.fromkeys(METHOD | {"data"}, set()),
    "support": {"support"}, "model": METHOD,
    "weights": METHOD | {"support", "model", "weights"},
    "toy": METHOD | {"support", "data", "toy"},
    "files": METHOD | {"support", "data", "weights", "files"},
    "evaluation": BESIDE | {"evaluation"}, "training": BESIDE | {"evaluation", "training"},
    "experiments": BESIDE | {"evaluation", "training", "experiments", "train"},
    **dict.fromkeys(SCRIPTS, BESIDE | {"evaluation", "training", "experiments"})}
# Commands parse first and import once, in the function that runs them: how many there are.
COMMANDS = {"train": 2, "evaluate": 1, "predict": 1, "files.__main__": 1,
            "experiments.benchmark": 1, "experiments.charts": 1, "experiments.reproduce": 1,
            "experiments.simulate": 1, "experiments.tour": 1, "toy.__main__": 1}
# Packages of one command: imported in a function, named when missing. PIL comes with diffusers.
OPTIONAL = {"spacy", "matplotlib", "diffusers", "transformers", "PIL", "timm"}


def names_of(node):
    """Dotted names that a node may import: `from a import b` gives a and a.b."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom):
        return set()
    assert node.level == 0, "a relative import"
    return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}


def imports(tree):
    """Dotted names imported (at the top of a file, within its functions)."""
    top, late = set(), set()
    for part in tree.body:
        if not (isinstance(part, ast.If) and "__name__" in ast.unparse(part.test)):
            for node in ast.walk(part):
                (top if node is part else late).update(names_of(node))
    return top, late


def packages(names):
    return {name.split(".")[0] for name in names}


PATHS = [*ROOT.glob("*.py"), *(path for path in ROOT.glob("*/*.py") if path.parent.name != "tests")]
TREES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"):
         ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in sorted(PATHS)}
IMPORTS = {name: imports(tree) for name, tree in TREES.items()}
OURS = packages(TREES)


def test_the_root_is_the_users_list():
    """Catches: one more module between a newcomer and the method."""
    assert {path.stem for path in ROOT.glob("*.py")} == METHOD | SCRIPTS | {"model", "data"}
    assert all(path.parent.parent == ROOT for path in PATHS if path.parent != ROOT)
    assert OURS == set(MAY_IMPORT), "a new package needs a row in MAY_IMPORT"


@pytest.mark.parametrize("name", TREES)
def test_imports_keep_the_direction(name):
    """Catches: a method file that needs another; an import of a script, or in a function."""
    may = MAY_IMPORT[name.split(".")[0]]
    top, late = (names & TREES.keys() for names in IMPORTS[name])
    assert packages(top) <= may and packages(late) <= may
    assert name in COMMANDS or not late, f"{name} imports {late} within a function"
    places = [node.name for node in ast.walk(TREES[name]) if isinstance(node, ast.FunctionDef)
              and any(names_of(part) & TREES.keys() for part in ast.walk(node))]
    assert len(places) <= COMMANDS.get(name, 0), places


def test_no_circles():
    """Catches: modules that cannot be read one after another. Late imports count too."""
    graph = {name: (top | late) & TREES.keys() - {name} for name, (top, late) in IMPORTS.items()}
    while graph:
        leaves = {name for name, others in graph.items() if not others & graph.keys()}
        assert leaves, f"a circle among {sorted(graph)}"
        graph = {name: others for name, others in graph.items() if name not in leaves}


def test_every_package_is_in_requirements():
    """Catches: an import that a fresh environment lacks; a framework in the method."""
    required = {re.split(r"[\s<>=!~;\[#]", line)[0].lower().replace("-", "_")
                for line in (ROOT / "requirements.txt").read_text().splitlines()}
    known = set(sys.stdlib_module_names) | OURS | required | {"open_clip"}
    few = set(sys.stdlib_module_names) | {"torch", "torchvision", "numpy", "tqdm"}
    for name, (top, late) in IMPORTS.items():
        may = few | {"open_clip"} if name == "denoiser" else few           # h's Transformer
        top, late = packages(top) - (may if name in METHOD else known), packages(late) - known
        assert not top and late <= OPTIONAL, f"{name} imports {top | late - OPTIONAL}"


RUNS_TEXT = [("experiments.notebook", "exec")]                 # cells that it has just written


@pytest.mark.parametrize("name", TREES)
def test_nothing_runs_text_or_unpickles(name):
    """Catches: code run from a string, a shell, or a file from the web that runs code."""
    assert not set.union(*IMPORTS[name]) & {"pickle", "marshal", "shelve", "dill", "joblib"}
    for call in ast.walk(TREES[name]):
        if isinstance(call, ast.Call):
            called, line = ast.unparse(call.func), f"{name}:{call.lineno}"
            given = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
            assert called not in ("eval", "exec", "os.system", "os.popen") or (
                (name, called) in RUNS_TEXT), line
            assert given.get("shell", False) is given.get("allow_pickle", False) is False, line
            assert called != "torch.load" or given.get("weights_only") is True, line


def defines(path, name):
    """Whether a file defines each part of a dotted name: a function, class, method or constant."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return all(re.search(rf"^ *(def|class) {part}\b|^([\w, ]+, )?{part}\b[^(]*=", text, re.M)
               for part in name.split("."))


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_pages_exist(page):
    """Catches: an equation table or a page that points at a function or a file that is gone."""
    text = page.read_text(encoding="utf-8")
    pointers = re.findall(r"([\w/]+\.py):([\w.]+\w)", text)
    assert pointers or page.name != "README.md"
    wrong = [f"{file}:{name}" for file, name in pointers if not defines(ROOT / file, name)]
    wrong += [file for file in re.findall(r"`([\w/]+\.py)`", text) if not (ROOT / file).is_file()]
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    wrong += [link for link in links if not (page.parent / link).exists()]
    assert not wrong, f"{page.name} names what is not there: {wrong}"
