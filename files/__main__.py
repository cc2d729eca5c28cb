"""`python -m files COMMAND`: see files/commands.py."""
from files.commands import COMMANDS, start
from support.command import dispatch

dispatch(COMMANDS, start)
