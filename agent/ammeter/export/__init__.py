"""`ammeter export`: copies a recorded run into other tools. It reads files only, in a process of its own."""
