"""The console: pages about a broker or cluster, served by a process of its own.

It reads over the wire, like any client. `snapshot` takes in everything at intervals, `views` turn it into what a page
shows, `routes` answer requests, `templates` and `assets` are what the browser gets.
"""
