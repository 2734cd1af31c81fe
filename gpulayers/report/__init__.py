"""`gpulayers report`: one page on one or several runs, made from what lies in their folders."""

from gpulayers.report.gather import Run, gather
from gpulayers.report.page import page

__all__ = ["Run", "gather", "page"]
