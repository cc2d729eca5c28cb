"""The root's list, who may import whom, what no file may do, and the names the pages point at.

The project is read as text here, with `ast`: nothing of it is imported.
"""
import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
METHOD = {"encoder", "denoiser", "diffusion", "pseudo_labels", "losses"}
SCRIPTS = {"train", "evaluate", "predict"}
BESIDE = {"support", "data", "model", "files", "toy", "weights"} | METHOD
# What of ours a root module or package may import. Arrows point one way, and never at a script.
MAY_IMPORT = {
    **dict.fromkeys(METHOD | {"data"}, set()),
    "support": {"support"},
    "model": METHOD,
    "weights": METHOD | {"support", "model", "weights"},
    "toy": METHOD | {"support", "data", "toy"},
    "files": METHOD | {"support", "data", "weights", "files"},
    "evaluation": BESIDE | {"evaluation"},
    "training": BESIDE | {"evaluation", "training"},
    "experiments": BESIDE | {"evaluation", "training", "experiments"},
    **dict.fromkeys(SCRIPTS, BESIDE | {"evaluation", "training", "experiments"})}
# Commands parse first and then import once, in the function that runs them. Only data.py's
# commands reach beyond their package: they are run by data.py alone.
COMMANDS = {"train", "evaluate", "predict", "files.commands", "weights", "weights.__main__",
            "experiments.benchmark", "experiments.charts", "experiments.tables"}
MAY_IMPORT_LATE = {"files.commands": BESIDE | {"evaluation"}}
# Packages of one command: imported in a function, named when missing. PIL comes with diffusers.
OPTIONAL = {"spacy", "matplotlib", "diffusers", "transformers", "PIL", "timm"}


def module_name(path):
    """files/video.py -> files.video, weights/__init__.py -> weights"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PATHS = [*ROOT.glob("*.py"), *(path for path in ROOT.glob("*/*.py") if path.parent.name != "tests")]
TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8"), str(path))
         for path in sorted(PATHS)}
OURS = {name.split(".")[0] for name in TREES}


def is_main_block(node):
    """if __name__ == "__main__": ..."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def names_of(node):
    """Dotted names that an import statement may import: `from a import b` gives a and a.b."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    assert node.level == 0, "a relative import"
    return {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}


def imports(tree, late):
    """Dotted names imported at the top of a file, or (late) within its functions."""
    top, everywhere = set(), set()
    for part in tree.body:
        for node in ast.walk(part):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and not is_main_block(part):
                (top if node is part else everywhere).update(names_of(node))
    return everywhere if late else top


def of_ours(names):
    """Those that are modules of this project."""
    return {name for name in names if name in TREES}


def calls(tree):
    """(dotted name, call) of all calls of a file: ("torch.load", ...)."""
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_the_root_is_the_users_list():
    """Catches: one more module between a newcomer and the method."""
    assert {path.stem for path in ROOT.glob("*.py")} == METHOD | SCRIPTS | {"model", "data"}
    assert all(path.parent.parent == ROOT for path in PATHS if path.parent != ROOT)
    assert OURS == set(MAY_IMPORT), "a new package needs a row in MAY_IMPORT"


@pytest.mark.parametrize("name", TREES)
def test_imports_keep_the_direction(name):
    """Catches: a method file that needs another file to be read; anything that imports a script;
    imports within functions, which hide a circle."""
    package = name.split(".")[0]
    top, late = (of_ours(imports(TREES[name], late)) for late in (False, True))
    wrong = {other for other in top if other.split(".")[0] not in MAY_IMPORT[package]}
    assert not wrong, f"{name} must not import {wrong}"
    assert name in COMMANDS or not late, f"{name} imports {late} within a function"
    allowed = MAY_IMPORT_LATE.get(name, MAY_IMPORT[package])
    assert {other.split(".")[0] for other in late} <= allowed


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_commands_import_once(name):
    """Catches: a command whose imports are spread over its functions."""
    places = [node.name for node in ast.walk(TREES[name]) if isinstance(node, ast.FunctionDef)
              and any(isinstance(part, (ast.Import, ast.ImportFrom)) and of_ours(names_of(part))
                      for part in ast.walk(node))]
    assert len(places) <= (7 if name == "files.commands" else 2 if name == "train" else 1), places


def test_no_circles():
    """Catches: modules that cannot be read one after another. Late imports count too."""
    graph = {name: of_ours(imports(tree, False) | imports(tree, True)) - {name}
             for name, tree in TREES.items()}
    while graph:
        leaves = {name for name, others in graph.items() if not others & graph.keys()}
        assert leaves, f"a circle among {sorted(graph)}"
        graph = {name: others for name, others in graph.items() if name not in leaves}


@pytest.mark.parametrize("name", sorted(METHOD))
def test_method_files_import_torch_level_packages_only(name):
    """Catches: a framework, or a package nobody listed, between the reader and an equation."""
    others = {other.split(".")[0] for other in imports(TREES[name], False)}
    assert others - set(sys.stdlib_module_names) <= {"torch", "torchvision", "numpy", "tqdm"}


def test_every_package_is_in_requirements():
    """Catches: an import that a fresh environment does not have; an optional package at the top."""
    required = {re.split(r"[\s<>=!~;\[#]", line)[0].lower().replace("-", "_")
                for line in (ROOT / "requirements.txt").read_text().splitlines()}
    known = set(sys.stdlib_module_names) | OURS | required | {"open_clip"}
    for name, tree in TREES.items():
        top, late = ({other.split(".")[0] for other in imports(tree, late)}
                     for late in (False, True))
        assert top <= known, f"{name} imports {top - known}"
        assert late <= known | OPTIONAL, f"{name} imports {late - known - OPTIONAL}"


@pytest.mark.parametrize("name", TREES)
def test_nothing_runs_text_or_unpickles(name):
    """Catches: code run from a string, a shell, or a file from the web that runs code."""
    used = imports(TREES[name], False) | imports(TREES[name], True)
    assert not used & {"pickle", "marshal", "shelve", "dill", "joblib"}
    for called, call in calls(TREES[name]):
        keywords = {word.arg: word.value for word in call.keywords}
        assert called not in ("eval", "exec", "os.system", "os.popen"), f"line {call.lineno}"
        for refused in ("shell", "allow_pickle"):
            given = keywords.get(refused)
            assert given is None or getattr(given, "value", True) is False, f"line {call.lineno}"
        if called == "torch.load":
            assert getattr(keywords.get("weights_only"), "value", None) is True, \
                f"{name}:{call.lineno}: torch.load without weights_only=True"


def defined(tree):
    """Names a file defines: functions, classes, methods (both `m` and `C.m`), constants."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
            names |= {f"{node.name}.{part.name}" for part in node.body
                      if isinstance(node, ast.ClassDef) and isinstance(part, ast.FunctionDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {part.id for target in targets if target is not None for part in ast.walk(target)
                  if isinstance(part, ast.Name)}
    return names


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_pages_exist(page):
    """Catches: an equation table or a page that points at a function or a file that is gone."""
    text = page.read_text(encoding="utf-8")
    pointers = re.findall(r"([\w/]+\.py):([\w.]+\w)", text)
    assert pointers or page.name != "README.md"
    wrong = [f"{file}:{name}" for file, name in pointers if not (ROOT / file).is_file()
             or name not in defined(ast.parse((ROOT / file).read_text(encoding="utf-8")))]
    wrong += [file for file in re.findall(r"`([\w/]+\.py)`", text) if not (ROOT / file).is_file()]
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    wrong += [link for link in links if not (page.parent / link).exists()]
    assert not wrong, f"{page.name} names what is not there: {wrong}"


def test_every_definition_helper_sees_what_it_should():
    """Catches: this file's own reading of imports or of a table entry going blind."""
    tree = ast.parse("import os.path\nA, B = 1, 2\nC: int = 3\nclass D:\n  def e(self): pass\n"
                     "def f():\n  from g.h import i\nif __name__ == '__main__':\n  import j")
    assert {"A", "B", "C", "D", "D.e", "f"} <= defined(tree)
    assert imports(tree, False) == {"os.path"} and imports(tree, True) == {"g.h", "g.h.i"}
