"""`gpulayers walk`: one training step of a tiny network with every number in it."""

from gpulayers.walk.examples import EXAMPLES, example
from gpulayers.walk.page import page
from gpulayers.walk.story import Story, play
from gpulayers.walk.text import text

__all__ = ["EXAMPLES", "Story", "example", "page", "play", "text"]
