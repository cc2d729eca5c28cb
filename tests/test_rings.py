"""Which file may import which, what no file may do, and the names README points at; by `ast`.

The project is read as text here: nothing of it is imported.
"""
import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
METHOD = {"encoder", "mvit", "denoiser", "diffusion", "losses", "pseudo_labels"}
# What of ours a file may import. A new file needs a row: decide which ring it belongs to.
MAY_IMPORT = {
    **dict.fromkeys(METHOD, set()),
    "pseudo_labels": {"program", "settings_optional", "listings"},  # it is a command as well
    "program": set(),
    "settings": {"program"},
    "settings_optional": {"program"},
    "protocols": set(),
    "metrics": set(),
    "toy": set(),
    "toy_render": {"toy"},
    "annotations": {"program"},
    "listings": {"program", "annotations"},
    "captions": {"program"},
    "video": {"program", "listings"},
    "phrases": {"program", "settings_optional", "listings", "captions"},
    "model": METHOD - {"pseudo_labels"} | {"program", "released", "weights"},  # these two lazily
    "released": {"diffusion", "losses", "model"},
    "weights": {"program", "settings_optional", "model", "released"},
    "parallel": set(),
    "workers": {"program"},
    "runs": {"program", "model", "parallel"},
    "tasks": {"listings", "protocols", "toy"},
    "data": {"program", "annotations", "captions", "listings", "parallel", "protocols",
             "pseudo_labels", "toy", "toy_render", "tools", "video"},
    "kept": {"program", "data", "parallel", "protocols", "video", "workers"},
    "tools": {"program", "settings_optional", "annotations", "data", "epic", "listings",
              "pseudo_labels", "tasks", "toy", "toy_render", "video", "workers"},
    "epic": {"program", "data", "listings", "metrics", "protocols", "tasks"},
    "train": {"program", "settings", "runs", "annotations", "data", "diffusion", "finetune", "kept",
              "listings", "losses", "model", "parallel", "protocols", "pseudo_labels", "toy",
              "toy_render", "weights", "workers"},
    "inference": {"program", "annotations", "data", "epic", "model", "pseudo_labels", "tasks",
                  "toy", "toy_render", "workers"},
    "finetune": {"program", "runs", "inference", "model", "data", "epic", "listings", "protocols",
                 "tasks", "workers"},
    "missing": {"program", "inference", "metrics", "protocols", "tasks", "toy"},
    "forecasting": {"program", "inference", "data", "diffusion", "losses", "metrics", "missing",
                    "protocols", "pseudo_labels", "tasks", "toy"},
    "evaluate": {"program", "settings", "inference", "forecasting", "data", "epic", "kept", "losses",
                 "metrics", "missing", "model", "tasks", "toy"},
    "keyframes": {"program"},
    "figures": {"program", "settings_optional", "paper_tables", "predict"},    # lazily
    "forecast_figure": {"figures"},
    "predict": {"program", "settings_optional", "inference", "annotations", "data", "diffusion",
                "figures", "forecast_figure", "keyframes", "listings", "missing", "model",
                "protocols", "toy", "toy_render", "video"},
    "benchmark": {"program", "settings", "settings_optional", "annotations", "benchmark_encoder",
                  "benchmark_loader", "captions", "data", "denoiser", "encoder", "kept", "losses",
                  "model", "protocols", "pseudo_labels", "toy_render", "train", "video"},
    "benchmark_encoder": {"encoder"},
    "benchmark_loader": {"program", "captions", "data", "listings", "protocols", "video",
                         "workers"},
    "paper_tables": set(),
    "table_runs": {"paper_tables", "program", "settings", "data", "evaluate", "finetune", "metrics",
                   "model", "runs", "tasks", "toy", "train"},
    "tables": {"paper_tables", "table_runs", "program", "settings_optional", "figures", "listings",
               "metrics", "toy"},
}
# Packages of one command: imported in a function, named when missing. PIL comes with diffusers.
OPTIONAL = {"spacy", "matplotlib", "diffusers", "transformers", "PIL"}
TREES = {path.stem: ast.parse(path.read_text(encoding="utf-8"), path.name)
         for path in sorted(ROOT.glob("*.py"))}


def imports(tree):
    """First names of all modules imported anywhere in a file, lazily included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import in a flat project"
            found.add(node.module.split(".")[0])
    return found


def calls(tree):
    """(dotted name, call) of all calls of a file: ("torch.load", ...)."""
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("name", TREES)
def test_imports_keep_the_direction(name):
    """Catches: a method file that needs another file to be read; a circle; evaluate using train."""
    assert name in MAY_IMPORT, f"{name}.py has no row in MAY_IMPORT: which ring is it in?"
    ours = imports(TREES[name]) & TREES.keys()
    assert ours <= MAY_IMPORT[name], f"{name}.py must not import {ours - MAY_IMPORT[name]}"


@pytest.mark.parametrize("name", sorted(METHOD))
def test_method_files_import_torch_level_packages_only(name):
    """Catches: a framework, or a package nobody listed, between the reader and an equation."""
    others = imports(TREES[name]) - set(sys.stdlib_module_names) - MAY_IMPORT[name]
    assert others <= {"torch", "torchvision", "numpy", "open_clip", "tqdm"}


def test_every_package_is_in_requirements():
    """Catches: an import that a fresh environment does not have."""
    required = {re.split(r"[\s<>=!~;\[#]", line)[0].lower().replace("-", "_")
                for line in (ROOT / "requirements.txt").read_text().splitlines()}
    required |= {"open_clip", "timm"} if "open_clip_torch" in required else set()      # it needs timm
    used = set().union(*map(imports, TREES.values()))
    assert used - set(sys.stdlib_module_names) - TREES.keys() <= required | OPTIONAL


@pytest.mark.parametrize("name", TREES)
def test_optional_packages_are_imported_in_functions(name):
    """Catches: a command that needs spaCy, or matplotlib, for its --help."""
    top = ast.Module([node for node in TREES[name].body
                      if isinstance(node, (ast.Import, ast.ImportFrom))], [])
    assert not imports(top) & OPTIONAL


@pytest.mark.parametrize("name", TREES)
def test_nothing_runs_text_or_unpickles(name):
    """Catches: code run from a string, a shell, or a file from the web that runs code."""
    assert not imports(TREES[name]) & {"pickle", "marshal", "shelve", "dill", "joblib"}
    for called, call in calls(TREES[name]):
        keywords = {word.arg: word.value for word in call.keywords}
        assert called not in ("eval", "exec", "os.system", "os.popen"), f"line {call.lineno}"
        shell = keywords.get("shell")
        assert shell is None or getattr(shell, "value", True) is False, f"line {call.lineno}"
        allowed = keywords.get("allow_pickle")
        assert allowed is None or getattr(allowed, "value", True) is False, f"line {call.lineno}"
        if called == "torch.load":
            assert getattr(keywords.get("weights_only"), "value", None) is True, \
                f"{name}.py:{call.lineno}: torch.load without weights_only=True"


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


@pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="no README.md")
def test_names_in_readme_exist():
    """Catches: README's equation table pointing at a function that was renamed or removed."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pointers = re.findall(r"([\w/]+\.py):(\w+)", text)
    assert pointers, "README.md has no `file.py:name`; its equation table needs them"
    wrong = [f"{file}:{name}" for file, name in pointers if not (ROOT / file).is_file()
             or name not in defined(ast.parse((ROOT / file).read_text(encoding="utf-8")))]
    assert not wrong, f"README.md names what is not there: {wrong}"


def test_every_definition_helper_sees_what_it_should():
    """Catches: this file's own reading of a table entry going blind (methods, constants)."""
    tree = ast.parse("import os.path\nA, B = 1, 2\nC: int = 3\nclass D:\n  def e(self): pass\n"
                     "def f():\n  from g.h import i")
    assert {"A", "B", "C", "D", "D.e", "f"} <= defined(tree)
    assert imports(tree) == {"os", "g"}
