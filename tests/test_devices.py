"""A GPU that is not there: whole commands on torch's fake tensors, which say they are on "cuda:0".

A fake tensor has a shape and a device but no values, and an operation that mixes devices fails, as
on a GPU. Where a command reads a value, `StandIns` makes one up. Left out: files are read,
weights drawn and class texts embedded on the CPU; backward, bfloat16 (autocast asks the driver),
checkpoints, `plan_memory`, videos that are decoded, --data epic.
"""
import copy
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import _python_dispatch as modes

from commands import call, coin_flags, read_json
from conftest import open_teacher
from evaluation import embedding, forecasting, labeled, prediction, truth
from pseudo_labels import Teacher
from support import parallel
from toy import render, source
from training import finetune, pretrain, run
from weights import checkpoint

fake = pytest.importorskip("torch._subclasses.fake_tensor")
GPU = "cuda:0"
F, H = dict(image=32, patch=16, frames=2, width=16, depth=2, heads=1), dict(layers=1, heads=1)
TRAIN = "train.py", "--sgd-epochs", "0", "--epochs", "1"
TOY = *TRAIN, "--toy-videos", "2", "--batch", "2", "--phrases", "phrases.txt", "--out", "new"
TUNE = "train.py", "--stage", "finetune", "--toy-videos", "2", "--epochs", "1", "--batch", "8"
MEASURE = "evaluate.py", "--toy-videos", "2", "--checkpoint", "diffusion.pt", "--json", "o.json"
COMMANDS = {
    "diffusion": (*TOY, "--micro-batch", "5", "--targets", "both"),
    "mask": (*TOY, "--order", "mask", "--missing", "2"), "none": (*TOY, "--order", "none"),
    "features file": (*TRAIN, *coin_flags(), "--batch", "5", "--out", "new"),
    **{f"fine-tune {task}": (*TUNE, "--task", task, "--init", "diffusion.pt")
       for task in ("classify", "forecast")},
    "forecast": (*MEASURE, "--horizon", "2"),
    **{task: (*MEASURE, "--task", task) for task in ("classify", "infill")},
    "features": (*MEASURE[:-2], "--task", "features", "--stride", "20"), "predict": (
        "predict.py", "--checkpoint", "diffusion.pt", "--steps", "phrases.txt", "--horizon", "2")}


class StandIns(modes.TorchDispatchMode):
    """Made-up results where a value is read: 1, 0 of integers, yes; all rows are different, all of
    a mask is true. Collects the devices of linear layers, and what waits for the GPU: a value that
    is read, a copy that blocks, a mask as an index."""

    def __init__(self):
        super().__init__()
        self.devices, self.waits = set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs, x = func.overloadpacket.__name__, kwargs or {}, args[0] if args else None
        places = [y.device.type for y in args if isinstance(y, torch.Tensor)]
        places += [torch.device(kwargs["device"]).type] if kwargs.get("device") else []
        copies = name in ("_to_copy", "copy_") and not kwargs.get("non_blocking")
        if "cuda" in places and (copies and "cpu" in places or name in (
                "_local_scalar_dense", "equal", "unique_dim") or name.startswith("index")
                and any(y is not None and y.dtype == torch.bool for y in args[1])):
            self.waits.append(name)
        if name == "_local_scalar_dense":              # item, tolist, float and bool
            return 1.0 if x.is_floating_point() else int(x.dtype == torch.bool)
        if name == "equal":
            return True
        if name == "unique_dim":
            place = torch.arange(len(x), device=x.device)
            return x.clone(), place, torch.ones_like(place)
        if name == "bincount":
            return torch.zeros(kwargs.get("minlength", args[-1]), dtype=torch.int64,
                               device=x.device)
        if name in ("index", "index_put", "index_put_"):       # here fake tensors allow too much
            places = [index.device for index in args[1] if index is not None]
            assert {*places} <= {x.device, torch.device("cpu")}, "index of another device"
        if name == "index":
            args = x, [part for index in args[1] for part in (
                [torch.from_numpy(place.ravel()).to(index.device)
                 for place in np.indices(index.shape)]
                if index is not None and index.dtype == torch.bool else [index])]
        if name == "addmm":
            self.devices.add(x.device.type)
        return func(*args, **kwargs)


def numpy(x):
    """In place of FakeTensor.numpy: ones; of integers 0, 1, 0, 1, ..."""
    assert x.device.type == "cpu", "a tensor of a GPU as an array"
    kind = np.dtype(str(x.dtype).removeprefix("torch."))
    place = np.arange(x.numel()).reshape(x.shape)
    return (place % 2 if kind.kind == "i" else np.ones_like(place)).astype(kind)


def backward(loss):
    """In place of Tensor.backward."""
    assert loss.device == torch.device(GPU)


def real(make):
    """A function that runs on the CPU, with values."""
    def made(*args, **kwargs):
        with modes._disable_current_modes():
            return make(*args, **kwargs)
    return made


@pytest.fixture
def stand_ins(here, monkeypatch):
    """In this context a GPU seems to be there."""
    torch.ones(1, requires_grad=True).backward()       # counts GPUs once; with any, no fork trains
    try:
        with fake.FakeTensorMode():
            real(torch.ones(1, device=GPU).size)()
    except Exception as error:
        pytest.skip(f"no fake tensors of cuda in torch {torch.__version__}: {error!r:.80}")
    known = open_teacher("cpu", source.TEACHER_FILE.resolve())
    teacher, load_model = copy.deepcopy(known.model), real(checkpoint.load_model)
    load_teacher = functools.cache(lambda device: Teacher(      # fake weights are not moved again
        teacher, known.tokenizer, render.MEAN, render.STD, device))
    for module in (labeled, prediction, pretrain):
        monkeypatch.setattr(module, "load_teacher", load_teacher)
    monkeypatch.setitem(pretrain.SIZES, "small", {**pretrain.SIZES["small"], "encoder": F,
                                                    "denoiser": H, "run": 4})
    for owner, name, value in (
            (labeled, "ToySource", lambda split, count, *others: source.ToySource(
                "train", 2, *others)),         # one split: fewer shapes to trace
            (labeled, "cached_texts", lambda _, names: real(known.encode_phrases)(names)),
            (checkpoint, "load_model", load_model), (prediction, "load_model", load_model),
            (finetune, "load_model", load_model), (embedding, "load_model", load_model),
            (finetune, "build_model", real(finetune.build_model)),
            (pretrain, "build_model", real(pretrain.build_model)),
            (pretrain, "plan_memory", lambda *args: ""),       # of a GPU's
            (run, "save_checkpoint", lambda *args, **more: None),
            (fake.FakeTensor, "__format__", lambda x, kind: format(x.item(), kind)),
            (fake.FakeTensor, "numpy", numpy), (fake.FakeTensor, "pin_memory", torch.Tensor.clone),
            (torch.Tensor, "backward", backward),
            (forecasting, "FUTURES", 1), (truth, "DRAWS", 9), (forecasting, "DRAWS", 9)):
        monkeypatch.setattr(owner, name, value, raising=owner is not fake.FakeTensor)
    arguments = dict(encoder=F, denoiser=H, order="diffusion", tau=.05, alpha_bar=[.5, .1],
                     pixels=(render.MEAN, render.STD))
    checkpoint.save_checkpoint(Path("diffusion.pt"), checkpoint.build_model(
        torch.randn(12, 64), **arguments), arguments)
    with open("phrases.txt", "w", encoding="utf-8") as file:
        file.write("crack egg\nmelt butter\npour oil\n")
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield StandIns()
    torch.__future__.set_overwrite_module_params_on_conversion(False)


@pytest.mark.filterwarnings("ignore")                  # autocast without CUDA, made-up values
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_a_gpu(name, stand_ins):
    """Catches: a tensor made on the CPU, one that is not sent; a network that is left there."""
    with fake.FakeTensorMode(allow_non_fake_inputs=True), stand_ins:
        call(*COMMANDS[name], "--device", GPU)
    assert stand_ins.devices == {"cuda"}
    if "--json" in COMMANDS[name]:
        assert read_json("o.json")["evaluated"] > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("clips, waits", [("clips", []), ("steps", ["_to_copy"] * 2)])
def test_a_training_step_waits_for_no_gpu(clips, waits, stand_ins, monkeypatch):
    """Catches: a copy that waits, a value read, a mask as an index, between two rows of metrics.
    Without --clips clips a step waits for the likeliest phrases, and how sure f is of them."""
    found = []

    def give_gradients(optimizer):
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p)
    monkeypatch.setattr(parallel, "average_gradients", give_gradients)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: stand_ins.waits.clear())    # of a step
    monkeypatch.setattr(run.Run, "log", lambda *args, **terms: found.append([*stand_ins.waits]))
    monkeypatch.setattr(run.Run, "record", lambda *args: None)
    with fake.FakeTensorMode(allow_non_fake_inputs=True), stand_ins:
        call(*TOY, "--sgd-epochs", "2", "--epochs", "0", "--clips", clips, "--missing", "2",
             "--micro-batch", "3", "--device", GPU)
    assert found == [waits] * 2
