"""Read and check what others wrote: videos, captions, annotations and lists."""
