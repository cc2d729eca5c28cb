"""A table as text, which Markdown reads too."""


def text_table(header, rows):
    """Aligned lines `| a | b |`. header (n,) and each row (n,): texts. Returns: one string."""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)
