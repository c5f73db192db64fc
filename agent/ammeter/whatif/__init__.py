"""What a tensor would lose in another format or at another scale, from its recorded exponents."""
