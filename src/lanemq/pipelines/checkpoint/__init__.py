"""What a pipeline keeps on disk between batches and between runs."""
