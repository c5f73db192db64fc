"""`ammeter stress`: the operators of a model that lose range or precision, each against float64."""
