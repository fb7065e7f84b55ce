"""The wire: messages, their bytes, the sockets that carry them, the errors they raise.

Nothing of draftbus is imported here, so a peer in another program can be built
on this package alone. `docs/protocol.md` is the normative description.
"""
