"""The embedded server: a Valkey (or Redis) of our own for people who run none.

`python -m worker.embedded --data-dir D` makes sure that one server runs for the data folder D and
writes how to reach it to the file descriptor named by AIFORGE_READY_FD. The first to come becomes
the supervisor and stays; later ones find its server, report the same and end.

Files in D:

    redis/         the server's configuration, append-only file and password
    valkey.json    url, port, pid, version; true only while `embedded.lock` is held
    embedded.lock  held by the supervisor and its server: never two servers on one folder
    users.lock     held shared by every process that uses the server, inherited by its children

A lock dies with the processes that hold it, so a kill -9 or a reboot leaves nothing to clean up.
The server stops when no user is left for two seconds, and never before.
Only the standard library is imported: the supervisor waits for hours and should weigh little.
"""
