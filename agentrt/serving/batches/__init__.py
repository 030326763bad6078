"""OpenAI's files and batches (``/v1/files``, ``/v1/batches``), for model calls and for runs of
served programs.

- `stored`: the records of a file and of a batch, and their JSON for clients.
- `storage`: stores records and contents in a folder beside an SQLite database; `postgres`: stores
  them in a PostgreSQL database.
- `repository`: holds the records in memory, and writes their changes to the storage.
- `lines`: reads and writes the lines of input, output and error files.
- `slots`: limits the number of batch requests in flight.
- `requests`: answers one request of a batch inside this process.
- `runner`: takes a batch from its creation to its final status.
- `files`: the routes of files.
- `api`: the routes of batches. It opens all these parts for a server, and resumes the unfinished
  batches.
"""
