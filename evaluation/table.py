"""The table of evaluate.py: its JSON, row by row."""


def print_rows(content, indent=""):
    """Print the numbers of a dict, nested ones indented; what does not apply, None, is left out."""
    for name, value in content.items():
        if isinstance(value, dict):
            print(indent + name)
            print_rows(value, indent + "  ")
        elif value is not None:
            numbers = value if isinstance(value, list) else [value]
            text = ", ".join(f"{n:.2f}" if isinstance(n, float) else str(n) for n in numbers)
            print(f"{indent + name:<20}{text}")


def print_table(content):
    """Print the content of --json, but for the long row of all classes."""
    print_rows({name: value for name, value in content.items() if name != "by_class"})
    M = content["evaluated"]
    print(f"standard error of a percentage of {M:,} examples: at most {50 / M ** 0.5:.1f}; "
          "what the rows are: docs/results.md, evaluation/tasks.py")
