"""What evaluate.py and predict.py print of their JSON."""
TOP = 5                   # steps of a window in the JSON; next steps and futures that are printed
MEANINGS = {
    "top1": "% right", "top5": "% right among the five likeliest",
    "zero_noise": "the model, one forecast", "expectation": "the model, mean p of its samples",
    "oracle": "the model, any of its samples is right",
    "oracle_softmax": "baseline of the oracle: draws of the zero-noise softmax",
    "distinct": "different steps among the samples", "ours": "the model", "teacher": "the teacher",
    "random": "baseline", "unigram": "baseline", "clip": "baseline: the teacher",
    "bigram": "baseline: what follows the last clip's step",
    "bigram_soft": "the same, with the last clip's posterior",
    "bayes_top1": "the exact distribution: the ceiling of one forecast",
    "ideal_oracle": "any of so many draws of it is right",
    "tv": "distance of the samples from it, 0 to 1", "tv_ideal": "the same of exact draws",
    "tv_softmax": "the same of the zero-noise softmax, without draws",
    "draws": "the samples' share", "softmax": "the zero-noise softmax",
    "possible": "% of the sampled futures that are possible", "first": "of their first steps",
    "held_out": "% right, steps that no narration names",
    "motion_only": "% right, steps alike but for motion",
    "by_position": "% right: first step, middle ones, last", "verb": "the model",
    "noun": "the model", "action": "both right"}
UNDER = {      # rows with the names of others stand below under names of their own
    "top5": {"zero_noise": "five likeliest, one forecast",
             "expectation": "five likeliest, mean of samples"},
    "possible_next": {"zero_noise": "possible, one forecast",
                      "expectation": "possible, mean of samples"},
    "nll": {"draws": "-log p of samples", "softmax": "-log p of softmax"}}


def print_rows(content, indent=""):
    """Aligned rows of a dict, nested ones indented; None does not apply and is left out."""
    for name, value in content.items():
        if isinstance(value, dict):
            heading = "" if name in UNDER else MEANINGS.get(name, "")
            print(f"{indent}{name:<{34 - len(indent)}}{heading}".rstrip())
            print_rows({UNDER.get(name, {}).get(key, key): v for key, v in value.items()},
                       indent + "  ")
        elif value is not None:
            numbers = value if isinstance(value, list) else [value]
            text = ", ".join(f"{n:.2f}" if isinstance(n, float) else str(n) for n in numbers)
            print(f"{indent}{name:<{34 - len(indent)}}{text:<9} {MEANINGS.get(name, '')}".rstrip())


def print_table(content):
    """The content of --json: the headline first, the other rows below it."""
    count = content["evaluated"]
    print(f"{content['task']}, {content['setting']}, {content['split']}: {count:,} evaluated of "
          f"{content['listed']:,} listed; videos: {content['absent']} absent, "
          f"{content['unreadable']} unreadable")
    print_rows({"top1": content["top1"]})
    print_rows({name: value for name, value in content.items() if name not in (
        "task", "setting", "split", "data", "evaluated", "listed", "absent", "unreadable", "top1",
        "by_class")})
    print(f"standard error of a percentage of {count:,} examples: at most {50 / count ** 0.5:.1f}")


# --- predict.py ---
def table(rows, heading):
    """Rows of texts as aligned lines below a heading."""
    rows = [heading, *rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)) for row in rows]
    return "\n".join(["", *(f"  {line}".rstrip() for line in lines)])


def print_forecast(content):
    """Print the windows, and the first TOP of next steps and futures, beside the truth if known."""
    truth = content["truth"]
    print(content["video"] + " of the embedded world" * bool(truth))
    rows = [[f"{clip['start']:.1f} - {clip['end']:.1f} s",
             ", ".join(f"{row['step']} {row['p']:.0%}" for row in clip["steps"][:2])]
            for clip in content["clips"]]
    if truth:
        rows = [row + [step or "-"] for row, step in zip(rows, truth["clips"])]
    print(table(rows, ["observed", "shows", *["truth"] * bool(truth)]))
    if content["next"]:
        print_next(content["next"], content["futures"], truth)
    if truth:
        print("\n  what follows: " + (", ".join(truth["follows"]) or "nothing"))
    if content["warning"]:
        print(f"\n  warning: {content['warning']}")


def print_next(following, futures, truth):
    """Print next steps and futures. The likeliest true steps are shown, forecast or not."""
    exact = {row["step"]: row["p"] for row in truth["next"]} if truth else {}
    shown = following[:TOP] + [row for row in following[TOP:]
                               if row["step"] in list(exact)[:TOP]]
    rows = [[row["step"], f"{row['share']:.0%}", f"{row['p']:.0%}"] for row in shown]
    ways = [[", ".join(future["steps"]), f"{future['share']:.0%}"] for future in futures[:TOP]]
    if exact:
        rows = [row + [f"{exact.get(row[0], 0.0):.0%}"] for row in rows]
        ways = [row + [f"{f['share']:.0%}"] for row, f in zip(ways, truth["futures"])]
    print(table(rows, ["next", "share", "p", *["truth"] * bool(exact)]))
    print(table(ways, ["futures", "share", *["truth"] * bool(exact)]))
    print("\n  share: how many samples have that step as their likeliest, or that future; p: the "
          "mean of their probabilities")
