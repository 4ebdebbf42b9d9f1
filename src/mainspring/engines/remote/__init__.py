"""An engine on another machine, over the pipe of an `ssh`."""
