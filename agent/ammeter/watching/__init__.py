"""From one line in a training program to an attached session."""
