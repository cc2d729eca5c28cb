"""What evaluate.py needs besides the method: metrics, inference, one module per task."""
