"""`python -m ruda_finetune` is the command `ruda-finetune`."""

from ruda_finetune.cli import main

main()
