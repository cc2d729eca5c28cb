"""`python -m toy COMMAND`: see toy/commands.py."""
from support.command import dispatch
from toy.commands import COMMANDS, start

dispatch(COMMANDS, start)
