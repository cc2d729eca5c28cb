"""`pseudo_labels.py`: phrases, or step names, through the teacher's text encoder, to a file."""
import numpy as np
import torch
from tqdm import tqdm

from files.listings import load_phrases
from support.command import write_atomically
from support.device import pick_device
from weights.teacher import open_teacher


def write_texts(settings):
    """settings: phrases, clip, clip_weights, device, out."""
    names = load_phrases(settings.phrases)
    teacher = open_teacher(settings.clip, settings.clip_weights, pick_device(settings.device))
    embeddings = torch.cat([teacher.encode_phrases([name])
                            for name in tqdm(names, desc="phrases", mininterval=1)])     # (K, D)
    write_atomically(settings.out, lambda file: np.savez(file, names=np.array(names),
                                                         embeddings=embeddings.numpy()))
    print(f"{settings.out}: {len(names)} phrases, D = {embeddings.shape[1]}")
