"""OpenAI's files and batches (``/v1/files``, ``/v1/batches``), for calls of the model and for runs
of served programs.

`records` keeps what the server knows of files and batches in a folder beside the database, `stored`
says what these are, `lines` reads and writes the lines of their files, `requests` answers one line
within this process, `places` bounds how many lines are under way, `work` takes a batch through its
states, and `api` has the routes.
"""
