"""What is known of the origin of a NaN or an Inf, for verdicts of several families."""
