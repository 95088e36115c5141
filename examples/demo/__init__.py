"""The main job, from nothing: `python -m examples.demo`.

A real corpus becomes tokens (`corpus.py`, `tokenizer.py`, then the `headrace` command line), a small GPT (`model.py`)
is trained by Headrace's loop under torchrun (`train.py`, the part worth reading first), killed twice and continued with
other numbers of ranks (`launch.py`), and compared, sample by sample, with a run that nothing disturbed (`records.py`,
`plot.py`). Everything it writes lies in `demo-output/`.
"""
