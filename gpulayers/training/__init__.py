"""The training loop and what belongs to it: settings, checkpoints, metrics, plots, generation, evaluation.

loop.py         one training step, and the trainer around it         <- start reading here
tasks/          what is trained: data, network, samples              config.py, options.py   the settings
run.py          run folders: start, resume, open a saved model       checkpoint.py, metrics.py, plot.py
generate.py     writing text; windows.py: what a model sees of it    evaluate.py   loss, perplexity, bits per byte
health.py       what makes a layer sick; ledger.py measures it, health_log.py writes it down, health_plot.py draws it
"""
