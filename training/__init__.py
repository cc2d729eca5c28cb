"""What train.py needs besides the method: run folders, resuming, cached embeddings, fine-tuning."""
