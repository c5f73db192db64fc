"""`ammeter import`: makes a run of a history that another tool recorded. It reads files and stores only."""
