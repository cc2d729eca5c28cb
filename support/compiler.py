"""What --compile does: torch compiles whole modules, and their names in a state_dict stay."""
import importlib.util
import os
import shutil

from support.errors import require


def compile_modules(device, encoder, denoiser, teacher):
    """Compile f, h if there is one (else None), and the picture tower of a pseudo_labels.Teacher.

    They are compiled when they are called first. InputError if there is no compiler.
    """
    compilers = os.environ.get("CXX", "g++"), "c++", "clang++", "cl"
    require(any(map(shutil.which, compilers)), "--compile: needs a C++ compiler, such as g++")
    require(device.type != "cuda" or importlib.util.find_spec("triton"), "--compile: needs triton "
            "on a GPU: pip install triton")
    encoder.compile()
    if denoiser is not None:
        denoiser.compile()
    if teacher.size:                                   # a table of texts looks at no pictures
        teacher.model.visual.compile()
