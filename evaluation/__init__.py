"""What evaluate.py needs besides the method: metrics, inference, the tables of the tasks."""
