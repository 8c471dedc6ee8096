"""Rules that only a coordinator needs: it keeps the progress of groups, and has no log."""
