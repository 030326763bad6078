"""OpenAI's files and batches (``/v1/files``, ``/v1/batches``), for model calls and for runs of
served programs.

- `stored`: the records of a file and of a batch, and their JSON for clients.
- `records`: keeps these records in a folder beside the database.
- `lines`: reads and writes the lines of input, output and error files.
- `slots`: limits the number of batch requests in flight.
- `requests`: answers one request of a batch inside this process.
- `runner`: takes a batch from its creation to its final status.
- `files` and `routes`: the routes of files and of batches.
- `api`: opens all of it for a server, and resumes the unfinished batches.
"""
