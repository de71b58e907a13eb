"""A tour of the cache on a real model: a document, a chat about it, and the same chat with a planted fault.

Owns what is asked, the fault and the figures. Must not know the command line; prints nothing by itself.
"""

from statemark.demo.drawing import Drawing, bar
from statemark.demo.stage import Stage
from statemark.demo.tour import Caught, Faulty, Tour, Turn

__all__ = ["Caught", "Drawing", "Faulty", "Stage", "Tour", "Turn", "bar"]
