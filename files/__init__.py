"""What others wrote: videos, captions, annotations and lists, read and checked."""
