"""Signing in to Google: whose Drive it is, and by what right. Nothing here moves the bytes of a checkpoint.

`consent` obtains the one text that a user keeps; `account` reads it, finds whatever right there is on this machine,
turns it into signed requests, and speaks with PyDrive2. colabkeep has no client id of its own: rclone's shared one is
being withdrawn because its use would be charged for (rclone/rclone, issue 9580, 2026).

A token, a client secret or a key never gets into a message, a log, a journal or a `repr`.
"""
