"""What train.py needs besides the method: batches, run folders, resuming, fine-tuning."""
