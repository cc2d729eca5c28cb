"""The toy world: a written-down grammar, rendered as small narrated videos."""
