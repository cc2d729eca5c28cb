"""The rows of the paper's tables, and which runs of ours stand below them: data for tables.py.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839). Numbers are top-1 accuracies in percent, on COIN
unless the title says otherwise; None where the paper has a dash. Left out: rows of methods that
nothing here corresponds to, and Table B, which lists words.

A run of ours is named as in RECIPES. A cell of it is "RECIPE", the column's own number, or
"RECIPE KEY", another number of the same evaluation. None: there is no such number.
"""
from dataclasses import dataclass

# name: the flags of train.py that differ from the defaults. howto.txt is in this file's folder.
RECIPES = {
    "diffusion": {},
    "mask": {"order": "mask"},
    "matching": {"order": "none"},
    "howto": {"phrases": "howto.txt"},
    "distant": {"order": "none", "phrases": "howto.txt", "targets": "narration"},
    "both": {"targets": "both"},
    "mvit": {"encoder": "mvit"},
}
# Evaluation: its task and whether it is fine-tuned.
CLASSIFY, TUNED_CLASSIFY = "classify", "classify-tuned"
FORECAST, TUNED_FORECAST, ACTIVITY = "forecast", "forecast-tuned", "activity-tuned"
EPIC = "classify-epic"


@dataclass(frozen=True)
class Table:
    """One table: columns are (header, evaluation, key of its JSON); rows (label, cell, ...)."""
    title: str
    columns: tuple
    paper: tuple
    ours: tuple


CLASSES = ("classification", CLASSIFY, "top1.ours")
FORECASTS = ("forecasting", FORECAST, "top1.zero_noise")
TUNED = (("classification, fine-tuned", TUNED_CLASSIFY, "top1.ours"),
         ("forecasting, fine-tuned", TUNED_FORECAST, "top1.zero_noise"))
ASR, HOWTO = "ASR", "ASR + wikiHow"                               # what a model was trained with

NOVEL = 0.7               # BLEU-1 with the nearest phrase below which the paper calls a step novel

TABLES = {
    "forecasting": Table(
        "Table 1: step forecasting",
        (("zero-shot", FORECAST, "top1.zero_noise"),
         ("fine-tuned", TUNED_FORECAST, "top1.zero_noise")),
        ((f"DistantSup ({HOWTO}, HT100M)", None, 39.4),
         ("random", 0.1, None),
         ("CLIP (captions, CLIP400M)", 9.4, None),
         (f"ours ({ASR}, HT100M)", 11.3, 46.8),
         (f"ours, oracle-5 ({ASR}, HT100M)", 14.7, 51.8)),
        (("like DistantSup: targets of narrations, how-to pool, no order", None, "distant"),
         ("random", "diffusion baselines.random", None),
         ("bigram, label-free", "diffusion baselines.bigram", None),
         ("teacher on the observed video", "diffusion baselines.clip", None),
         ("ours", "diffusion", "diffusion"),
         ("ours, oracle-5", "diffusion top1.oracle", "diffusion top1.oracle"),
         ("oracle-5 of the zero-noise softmax", "diffusion top1.oracle_softmax",
          "diffusion top1.oracle_softmax"))),
    "classification": Table(
        "Table 2: step classification",
        (("zero-shot", CLASSIFY, "top1.ours"), ("fine-tuned", TUNED_CLASSIFY, "top1.ours")),
        ((f"DistantSup ({HOWTO}, HT100M)", None, 54.1),
         (f"DistantSup, matching embeddings of texts ({HOWTO}, HT100M)", 10.2, 46.6),
         ("CLIP (captions, CLIP400M)", 14.8, 45.9),
         (f"ours ({ASR}, HT100M)", 16.6, 56.9)),
        (("like DistantSup: targets of narrations, how-to pool, no order", "distant", "distant"),
         ("teacher", "diffusion top1.teacher", None),
         ("ours", "diffusion", "diffusion"))),
    "epic": Table(
        "Table 3: actions of EPIC-Kitchens-100, fine-tuned",
        (("action", EPIC, "top1.action"), ("verb", EPIC, "top1.verb"),
         ("noun", EPIC, "top1.noun")),
        (("TimeSformer (action labels, Kinetics)", 42.3, 66.6, 54.4),
         (f"DistantSup ({HOWTO}, HT100M)", 44.4, 67.1, 58.1),
         (f"ours ({ASR}, HT100M)", 47.7, 69.5, 60.3)),
        ()),                                            # the embedded world has no verbs and nouns
    "ablation": Table(
        "Table 4: pre-training tasks and order",
        (CLASSES, FORECASTS, *TUNED),
        (("matching", 13.7, None, 52.8, 41.6),
         ("matching + ordering, mask", 16.9, 10.6, 56.4, 43.2),
         ("matching + ordering, diffusion", 16.6, 11.3, 56.9, 46.8)),
        (("matching", "matching", None, "matching", "matching"),
         ("matching + ordering, mask", "mask", "mask", "mask", "mask"),
         ("matching + ordering, diffusion", "diffusion", "diffusion", "diffusion", "diffusion"))),
    "inference": Table(
        "Table 5: inference, zero-shot forecasting",
        (("approximation: zero noise", FORECAST, "top1.zero_noise"),
         ("expectation of 5", FORECAST, "top1.expectation"),
         ("oracle of 5", FORECAST, "top1.oracle")),
        (("ours (± over 5 samplings)", 11.33, "11.34 ± 0.03", "14.73 ± 0.13"),),
        (("ours", "diffusion", "diffusion", "diffusion"),
         ("± over 5 samplings of one run", None, "diffusion deviation.expectation",
          "diffusion deviation.oracle"),
         ("mask: 5 draws of its softmax", None, None, "mask top1.oracle_softmax"))),
    "activity": Table(
        "Table A: activities, fine-tuned",
        (("fine-tuned", ACTIVITY, "top1.ours"),),
        ((f"DistantSup ({HOWTO}, HT100M)", 88.9),
         (f"ours ({ASR}, HT100M)", 90.8)),
        (("like DistantSup: targets of narrations, how-to pool, no order", "distant"),
         ("matching", "matching"), ("ours", "diffusion"))),
    "step-source": Table(
        "Table C: source of step descriptions (paper: a subset of HowTo100M)",
        (CLASSES, FORECASTS, *TUNED),
        (("wikiHow sentences", 11.6, 8.3, 48.6, 38.0),
         ("ASR phrases", 11.8, 9.0, 47.8, 38.9)),
        (("how-to sentences", "howto", "howto", "howto", "howto"),
         ("phrases of narrations", "diffusion", "diffusion", "diffusion", "diffusion"))),
    "backbone": Table(
        "Table D: backbone",
        (CLASSES, FORECASTS),
        (("TimeSformer", 16.6, 11.3), ("MViT-S", 12.5, 9.0)),
        (("TimeSformer", "diffusion", "diffusion"), ("MViT", "mvit", "mvit"))),
    "targets": Table(
        "Soft targets of the teacher (paper: vision; its release: both)",
        (CLASSES, FORECASTS, *TUNED),
        (),
        (("vision", "diffusion", "diffusion", "diffusion", "diffusion"),
         ("vision and narration", "both", "both", "both", "both"))),
    # A row of ours is the mean over the steps of its group: see rows.open_rows.
    "open-vocabulary": Table(
        "Fig. A: steps by BLEU-1 with the phrases, seen from 0.7, zero-shot",
        (("steps", None, None), ("classification", CLASSIFY, "by_class"),
         ("forecasting", FORECAST, "by_class")),
        (("seen", "103", 15.9, 14.2), ("novel", "675", 16.7, 10.9)),
        (("seen", None, "diffusion", "diffusion"), ("novel", None, "diffusion", "diffusion"),
         ("seen, forecast by the exact distribution", None, None, "diffusion by_class_bayes"),
         ("novel, forecast by the exact distribution", None, None, "diffusion by_class_bayes"))),
}
