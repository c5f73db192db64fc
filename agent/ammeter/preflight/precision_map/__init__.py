"""`ammeter probe`: a map of the dtypes, sizes and depths at which a model's precision holds."""
