"""What can be trained, one file a task. `Task` in task.py says what a task offers: read it before writing one."""

from gpulayers.training.tasks.feedforward import FeedForwardTask
from gpulayers.training.tasks.gpt import GPTTask
from gpulayers.training.tasks.seq2seq import Seq2SeqTask
from gpulayers.training.tasks.task import Part, Saved, Task, Writing
from gpulayers.training.tasks.vit import ViTTask

__all__ = ["DEFAULTS", "TASKS", "Part", "Saved", "Task", "Writing"]

TASKS: dict[str, type[Task]] = {"gpt": GPTTask, "seq2seq": Seq2SeqTask, "vit": ViTTask, "feedforward": FeedForwardTask}

DEFAULTS = {name: task.default for name, task in TASKS.items()}  # what a run is made from when nothing else is said
