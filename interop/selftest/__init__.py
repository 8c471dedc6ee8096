"""The suite about itself: judges and guards, without a broker."""
