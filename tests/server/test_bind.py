"""The listening socket: what connections inherit from it."""

from __future__ import annotations

import socket

from statemark.server.run import bind
from statemark.server.state import Settings


def test_accepted_connections_send_small_pieces_at_once():
    with bind(Settings(port=0)) as listener, socket.create_connection(listener.getsockname()[:2]):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
