"""The printed table of evaluate.py: its JSON content as rows, each number with what it is."""
MEANINGS = {
    "top1": "% right", "top5": "% right among the five likeliest", "baselines": "% right",
    "motion_only": "% right, steps alike but for motion", "truth": "what the grammar allows",
    "held_out": "% right, steps that no narration names", "tv_draws": "samples of each",
    "deviation": "of these percentages, over draws of the noise alone",
    "samples": "Monte Carlo samples of each forecast", "zero_noise": "the model, one forecast",
    "expectation": "the model, mean p of its samples", "oracle": "the model, best of its samples",
    "oracle_softmax": "baseline of the oracle: draws of the zero-noise softmax",
    **dict.fromkeys(("ours", "verb", "noun", "action", "model"), "the model"),
    **dict.fromkeys(("random", "unigram", "bigram", "bigram_soft"), "baseline"),
    **dict.fromkeys(("clip", "teacher"), "baseline: the teacher"),
    **dict.fromkeys(("ideal_expectation", "ideal_oracle", "ideal_distinct", "exact"),
                    "samples of the exact distribution"),
    "distinct": "different steps among the samples", "bayes_top1": "ceiling, from the true steps",
    "bayes_top1_pixels": "from what the model sees", "form": "the same, had the model the best h",
    "expectations": "% right, means of 5, 50 and 200 samples, of tv_forecasts",
    "tv": "distance of the samples from the truth, 0 to 1", "tv_forecasts": "forecasts compared",
    "tv_ideal": "the value for exact samples", "tv_independent": "each step drawn alone",
    "by_position": "% right, the model: first step, middle ones, last",
    "possible_next": "% of likeliest steps that are possible, % of the probability",
    "share": "how many samples have a step as their likeliest",
    "possible": "% of the futures, possible", "first": "% of their first steps, possible",
    "likeliest": "% of the seven most frequent futures, possible",
    "by_step": "% right, the model: each step ahead"}


def print_rows(content, indent=""):
    """Aligned rows of a dict, nested ones indented; None does not apply and is left out."""
    for name, value in content.items():
        meaning = MEANINGS.get(name, "")
        if isinstance(value, dict):
            print(f"{indent}{name:<{32 - len(indent)}}{meaning}".rstrip())
            print_rows(value, indent + "  ")
        elif value is not None:
            numbers = value if isinstance(value, list) else [value]
            text = ", ".join(f"{n:.2f}" if isinstance(n, float) else str(n) for n in numbers)
            print(f"{indent}{name:<{22 - len(indent)}}{text:<8}  {meaning}".rstrip())


def print_table(content):
    """The content of --json, without its lists by class and by video."""
    groups = {"test samples": ("listed", "evaluated"), "videos": ("missing", "unreadable")}
    print_rows({head: {name: content[name] for name in names} for head, names in groups.items()})
    print_rows({name: value for name, value in content.items() if name not in
                sum(groups.values(), ()) and not name.startswith(("by_class", "by_video"))})
    count = content["evaluated"]
    print(f"standard error of a percentage of {count:,} samples: at most {50 / count ** 0.5:.1f}")
