"""Routes of the list of runs beside the runs themselves."""
