"""What the API keeps in its database: connections, tables, and the rows of threads and runs."""
