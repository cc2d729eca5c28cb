"""What train.py needs besides the method: batches, run folders, several GPUs, fine-tuning."""
