"""Signing in to Google: whose Drive it is, and by what right. Nothing here moves the bytes of a checkpoint.

`secret` is the one text that a user keeps; `consent` obtains it; `signing` finds whatever right there is on this
machine; `account` turns it into signed requests; `bridge` speaks with PyDrive2. colabkeep has no client id of its own:
rclone's shared one is being withdrawn because its use would be charged for (rclone/rclone, issue 9580, 2026).

A token, a client secret or a key never gets into a message, a log, a journal or a `repr`.
"""
