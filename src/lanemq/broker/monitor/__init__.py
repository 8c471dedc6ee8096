"""What a broker shows about itself: figures, lag, health."""
