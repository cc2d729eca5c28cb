"""The paper's tables and figures, benchmarks, and key frames."""
