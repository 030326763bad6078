"""The database of the LangGraph API: connections, tables, and the rows of threads and runs."""
